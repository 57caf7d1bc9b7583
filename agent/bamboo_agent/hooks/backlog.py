"""Records on their way to a hook, and when a hook that has ended is started again. Both are pure.

A slow hook loses the oldest records that it has not got, so the memory is bounded. A record that a
process has ended with twice is given up, so that it cannot end every process.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from bamboo_agent.hooks.record import StepRecord

MOST = 1000
"""Records that wait for a hook."""
WINDOW = 32
"""Records that its process may hold at once."""
MOST_TRIES = 2
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
STEADY_S = 600.0
"""A process that has lived so long was well: the next pause is the first one again."""


@dataclass
class Backlog:
    """Records that the hook has not been told, oldest first. dropped: those that it never will."""

    dropped: int = 0
    _sent: deque[StepRecord] = field(default_factory=deque)
    _waiting: deque[StepRecord] = field(default_factory=deque)
    _tries: int = 0  # processes that have ended with the oldest record

    def __len__(self) -> int:
        return len(self._sent) + len(self._waiting)

    @property
    def is_in_flight(self) -> bool:
        """Whether the process has a record that it has not answered."""
        return bool(self._sent)

    @property
    def first(self) -> StepRecord | None:
        """The record that the process has, or would get next."""
        return next(iter(self._sent), None) or next(iter(self._waiting), None)

    def add(self, record: StepRecord) -> None:
        """Queue a record. If there is no room, the oldest that has not been sent is dropped."""
        self._waiting.append(record)
        if len(self) > MOST:
            self._waiting.popleft()
            self.dropped += 1

    def take(self) -> list[StepRecord]:
        """Records to send now."""
        count = min(len(self._waiting), WINDOW - len(self._sent))
        taken = [self._waiting.popleft() for _ in range(count)]
        self._sent += taken
        return taken

    def told(self) -> None:
        """The process has handled the oldest record that was sent."""
        if self._sent:
            self._sent.popleft()
            self._tries = 0

    def restart(self) -> None:
        """The process has ended: what it has not answered is sent again."""
        if self._sent:
            self._tries += 1
            if self._tries >= MOST_TRIES:
                self.told()
                self.dropped += 1
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()


@dataclass
class Restarts:
    """When a hook's process may be started. Times are in seconds of one monotonic clock."""

    failures: int = 0  # in a row
    _next_at: float = 0.0

    def may(self, now: float) -> bool:
        """Whether it may be started now."""
        return now >= self._next_at

    def failed(self, now: float, lived_s: float) -> None:
        """A process has ended that should not have. The pause doubles each time."""
        self.failures = 1 if lived_s >= STEADY_S else self.failures + 1
        pause_s = FIRST_PAUSE_S * 2.0 ** min(self.failures - 1, 20)
        self._next_at = now + min(pause_s, LONGEST_PAUSE_S)
