"""Starts child processes that cannot outlive this one, and watches them.

Programs are started by `shim.py`. Call this from the main thread: the kernel ties the parent-death
signal to the thread that forked.
"""

import asyncio
import enum
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bamboo_devcluster.children.shim import die_with_parent

_SHIM = Path(__file__).with_name("shim.py")
_START_TIMEOUT_S = 30.0


class Isolation(enum.Enum):
    """How containers are isolated from the machine, best first."""

    NAMESPACES = "namespaces"  # root: own PID and mount namespace
    USER_NAMESPACE = "user-namespace"  # the same without privileges
    NONE = "none"  # neither is allowed: only a session, and no mounts


@dataclass(frozen=True)
class Mount:
    """A bind mount of a container."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Order:
    """A program to start. `argv[0]` is looked up on the PATH of `env`."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    mounts: Sequence[Mount] = ()
    scratch: str = ""
    isolation: Isolation = Isolation.NONE
    is_machine: bool = False  # with a network and a host name of its own


class StartError(Exception):
    """The program could not be started."""


@dataclass
class Process:
    """A started program. `exit_code` resolves to 0..255, 128 + N after signal N."""

    pid: int
    exit_code: "asyncio.Future[int]" = field(repr=False)
    isolation: Isolation = Isolation.NONE

    @property
    def is_running(self) -> bool:
        """Whether the program has not ended yet."""
        return not self.exit_code.done()

    def signal(self, number: int) -> None:
        """Send a signal to the program's first process; no error if it has ended."""
        if self.is_running:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL every process of the program."""
        if self.isolation is Isolation.NONE:
            _signal_all(self.members(), signal.SIGKILL)
        self.signal(signal.SIGKILL)

    def freeze(self) -> None:
        """SIGSTOP every process of the program, including children forked meanwhile."""
        stopped: set[int] = set()
        while fresh := set(self.members()) - stopped:
            _signal_all(fresh, signal.SIGSTOP)
            stopped |= fresh

    def thaw(self) -> None:
        """SIGCONT every process of the program."""
        _signal_all(self.members(), signal.SIGCONT)

    def members(self) -> list[int]:
        """Return the PIDs of all processes of the program."""
        if not self.is_running:
            return []
        if self.isolation is Isolation.NONE:
            return [pid for pid in _all_pids() if _session(pid) == self.pid]
        mine = _pid_namespace(self.pid)
        return [pid for pid in _all_pids() if mine and _pid_namespace(pid) == mine]


async def start(order: Order, output: int) -> Process:
    """Start a program with stdout and stderr on the descriptor `output`."""
    data: dict[str, Any] = {
        "mode": "plain" if order.isolation is Isolation.NONE else "jail",
        "user_namespace": order.isolation is Isolation.USER_NAMESPACE,
        "machine": order.is_machine,
        "mounts": [vars(mount) for mount in order.mounts],
        "scratch": order.scratch,
    }
    return await _run_shim(order, data, output)


def popen(argv: Sequence[str], env: Mapping[str, str], output: int) -> "subprocess.Popen[bytes]":
    """Start a program that no event loop watches, with stdout and stderr on the descriptor
    `output`. It ends with this process, however this process ends."""
    mine = os.getpid()
    return subprocess.Popen(
        argv,
        env=env,
        stdout=output,
        stderr=output,
        preexec_fn=lambda: die_with_parent(mine),
    )


async def start_inside(process: Process, order: Order, output: int) -> Process:
    """Start a program inside the namespaces of a running one."""
    data: dict[str, Any] = {"mode": "plain"}
    if process.isolation is not Isolation.NONE:
        user_namespace = process.isolation is Isolation.USER_NAMESPACE
        data = {"mode": "enter", "target": process.pid, "user_namespace": user_namespace}
    return await _run_shim(order, data, output)


async def find_isolation(directory: Path) -> Isolation:
    """Return the best isolation that this machine allows."""
    mount = Mount(source=str(directory), target="/.bamboo-devcluster-probe/x")
    for isolation in (Isolation.NAMESPACES, Isolation.USER_NAMESPACE):
        order = Order(
            argv=["true"],
            env={"PATH": os.environ.get("PATH", os.defpath)},
            cwd="/",
            mounts=[mount],
            scratch=str(directory / "probe"),
            isolation=isolation,
        )
        try:
            process = await start(order, subprocess.DEVNULL)
        except StartError:
            continue
        if await process.exit_code == 0:
            return isolation
    return Isolation.NONE


async def _run_shim(order: Order, data: dict[str, Any], output: int) -> Process:
    reader, writer = os.pipe()
    data.update(
        argv=list(order.argv), env=dict(order.env), cwd=order.cwd, status_fd=writer,
        parent=os.getpid(),
    )  # fmt: skip
    try:
        shim = subprocess.Popen(  # noqa: ASYNC220 - vfork and exec, a millisecond
            [sys.executable, "-I", "-S", str(_SHIM)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=(writer,),
            env={},
        )
    except OSError:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    assert shim.stdin is not None
    with shim.stdin:
        shim.stdin.write(json.dumps(data).encode())
    answer = await _read_status(reader)
    return await _adopt(answer, shim, order.isolation)


async def _adopt(answer: list[Any], shim: "subprocess.Popen[bytes]", kind: Isolation) -> Process:
    """Watch the process that the shim reported; reap the shim if that is another process."""
    merged: dict[str, Any] = {}
    for line in answer:
        merged.update(line)
    pid = merged.get("pid", shim.pid)
    if pid != shim.pid:
        await _watch(shim.pid)
    exit_code = _watch(pid)
    # We reap the child; Popen must not wait for it too.
    shim.returncode = 0
    if "error" in merged or "pid" not in merged:
        await exit_code
        raise StartError(merged.get("error", "the program's starter exited without a report"))
    return Process(pid=pid, exit_code=exit_code, isolation=kind)


async def _read_status(descriptor: int) -> list[Any]:
    """Collect the shim's JSON lines until the pipe closes, which it does when the program runs."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    with os.fdopen(descriptor, "rb", buffering=0) as pipe:
        transport, _ = await loop.connect_read_pipe(lambda: protocol, pipe)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                data = await reader.read()
        finally:
            transport.close()
    return [json.loads(line) for line in data.splitlines()]


def _watch(pid: int) -> "asyncio.Future[int]":
    """Return a future of the exit code of our child `pid`; reaps it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()
    descriptor = os.pidfd_open(pid)

    def on_exit() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if not future.done():
            future.set_result(code if code >= 0 else 128 - code)

    loop.add_reader(descriptor, on_exit)
    return future


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _pid_namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _signal_all(pids: Sequence[int] | set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
