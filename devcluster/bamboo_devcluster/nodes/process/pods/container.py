"""One container of a pod: start, wait, restart with back-off, stop with grace.

The pod's status is built from the record that it keeps.
"""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bamboo_devcluster.children import launch
from bamboo_devcluster.errors import disk_full_message, is_disk_full
from bamboo_devcluster.kube import clock
from bamboo_devcluster.nodes.process.pods.container_log import LogPump, tail_text
from bamboo_devcluster.nodes.process.pods.env import ConfigError
from bamboo_devcluster.nodes.process.pods.status import (
    ContainerRecord,
    Running,
    Terminated,
    Waiting,
)

Object = dict[str, Any]

_MESSAGE_LIMIT_BYTES = 4096
_MESSAGE_LINES, _MESSAGE_TAIL_BYTES = 80, 2048
_CONFIG_RETRY_S = 1.0
_HEALTHY_RUN_S = 600.0
_IMAGE_BACKOFF_S = 10.0


@dataclass(frozen=True)
class Backoff:
    """Delays between restarts: the second restart waits `base_s`, each later one twice as long."""

    base_s: float = 10.0
    cap_s: float = 300.0


class ImageError(Exception):
    """The image is not in the image map, and the container has no command."""


class StopRequest:
    """A request to stop a pod. Later requests can only shorten the grace period.

    A grace of 0 means immediate SIGKILL, without SIGTERM and hooks.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline: float | None = None
        self._changed = asyncio.Event()
        self.is_abrupt = False

    @property
    def is_made(self) -> bool:
        """Whether the pod must stop."""
        return self._deadline is not None

    def make(self, grace_s: float) -> None:
        """Request that everything ends within `grace_s`."""
        self.is_abrupt |= grace_s <= 0
        deadline = self._loop.time() + grace_s
        if self._deadline is None or deadline < self._deadline:
            self._deadline = deadline
            self._changed.set()

    async def made(self) -> None:
        """Wait until the pod must stop."""
        while not self.is_made:
            await self._changed.wait()

    async def wait(self, ended: "asyncio.Future[int]") -> bool:
        """Wait until the process ends or the deadline passes; return whether it has ended."""
        while not ended.done():
            assert self._deadline is not None
            left = self._deadline - self._loop.time()
            if left <= 0:
                return False
            self._changed.clear()
            changed = asyncio.ensure_future(self._changed.wait())
            try:
                both: set[asyncio.Future[Any]] = {ended, changed}
                await asyncio.wait(both, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
        return True


@dataclass(frozen=True)
class Start:
    """What a start of the container needs, worked out anew each time."""

    order: launch.Order
    message_file: Path | None = None


@dataclass
class ContainerPorts:
    """What a container needs from its pod."""

    prepare: Callable[[Object], Awaitable[Start]]
    changed: Callable[[], None]
    event: Callable[[str, str, str], None]  # type, reason, message
    awake: Callable[[], Awaitable[None]]  # returns at once, unless the node is frozen
    start_gate: asyncio.Semaphore
    watch_over: Callable[["Container"], Awaitable[None]] | None = None  # probes; ends with the run
    before_stop: Callable[["Container"], Awaitable[None]] | None = None  # preStop hook


@dataclass
class Container:
    """One container of a pod."""

    spec: Object
    record: ContainerRecord
    log_dir: Path
    stop: StopRequest
    restart_policy: str
    ports: ContainerPorts
    backoff: Backoff = field(default_factory=Backoff)
    process: launch.Process | None = None
    order: launch.Order | None = None
    grace_s: float = 30.0

    async def run(self) -> None:
        """Run the container until it needs no restart."""
        delay_s = 0.0
        while not self.stop.is_made:
            began = clock.now()
            await self._run_once()
            ended = self.record.state
            if not isinstance(ended, Terminated) or not self._needs_restart(ended):
                return
            if (clock.now() - began).total_seconds() > _HEALTHY_RUN_S:
                delay_s = 0.0
            if delay_s and not await self._back_off(ended, delay_s):
                return
            delay_s = min(self.backoff.cap_s, delay_s * 2 or self.backoff.base_s)
            self._note_restart(ended)

    def lose(self, *, goes_on: bool) -> None:
        """Record that an earlier run, on a machine that is gone, was lost."""
        text = "The container could not be located when the pod was terminated"
        now = clock.now()
        lost = Terminated(137, "ContainerStatusUnknown", now, now, text)
        if goes_on:
            self._note_restart(lost)
        else:
            self.record.state = lost

    def log_path(self, *, previous: bool = False) -> Path:
        """Return the log of the current run, or of the previous one."""
        return self.log_dir / f"{self.record.restart_count - previous}.log"

    def restart(self, grace_s: float) -> None:
        """End the current run after a failed liveness probe; the restart policy applies."""
        if self.process:
            self.process.signal(signal.SIGTERM)
            loop = asyncio.get_running_loop()
            loop.call_later(grace_s, self.process.kill)

    def kill(self) -> None:
        """SIGKILL every process of the container."""
        if self.process:
            self.process.kill()

    def _needs_restart(self, ended: Terminated) -> bool:
        if self.stop.is_made or self.restart_policy == "Never":
            return False
        return self.restart_policy == "Always" or ended.exit_code != 0

    def _note_restart(self, ended: Terminated) -> None:
        self.record.last = ended
        self.record.restart_count += 1

    async def _back_off(self, ended: Terminated, delay_s: float) -> bool:
        """Wait before the next start; return whether to start."""
        text = f"back-off {delay_s:g}s restarting failed container={self.record.name}"
        self.record.last = ended
        self._set(Waiting("CrashLoopBackOff", text))
        self.ports.event("Warning", "BackOff", text)
        await self._pause(delay_s)
        if self.stop.is_made:
            self._set(ended)
        return not self.stop.is_made

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.stop.made()
        except TimeoutError:
            return

    async def _run_once(self) -> None:
        await self.ports.awake()
        prepared = await self._prepare()
        if prepared is None:
            return
        began = clock.now()
        pump, writer = self._open_log()
        try:
            async with self.ports.start_gate:
                self.process = await launch.start(prepared.order, writer)
        except (launch.StartError, OSError) as error:
            self._fail_start(str(error), began)
            return
        finally:
            os.close(writer)
            if self.process is None or not self.process.is_running:
                pump.close()
        self.order = prepared.order
        await self._live(self.process, prepared, pump)

    async def _prepare(self) -> Start | None:
        """Prepare the start; retry until it succeeds. None if the pod must stop."""
        while not self.stop.is_made:
            try:
                return await self.ports.prepare(self.spec)
            except ConfigError as error:
                self._set(Waiting("CreateContainerConfigError", str(error)))
                self.ports.event("Warning", "Failed", f"Error: {error}")
                await self._pause(_CONFIG_RETRY_S)
            except OSError as error:
                text = disk_full_message(self.log_dir) if is_disk_full(error) else str(error)
                self._set(Waiting("CreateContainerError", text))
                self.ports.event("Warning", "Failed", f"Error: {text}")
                await self._pause(_CONFIG_RETRY_S)
            except ImageError as error:
                self._set(Waiting("ErrImagePull", str(error)))
                self.ports.event("Warning", "Failed", str(error))
                await self._pause(_CONFIG_RETRY_S)
                if not self.stop.is_made:
                    self._set(Waiting("ImagePullBackOff", f"Back-off pulling image: {error}"))
                    await self._pause(_IMAGE_BACKOFF_S)
        return None

    def _open_log(self) -> tuple[LogPump, int]:
        reader, writer = os.pipe()
        return LogPump(self.log_path(), reader), writer

    def _fail_start(self, message: str, began: Any) -> None:
        now = clock.now()
        self.process = None
        self._set(Terminated(128, "StartError", began, now, message))
        self.ports.event("Warning", "Failed", f"Error: {message}")

    async def _live(self, process: launch.Process, start: Start, pump: LogPump) -> None:
        began = clock.now()
        # PIDs are reused, so a PID alone does not identify a container.
        self.record.container_id = f"process://{process.pid}-{time.monotonic_ns()}"
        self.record.is_started = not self.spec.get("startupProbe")
        self.record.is_ready = self.record.is_started and not self.spec.get("readinessProbe")
        self._set(Running(began))
        self.ports.event("Normal", "Started", f"Started container {self.record.name}")
        guard = asyncio.ensure_future(self._watch_over())
        try:
            code = await self._wait_or_stop(process)
        finally:
            guard.cancel()
            pump.close()
        await self.ports.awake()
        self.record.is_ready = self.record.is_started = False
        reason = "Completed" if code == 0 else "Error"
        message, identity = self._message(start, code), self.record.container_id
        self._set(Terminated(code, reason, began, clock.now(), message, identity))

    async def _watch_over(self) -> None:
        if self.ports.watch_over:
            await self.ports.watch_over(self)

    async def _wait_or_stop(self, process: launch.Process) -> int:
        stop = asyncio.ensure_future(self.stop.made())
        try:
            both: set[asyncio.Future[Any]] = {process.exit_code, stop}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
        if process.is_running:
            await self._stop_process(process)
        return await asyncio.shield(process.exit_code)

    async def _stop_process(self, process: launch.Process) -> None:
        if self.stop.is_abrupt:
            process.kill()
            return
        await self.ports.awake()
        self.ports.event("Normal", "Killing", f"Stopping container {self.record.name}")
        if self.ports.before_stop:
            hook = asyncio.ensure_future(self.ports.before_stop(self))
            both = asyncio.ensure_future(_first(hook, process.exit_code))
            if not await self.stop.wait(both):
                hook.cancel()
        process.signal(signal.SIGTERM)
        if not await self.stop.wait(process.exit_code):
            await self.ports.awake()
            process.kill()

    def _message(self, start: Start, code: int) -> str:
        text = ""
        if start.message_file:
            try:
                data = start.message_file.read_bytes()[:_MESSAGE_LIMIT_BYTES]
                text = data.decode(errors="replace")
            except OSError:
                text = ""
        policy = self.spec.get("terminationMessagePolicy", "File")
        if not text and code and policy == "FallbackToLogsOnError":
            text = tail_text(self.log_path(), lines=_MESSAGE_LINES, limit_bytes=_MESSAGE_TAIL_BYTES)
        return text

    def _set(self, state: Waiting | Running | Terminated) -> None:
        self.record.state = state
        self.ports.changed()


async def _first(hook: "asyncio.Future[None]", ended: "asyncio.Future[int]") -> int:
    """Wait until the hook or the container ends."""
    both: set[asyncio.Future[Any]] = {hook, ended}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    return 0
