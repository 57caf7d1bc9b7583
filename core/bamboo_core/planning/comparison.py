"""The ways to share lost work, compared by dry runs of whole steps over the job's network."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple, Protocol, TypeVar

from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item
from bamboo_core.model.program import Program
from bamboo_core.placement.plan import Cut
from bamboo_core.planning.requests import Bound, Comparison, PlanRequest, StepTime
from bamboo_core.scheduling.candidates import Candidate
from bamboo_core.scheduling.costs import Costs, transfers
from bamboo_core.scheduling.dry_run import dry_run
from bamboo_core.scheduling.item_bytes import wire_times
from bamboo_core.scheduling.schedule import Schedule

# Times the shortest step (measured on grids of up to 4 x 4): in the other variant, or by its dry
# run, a way that takes longer than that is not the shortest.
_OTHER_VARIANT, _DRY_RUN = 1.3, 1.08


class _IsSplit(Protocol):
    """A variant of a schedule."""

    @property
    def split(self) -> bool:
        """Whether it has I and W instead of B."""


_V = TypeVar("_V", bound=_IsSplit)


class Shortest(NamedTuple):
    """The shortest step."""

    shared: Candidate
    made: Schedule
    comparison: Comparison


def shortest(
    candidates: Iterable[Candidate],
    schedule: Callable[[Candidate], Schedule],
    again: Callable[[Candidate], Callable[[], Schedule] | None] = lambda _: None,
    length: Callable[[Schedule], float] = lambda made: made.end,
) -> Shortest:
    """Schedule one candidate after the other, and take the one whose step ends first.

    One that cannot end before the best is not scheduled: its busiest agent alone takes longer.
    again: what schedules a candidate in the variants that ``schedule`` has not tried, if there are
    any; length: of a step by its dry run, which ends a little earlier or later than the simulation
    that has scheduled it. Both are used for those that come near the best only; one that ``again``
    has not tried takes at most so long. Deterministic: of equal ones the first is taken.
    """
    made: list[tuple[Candidate, Schedule]] = []
    skipped: list[StepTime] = []
    least = inf
    for shared in candidates:
        if (bound := shared.estimate.bound) >= least:
            skipped.append(StepTime(shared.way, bound, Bound.LEAST))
            continue
        made.append((shared, schedule(shared)))
        least = min(least, made[-1][1].end)
    enough = _OTHER_VARIANT * least
    found = [(x, *_shorter(first, again(x), enough)) for x, first in made]
    least = min(x.end for _, x, _ in found)  # a step has at least one work map
    times = [
        StepTime(x.way, length(step) if step.end <= _DRY_RUN * least else step.end, bound)
        for x, step, bound in found
    ]
    best, taken = min(zip(found, times, strict=True), key=lambda x: x[1].step_s)
    others = [*skipped, *(x for x in times if x is not taken)]
    others.sort(key=lambda x: (x.step_s, x.way))
    return Shortest(best[0], best[1], Comparison(taken, tuple(others)))


def in_variants(
    candidates: Sequence[Candidate],
    variants: Sequence[_V],
    schedule: Callable[[Candidate, Sequence[_V]], Schedule],
    length: Callable[[Schedule], float] = lambda made: made.end,
) -> Shortest:
    """As :func:`shortest`, where a step may be scheduled with backwards split and fused.

    schedule: in the shortest of these variants. All are tried with the first candidate; the others
    begin with those that are split as its shortest one is.
    """
    first = schedule(candidates[0], variants)
    like = [x for x in variants if x.split is first.is_split]
    other = [x for x in variants if x not in like]
    return shortest(
        candidates,
        lambda x: first if x is candidates[0] else schedule(x, like),
        lambda x: (lambda: schedule(x, other)) if other and x is not candidates[0] else None,
        length,
    )


def _shorter(
    first: Schedule, again: Callable[[], Schedule] | None, enough: float
) -> tuple[Schedule, Bound]:
    """The first schedule, or the other if that ends earlier; it is made if the first ends soon
    enough."""
    if again is None:
        return first, Bound.NONE
    if first.end > enough:
        return first, Bound.MOST
    return min(first, again(), key=lambda x: x.end), Bound.NONE


def over_network(
    programs: Mapping[AgentId, Program],
    asked: PlanRequest,
    cut: Cut,
    held: Mapping[AgentId, Collection[Item]],
    costs: Costs,
) -> float:
    """The length of a step by the dry run of its programs over the network of the request. held:
    what agents have at its beginning; costs: of its tasks."""
    sums = dict(zip(cut, transfers(asked.costs, cut, asked.bytes_per_s), strict=False))
    return dry_run(
        programs,
        batch=asked.batch,
        layers=asked.layers,
        holdings=held,
        costs=costs,
        wire=wire_times(sums) if sums else None,
    ).end
