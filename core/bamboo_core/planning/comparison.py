"""The ways to share lost work, compared by dry runs of whole steps over the job's network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from bamboo_core.planning.requests import Comparison, StepTime
from bamboo_core.scheduling.candidates import Candidate
from bamboo_core.scheduling.schedule import Schedule


class Shortest(NamedTuple):
    """The shortest step."""

    shared: Candidate
    made: Schedule
    comparison: Comparison


def shortest(
    candidates: Iterable[Candidate], schedule: Callable[[Candidate], Schedule]
) -> Shortest:
    """Schedule one candidate after the other, and take the one whose step ends first.

    One that cannot end before the best is not scheduled: its busiest agent alone takes longer.
    Deterministic: of equal ones the first is taken.
    """
    best: tuple[Candidate, Schedule] | None = None
    times: list[StepTime] = []
    for shared in candidates:
        bound = shared.estimate.bound
        if best is not None and bound >= best[1].end:
            times.append(StepTime(shared.way, bound, True))
            continue
        made = schedule(shared)
        times.append(StepTime(shared.way, made.end, False))
        if best is None or made.end < best[1].end:
            best = shared, made
    assert best is not None, "a step has at least one work map"
    taken = StepTime(best[0].way, best[1].end, False)
    others = sorted((x for x in times if x.way != taken.way), key=lambda x: (x.step_s, x.way))
    return Shortest(*best, Comparison(taken, tuple(others)))
