"""A random sample of what could be tried: how long it goes on, and the least that it must do.

A sample without the least proves nothing, so it fails. Its time counts from its first round, not
from the start of its process: a slow machine gets as many seconds of rounds as a fast one. It goes
on beyond its time until it has done the least, but not for ever.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

PATIENCE_S = 600.0
"""How much longer than its time a sample goes on to do the least, in seconds."""


class TooSmallError(Exception):
    """A sample has not done the least."""


@dataclass
class Sample:
    """least: what it must have done, and how often at least. advice: what to do if it has not."""

    name: str
    least: Mapping[str, int]
    seconds: float
    advice: str = "run it again on a machine with less load"
    patience_s: float = PATIENCE_S
    clock: Callable[[], float] = time.monotonic
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._made = self.clock()
        self._began: float | None = None

    def begin(self) -> None:
        """The first round begins: the time counts from now on. Later calls change nothing."""
        if self._began is None:
            self._began = self.clock()

    def add(self, what: str, times: int = 1) -> None:
        """Count what was done."""
        self.done[what] += times

    @property
    def missing(self) -> dict[str, int]:
        """Kinds of work of which too little is done -> how often each must be."""
        return {what: least for what, least in self.least.items() if self.done[what] < least}

    @property
    def is_over(self) -> bool:
        """Whether no further round is to begin."""
        now = self.clock()
        if now >= self._made + self.seconds + self.patience_s:
            return True
        is_late = self._began is not None and now >= self._began + self.seconds
        return is_late and not self.missing

    def check(self) -> None:
        """TooSmallError if it has done less than the least."""
        if not self.missing:
            return
        lacks = [f"{self.done[what]} {what} (at least {n})" for what, n in self.missing.items()]
        raise TooSmallError(
            f"{self.name} proves too little: it has done {' and '.join(lacks)} in"
            f" {self.clock() - self._made:.0f} s; {self.advice}"
        )
