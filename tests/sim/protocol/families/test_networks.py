"""Plans change by what agents say of the network, and the bits do not."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from math import inf
from typing import Any

import pytest

from bamboo_core.planning.requests import Continuations, Decision, PlanRequest
from bamboo_sim.protocol.control import operators
from bamboo_sim.protocol.control.plans import Plans
from bamboo_sim.protocol.exploration.time_budget import MEASURED, SPLIT
from bamboo_sim.protocol.families.networks import networks
from bamboo_sim.protocol.histories.branching import Part
from bamboo_sim.protocol.histories.history import History
from bamboo_sim.protocol.parts.meters import Meter, measured


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[PlanRequest]:
    """The requests to the planner."""
    found: list[PlanRequest] = []
    compute = operators.Operators._compute

    def noting(self: operators.Operators, request: PlanRequest) -> Any:
        found.append(request)
        return compute(self, request)

    monkeypatch.setattr(operators.Operators, "_compute", noting)
    return found


def test_programs_follow_the_measured_network_and_the_bits_do_not(
    requests: list[PlanRequest],
) -> None:
    """``finish`` compares all bits with the undisturbed run. Without the figure the same requests
    have other programs."""
    ends = set()
    for job in (MEASURED, SPLIT):
        for _, world in islice(networks(History(job, 1), Part(17, 1)), 30):
            ends.add(world.finish())
    assert ends == {"complete"}
    told = [x for x in requests if x.goodput < inf]
    assert len({x.goodput for x in told}) > 1
    plans = Plans()
    changed = [x for x in told if programs(plans, x) != programs(plans, replace(x, goodput=inf))]
    assert changed


def programs(plans: Plans, request: PlanRequest) -> list[Any]:
    """The directives and continuations of all agents."""
    parts = plans.answer(request)
    return [x.directives for x in parts if isinstance(x, Decision | Continuations)]


@pytest.mark.parametrize("meter", Meter)
def test_what_an_agent_says_depends_on_the_history_alone(meter: Meter) -> None:
    agents = SPLIT.agents
    said = [measured(meter, 1, a, step) for a in agents for step in range(9)]
    again = [measured(meter, 1, a, step) for a in agents for step in range(9)]
    assert repr(said) == repr(again)  # nan differs from itself
    assert (None in said) is (meter is Meter.LIES)
