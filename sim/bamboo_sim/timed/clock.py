"""Virtual time: calls in the order of their times; equal times in the order in which they came.

Declared times are often multiples of each other, so many calls fall on one moment. What is marked
``last`` is called after all others of that moment.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

Call = Callable[[], None]

_DIGITS = 9  # nearer times are one moment: sums of equal times differ by rounding errors


class Clock:
    """The event queue. ``now``: seconds since the start."""

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[tuple[float, bool, int, float, Call]] = []
        self._count = 0

    def after(self, seconds: float, call: Call, *, last: bool = False) -> None:
        """Call it so many seconds from now."""
        self.at(self.now + seconds, call, last=last)

    def at(self, time: float, call: Call, *, last: bool = False) -> None:
        """Call it at that time. ValueError if it has passed."""
        if time < self.now:
            raise ValueError(f"{time} s has passed: it is {self.now} s")
        self._count += 1
        heappush(self._calls, (round(time, _DIGITS), last, self._count, time, call))

    def next(self) -> bool:
        """Go on to the next call; False if there is none."""
        if not self._calls:
            return False
        *_, time, call = heappop(self._calls)
        self.now = max(self.now, time)
        call()
        return True
