"""The worker's process as the supervisor sees it.

It inherits standard output. Its standard error passes through the supervisor, which reports the
last line to the operator if the worker fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Callable

from bamboo_agent.ipc.pipe import Pipe, PipeClosedError
from bamboo_agent.ipc.shared_progress import SharedProgress
from bamboo_core.api import texts
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import AgentMessage, OperatorMessage
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_wire import decode, encode
from bamboo_wire.errors import WireError

log = logging.getLogger(__name__)

HASH_SEED_VARIABLE = "PYTHONHASHSEED"

_KEPT = 8192
_FATAL = re.compile(r"^Fatal Python error: .*$", re.MULTILINE)
"""With what faulthandler begins, before the stacks and a list of modules."""


class WorkerProcess:
    """``on_exit`` gets the exit code (128 + n after signal n) and the last error line."""

    def __init__(
        self,
        *,
        on_message: Callable[[AgentMessage], None],
        on_exit: Callable[[int, str], None],
    ) -> None:
        ours, self._theirs = socket.socketpair()
        self.shared_progress = SharedProgress.create()
        self._pipe = Pipe(ours)
        self._on_message = on_message
        self._on_exit = on_exit
        self._process: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._errors = bytearray()
        self._stderr = -1
        self._is_reading = False

    @property
    def pid(self) -> int | None:
        """None before :meth:`start`."""
        return None if self._process is None else self._process.pid

    async def start(self, *, module: str, agent: AgentId, data_socket: socket.socket) -> None:
        """Start ``python -m module`` and hand over ``data_socket`` (bound, listening)."""
        fds = (self._theirs.fileno(), data_socket.fileno(), self.shared_progress.fd)
        arguments = zip(("--fd", "--data-fd", "--progress-fd"), fds, strict=True)
        self._stderr, errors = os.pipe()
        os.set_blocking(self._stderr, False)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "bamboo_agent.supervisor.launch", str(os.getpid()), module, "--agent", agent),
            *(str(word) for pair in arguments for word in pair),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=errors,
            env=_environment(),
            pass_fds=fds,
        )
        os.close(errors)
        self._theirs.close()
        data_socket.close()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pipe.fileno(), self._read)
        loop.add_reader(self._stderr, self._pass_on)
        self._is_reading = True
        self._watcher = asyncio.create_task(self._watch(self._process))

    def send(self, message: OperatorMessage) -> None:
        """Send a message. What the worker does not read at once is queued."""
        try:
            self._pipe.send(encode.operator_message(message).SerializeToString())
        except PipeClosedError:
            return  # its exit is reported by _watch
        if self._pipe.wants_write:
            asyncio.get_running_loop().add_writer(self._pipe.fileno(), self._flush)

    def kill(self, reason: str) -> None:
        """SIGKILL. No-op once the process has ended."""
        log.warning("killing the worker: %s", reason)
        self._end()

    async def close(self) -> None:
        """Kill the process, wait for it, and free its resources."""
        self._end()
        if self._watcher is not None:
            await self._watcher
        self._stop_reading()
        self._close_stderr()
        self._pipe.close()
        self.shared_progress.close()

    def _end(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    # ------------------------------------------------------------ pipe

    def _read(self) -> None:
        try:
            for body in self._pipe.receive():
                self._on_message(decode.agent_message(decode.parse_bytes(pb.AgentMessage, body)))
        except PipeClosedError:
            self._stop_reading()
        except WireError as error:
            self._stop_reading()
            self.kill(f"its message is malformed: {error}")

    def _flush(self) -> None:
        try:
            self._pipe.flush()
        except PipeClosedError:
            self._stop_reading()
            return
        if not self._pipe.wants_write:
            asyncio.get_running_loop().remove_writer(self._pipe.fileno())

    def _stop_reading(self) -> None:
        loop = asyncio.get_running_loop()
        if self._is_reading:
            self._is_reading = False
            loop.remove_reader(self._pipe.fileno())
            loop.remove_writer(self._pipe.fileno())

    # ------------------------------------------------------------ end

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        if self._stderr >= 0:
            self._pass_on()
        if self._is_reading:
            self._read()  # what it sent before it exited
        self._on_exit(*self._verdict(code))

    def _verdict(self, code: int) -> tuple[int, str]:
        errors = self._errors.decode("utf-8", "replace")
        line = _essential_line(errors)
        if code >= 0:
            return code, line
        if fatal := _FATAL.search(errors):  # the stack stays in the log
            return 128 - code, fatal[0]
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return 128 - code, line or f"the worker was killed by {name}"

    def _pass_on(self) -> None:
        """Copy to our standard error and keep the end. A child of the worker may keep it open."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._stderr, 1 << 16):
                sys.stderr.buffer.write(data)
                sys.stderr.buffer.flush()
                self._errors += data
                del self._errors[:-_KEPT]
            self._close_stderr()

    def _close_stderr(self) -> None:
        if self._stderr >= 0:
            asyncio.get_running_loop().remove_reader(self._stderr)
            os.close(self._stderr)
            self._stderr = -1


def _environment() -> dict[str, str]:
    """Ours, with one hash seed for the workers of all agents: a set of texts has the same order in
    each of them. Python reads the variable only when it starts."""
    seed = os.environ.get(HASH_SEED_VARIABLE)
    if seed not in (None, "", "random"):
        return dict(os.environ)
    if seed is not None:
        log.warning(
            "%s=%r would order sets differently on each agent; the worker gets 0",
            HASH_SEED_VARIABLE,
            seed,
        )
    return {**os.environ, HASH_SEED_VARIABLE: "0"}


def _essential_line(text: str) -> str:
    """The last line that is not indented: in a traceback, the error. The log's lines are JSON."""
    lines = [x for x in text.splitlines() if x.strip() and not (x[0].isspace() or x[0] == "{")]
    return texts.cut(texts.whole(lines[-1]), texts.MOST_LINE_BYTES) if lines else ""
