"""The rule by which a deadline forgives a pause of the process that keeps it.

A process that was frozen, swapped out or busy learns late what others said in time. If it compared
their silence with real time, it would give up healthy agents for its own pause. So arbiter and
supervisor measure the silence of others, and every deadline that others must keep, in attentive
time: while a process stands still, or has not read what others said, its attentive time hardly
moves.

These deadlines are real time, since somebody else keeps them and does not wait for this process:
the end of a departing pod (grace period, notice) and the expiry of the leader's Lease.
"""

from __future__ import annotations

from math import inf

MOST_BEHIND_S = 10.0
"""A process that is always busy must notice silence, too: 20 times later than others. And what it
reads for so long without having read everything counts."""


class PatientClock:
    """Attentive time in seconds: real time, of which each pause counts as at most ``most_s``.

    Read it at every event. ``most_s`` should be several times the interval between two ticks, so
    that attentive and real time agree while the process runs.
    """

    def __init__(self, most_s: float) -> None:
        """ValueError if ``most_s`` is not positive."""
        if most_s <= 0:
            raise ValueError(f"most_s is {most_s}; it must be positive")
        self.most_s = most_s
        self._last: float | None = None  # the newest instant at which everything had been read
        self._time = 0.0  # attentive time then
        self._shown = -inf

    def read(self, now: float, heard_at: float = inf) -> float:
        """Attentive time at ``now``, in seconds of the caller's clock. It never goes back.

        heard_at: the newest instant at which everything that others had said was read; by default
        ``now``. From one such instant to the next, and from the newest one to ``now``, time
        advances by at most ``most_s``. One is assumed after MOST_BEHIND_S. The first reading is
        ``now`` itself.
        """
        heard_at = min(heard_at, now)
        if self._last is None:
            self._last = self._time = now
        elif now - max(heard_at, self._last) > MOST_BEHIND_S:
            heard_at = now
        if heard_at > self._last:
            self._time += min(heard_at - self._last, self.most_s)
            self._last = heard_at
        self._last = min(self._last, now)
        self._shown = max(self._shown, self._time + min(now - self._last, self.most_s))
        return self._shown

    def skip(self, now: float) -> None:
        """The time up to ``now`` does not count: what others said meanwhile was not kept."""
        if self._last is not None:
            self._last, self._time = max(self._last, now), self._shown

    def copy(self) -> PatientClock:
        """An independent clock that shows the same time."""
        new = PatientClock(self.most_s)
        new._last, new._time, new._shown = self._last, self._time, self._shown
        return new


class Hearing:
    """When a process had last read everything that others had said to it."""

    def __init__(self) -> None:
        self._at: float | None = None

    def caught_up(self, now: float) -> None:
        """Nothing waits to be read."""
        self._at = now

    def at(self, now: float) -> float:
        """The newest such instant. One is assumed at the first call."""
        if self._at is None:
            self._at = now
        return self._at


class Backlog:
    """Whether words wait to be read that may refute what has been read.

    What one agent says of another may be read before the other's own words. If the process has
    stood still, both have waited.
    """

    def __init__(self, most_s: float) -> None:
        """most_s: a process that has read everything so many seconds ago is not behind."""
        self.most_s = most_s
        self._reads_since: float | None = None  # while it is behind

    def is_behind(self, now: float, heard_at: float, *, is_word: bool) -> bool:
        """Whether to judge later. Times as in :meth:`PatientClock.read`; is_word: something is
        being read now. A process that is always busy is not behind: it has read for MOST_BEHIND_S.
        """
        if now - heard_at <= self.most_s:
            self._reads_since = None
            return False
        if is_word and self._reads_since is None:
            self._reads_since = now
        return self._reads_since is None or now - self._reads_since <= MOST_BEHIND_S
