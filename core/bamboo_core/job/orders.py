"""Answers to the arbiter's orders of plans. Pure and slow: a shell runs it off its event loop.

Mode Auto chooses here, since the first estimates of a grid take up to 8 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from bamboo_core.arbiter_state.events import ComputePlan, Planned
from bamboo_core.planning import planner
from bamboo_core.planning.planner import IsWanted
from bamboo_core.planning.requests import PlanRequest, PlanResult
from bamboo_core.protection import facts
from bamboo_core.protection.choice import Verdict, choose

Planner = Callable[[PlanRequest, IsWanted], Iterator[PlanResult]]


def answers(
    order: ComputePlan,
    is_wanted: IsWanted = lambda: True,
    *,
    plan: Planner = planner.compute,
) -> Iterator[Planned]:
    """Each answer as soon as it is ready. is_wanted: as for the planner."""
    request, verdict = order.request, None
    if not is_wanted():
        return
    if order.mode is not None:
        verdict = _choose(request, order.mode)
        redundancy = replace(request.spec.redundancy, mode=verdict.mode)
        request = replace(request, spec=replace(request.spec, redundancy=redundancy))
    for result in plan(request, is_wanted):
        yield Planned(order.id, result, verdict)
    if verdict is not None:  # agents have their programs: nobody waits now
        verdict.facts.steps.prepare(is_wanted)


def _choose(request: PlanRequest, mode: facts.OpenMode) -> Verdict:
    costs = request.costs or facts.even_costs(request.layers)
    given = request.spec, costs, mode.seen
    return choose(facts.gather(*given, pipelines=mode.pipelines, batch=request.batch))
