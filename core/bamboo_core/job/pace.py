"""How fast a job comes nearer to its end, and so how far away that is. Pure.

The clock runs while the job trains, recovers or waits for agents, so pauses and steps that are
computed again count. It stands while the job is suspended or has not started.
"""

from __future__ import annotations

from dataclasses import dataclass

from bamboo_core.api.totals import Times, TimeState

WINDOW_S = 1800.0
"""The pace is measured over one to two windows, once the job is old enough."""
LEAST_S, LEAST_STEPS = 60.0, 3
"""Over less, the pace is not known."""

_COUNTED = (TimeState.TRAINING, TimeState.RECOVERING, TimeState.WAITING_FOR_CAPACITY)


@dataclass(frozen=True)
class Mark:
    """So many steps were committed at this time of the job's clock."""

    clock_s: float
    step: int


@dataclass(frozen=True)
class Pace:
    """The marks from which the pace is measured, oldest first: at most two."""

    marks: tuple[Mark, ...] = ()

    def seen(self, now: Mark) -> Pace:
        """With what is seen now. A restore to before all marks begins anew."""
        if now.step < 1:
            return Pace()
        if not self.marks or now.step < self.marks[0].step or now.clock_s < self.marks[-1].clock_s:
            return Pace((now,))
        newest = self.marks[-1]
        is_due = now.clock_s - newest.clock_s >= WINDOW_S
        return Pace((newest, now)) if is_due and now.step - newest.step >= LEAST_STEPS else self

    def left_s(self, now: Mark, steps: int) -> float | None:
        """Seconds until all steps are committed, at this pace. None: it is not known yet."""
        if now.step >= steps:
            return 0.0
        if not self.marks:
            return None
        spent_s, done = now.clock_s - self.marks[0].clock_s, now.step - self.marks[0].step
        if spent_s < LEAST_S or done < LEAST_STEPS:
            return None
        return (steps - now.step) * spent_s / done


def clock_s(times: Times, now: float) -> float:
    """The job's clock: seconds of training, with all pauses in it."""
    spent = times.until(now)
    return sum(spent.get(state, 0.0) for state in _COUNTED)
