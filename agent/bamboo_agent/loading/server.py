"""A process without threads and without a GPU that forks the processes that read samples.

The worker forks it before it has threads or a GPU, so torch is there at once and its memory is
shared. If it has died, the worker starts another one as a program of its own. It runs no code of
the user's.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from bamboo_agent.ipc.parent import die_with
from bamboo_agent.loading import reader
from bamboo_agent.loading.progress import ReaderProgress

_MOST_MESSAGE = 4096
_FIRST = 3  # descriptor behind the standard ones


class ReaderServer:
    """The worker's end. OSError, at any call: the process has gone; make another one."""

    def __init__(self, control: socket.socket, pid: int) -> None:
        self._control, self._pid = control, pid
        control.setblocking(False)

    def fileno(self) -> int:
        return self._control.fileno()

    def start(self, number: int, reading: socket.socket, progress: int, spec: int) -> None:
        """Fork a process that reads, as :func:`bamboo_agent.loading.reader.run` says. number: how
        it is called from now on."""
        self._say({"start": number}, (reading.fileno(), progress, spec))

    def kill(self, number: int) -> None:
        """SIGKILL. No-op if it has ended."""
        self._say({"kill": number})

    def _say(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        socket.send_fds(self._control, [json.dumps(message).encode()], descriptors)

    def receive(self) -> tuple[int, int] | None:
        """A process that has ended, and its exit code, below 0 after a signal; None: no other."""
        try:
            message = self._control.recv(_MOST_MESSAGE)
        except BlockingIOError:
            return None
        if not message:
            raise ConnectionResetError("the process that forks readers has ended")
        number, code = json.loads(message)
        return number, code

    def close(self) -> None:
        """End it, and all that it has forked."""
        self._control.close()
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def fork() -> ReaderServer:
    """Fork it from this process, which has neither threads of its own nor used a GPU."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _run(theirs, parent)
    theirs.close()
    return ReaderServer(ours, pid)


def spawn(module: str) -> ReaderServer:
    """Start it as a program: ``python -m MODULE --fd N``, which calls :func:`serve`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.set_inheritable(theirs.fileno(), True)
    launch = "bamboo_agent.supervisor.launch"
    command = ["-m", launch, str(os.getpid()), module, "--fd", str(theirs.fileno())]
    no_input = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    pid = os.posix_spawn(
        sys.executable, [sys.executable, *command], os.environ, file_actions=[no_input]
    )
    theirs.close()
    return ReaderServer(ours, pid)


def _run(control: socket.socket, parent: int) -> NoReturn:
    """The child of a worker: nothing of what the worker has open may stay open here."""
    code = 1
    try:
        die_with(parent)
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd >= _FIRST and fd not in (nothing, control.fileno()):
                with contextlib.suppress(OSError):  # that of the listing is closed already
                    os.fstat(fd)
                    os.dup2(nothing, fd)
        serve(control)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def serve(control: socket.socket) -> None:
    """Fork on request until the worker has gone. Children end with this process."""
    _Server(control).run()


class _Server:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, tuple[int, int]] = {}  # number -> pid, its descriptor
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is not None:
                    self._ended(key.data)
                elif not self._hear():
                    return

    def _hear(self) -> bool:
        """False: the worker has gone."""
        message, descriptors, _, _ = socket.recv_fds(self._control, _MOST_MESSAGE, 4)
        if not message:
            return False
        match json.loads(message):
            case {"start": number}:
                self._start(number, descriptors)
            case {"kill": number} if number in self._children:
                os.kill(self._children[number][0], signal.SIGKILL)
        return True

    def _start(self, number: int, descriptors: Sequence[int]) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._selector.close()
            self._control.close()
            _read(descriptors, parent)
        for fd in descriptors:
            os.close(fd)
        self._children[number] = pid, os.pidfd_open(pid)
        self._selector.register(self._children[number][1], selectors.EVENT_READ, number)

    def _ended(self, number: int) -> None:
        pid, descriptor = self._children.pop(number)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self._control.send(json.dumps([number, code]).encode())


def _read(descriptors: Sequence[int], parent: int) -> NoReturn:
    code = 1
    try:
        control, progress, spec = descriptors
        reader.run(socket.socket(fileno=control), ReaderProgress(progress), spec, parent)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
