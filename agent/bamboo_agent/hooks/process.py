"""A hook's process as the supervisor sees it. No call waits for it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import Any, Protocol

from bamboo_agent.hooks.confinement import environment
from bamboo_agent.ipc.pipe import Pipe, PipeClosedError

_MODULE = "bamboo_agent.hooks.host"
_LAUNCH = "bamboo_agent.supervisor.launch"
_MOST_READ = 1 << 18
_END_S = 1.0


class Running(Protocol):
    """What a hook needs of its process."""

    def send(self, message: bytes) -> None:
        """Queue a message. Nothing happens if the process has gone."""

    def receive(self) -> list[bytes]:
        """Return what it has said since the last call."""

    def printed(self) -> bytes:
        """Return what it has printed since the last call, up to some bytes. More waits."""

    @property
    def is_open(self) -> bool:
        """Whether it can still be told something, as far as is known."""

    def ended(self) -> int | None:
        """Its exit code, below 0 after a signal; None while it runs."""

    def kill(self) -> None:
        """SIGKILL to it and to what it has started."""

    def close(self) -> None:
        """Free what this process holds of it."""


class HookProcess:
    """``python -m bamboo_agent.hooks.host``, in a process group of its own.

    It ends with this process. OSError if it cannot be started.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._pipe, self._is_open = Pipe(ours), True
        self._output, output = os.pipe()
        os.set_blocking(self._output, False)
        fd = theirs.fileno()
        try:
            self._process: subprocess.Popen[Any] = subprocess.Popen(
                [
                    *(sys.executable, "-m", _LAUNCH, str(os.getpid()), _MODULE),
                    *("--fd", str(fd)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(os.environ),
                pass_fds=[fd],
                start_new_session=True,
            )
        except OSError:
            self._pipe.close()
            os.close(self._output)
            raise
        finally:
            theirs.close()
            os.close(output)

    def send(self, message: bytes) -> None:
        """See :class:`Running`."""
        with contextlib.suppress(PipeClosedError):
            self._pipe.send(message)

    def receive(self) -> list[bytes]:
        """See :class:`Running`."""
        if not self._is_open:
            return []
        try:
            with contextlib.suppress(PipeClosedError):  # what it has said is read first
                self._pipe.flush()
            return self._pipe.receive()
        except PipeClosedError:
            self._is_open = False
            return []

    @property
    def is_open(self) -> bool:
        """See :class:`Running`."""
        return self._is_open

    def printed(self) -> bytes:
        """See :class:`Running`."""
        with contextlib.suppress(BlockingIOError):
            return os.read(self._output, _MOST_READ)
        return b""

    def ended(self) -> int | None:
        """See :class:`Running`."""
        return self._process.poll()

    def kill(self) -> None:
        """See :class:`Running`."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """See :class:`Running`. It has ended, or is killed: the kernel needs a moment."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._pipe.close()
        os.close(self._output)
