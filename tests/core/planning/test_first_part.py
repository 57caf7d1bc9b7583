"""The first part of a plan is made in the time that a comparison of variants is worth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.core.arbiter.fleet import spec
from tests.core.planning.test_planner import HALVES, decide, request_of

from bamboo_core.planning import planner
from bamboo_core.planning.requests import PlanRequest
from bamboo_core.protocol.messages import LayerCost
from bamboo_core.scheduling import inflight
from bamboo_core.scheduling.costs import Costs
from bamboo_core.scheduling.schedule import Schedule

DEAR = replace(HALVES, input_gradient_s=2.0, weight_gradient_s=2.0)


def interrupted(cost: LayerCost, after: int) -> PlanRequest:
    """The request after one of four agents has died in a step."""
    request = request_of(spec(pipelines=2, stages=2), kill="a3", after=after)
    return replace(request, costs=(cost,) * 4, memory_bytes=0)


def built(request: PlanRequest, *, enough: float) -> list[Schedule]:
    """The schedules that are made before agents get their first programs."""
    found: list[Schedule] = []
    original = planner.schedule.build

    def build(*arguments: Any, **options: Any) -> Schedule:
        found.append(original(*arguments, **options))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner.schedule, "build", build)
        patch.setattr(inflight, "WORTH", enough)
        decide(request)
    return found


def test_a_split_step_that_no_other_can_undercut_is_taken_at_once() -> None:
    lone = 0
    for after in range(60, 200, 10):
        request = interrupted(HALVES, after)
        tried, every = built(request, enough=1.03), built(request, enough=0.0)
        assert min(x.end for x in tried) <= 1.03 * min(x.end for x in every)
        lone += len(tried) < len(every)
    assert lone


def test_dear_halves_are_compared_with_whole_backwards() -> None:
    with_work = 0
    for after in range(60, 200, 10):
        tried = built(interrupted(DEAR, after), enough=1.03)
        if any(x.busiest for x in tried):
            assert {x.is_split for x in tried} == {False, True}
            with_work += 1
    assert with_work


def test_the_price_of_the_split_is_that_of_its_dearest_layer() -> None:
    assert Costs.measured((HALVES, DEAR)).price_of_split == 2.0
    assert Costs.measured((replace(HALVES, weight_gradient_s=0.5),)).price_of_split == 1.0
    assert Costs((1.0,), (0.0,), (1.0,), (1.0,)).price_of_split == 1.0


def test_the_busiest_agent_of_a_schedule() -> None:
    for found in built(interrupted(HALVES, 100), enough=0.0):
        assert 0 < found.busiest <= found.length
