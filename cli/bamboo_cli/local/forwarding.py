"""Passes the signals that end this process on to a program that it has started."""

from __future__ import annotations

import signal
import subprocess
import time
from types import FrameType
from typing import Any, Self

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
APART_S = 1.0
"""Signals that are less than this apart, in seconds, are one: timeout(1) sends each of them to the
process and to its group."""


class Signals:
    """Within the block, signals go to the program and do not end this process. The first is passed
    on as it is, and each further one as SIGTERM. Signals that were ignored before stay so.

    ``first``: the number of the first signal; None: there was none.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """process: the program."""
        self.first: int | None = None
        self._process, self._counted_s = process, 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in NUMBERS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as by nohup(1)
                self._before[number] = signal.signal(number, self._pass_on)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.first is None:
            self.first = number
        elif now - self._counted_s < APART_S:
            return
        else:
            number = signal.SIGTERM
        self._counted_s = now
        self._process.send_signal(number)
