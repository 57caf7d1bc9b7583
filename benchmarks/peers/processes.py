"""Programs of the peers: each in a process group of its own, with a log."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parent.parent
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join(filter(None, [str(BENCHMARKS), os.environ.get("PYTHONPATH")])),
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NO_PROXY": "*",
    "no_proxy": "*",
    # A look-up of an address that fails takes 5 s otherwise.
    "RES_OPTIONS": "timeout:1 attempts:1",
    # Without it the store of torchrun 2.13 keeps old keys, and no restart succeeds.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}


class Program:
    """A running program."""

    def __init__(self, command: Sequence[str], log: Path, *, talks: bool = False) -> None:
        """talks: its standard output is for :meth:`line`, not for the log."""
        self.log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if talks else errors,
                stderr=errors,
                env={**os.environ, **ENVIRONMENT},
                start_new_session=True,
            )

    def line(self) -> str:
        """Wait for its next line. RuntimeError with the log if it ends before."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode().strip()
        if not line:
            raise RuntimeError(f"{self.log.name} has ended:\n{self.tail()}")
        return line

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def has_ended(self) -> bool:
        """Whether it runs no longer."""
        return self._process.poll() is not None

    def end(self) -> None:
        """SIGKILL the program and all of its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def tail(self) -> str:
        """The end of the log."""
        return self.log.read_text(errors="replace")[-2000:]
