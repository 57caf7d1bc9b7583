"""The rule by which a deadline forgives a pause of the process that keeps it.

A process that was frozen, swapped out or busy learns late what others said in time. If it compared
their silence with real time, it would give up healthy agents for its own pause. So arbiter and
supervisor measure the silence of others, and every deadline that others must keep, in attentive
time: while a process stands still, its attentive time hardly moves.

These deadlines are real time, since somebody else keeps them and does not wait for this process:
the end of a departing pod (grace period, notice) and the expiry of the leader's Lease.
"""

from __future__ import annotations


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
        self._last: float | None = None
        self._time = 0.0

    def read(self, now: float) -> float:
        """Attentive time at ``now``, in seconds of the caller's clock. It never goes back.

        The first reading is ``now`` itself. Each later one advances by the time since the reading
        before, but by at most ``most_s``, and by nothing if ``now`` has gone back.
        """
        if self._last is None:
            self._time = now
        else:
            self._time += min(max(now - self._last, 0.0), self.most_s)
        self._last = now
        return self._time

    def copy(self) -> PatientClock:
        """An independent clock that shows the same time."""
        new = PatientClock(self.most_s)
        new._last, new._time = self._last, self._time
        return new
