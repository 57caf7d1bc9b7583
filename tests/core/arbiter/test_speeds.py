"""Agents that compute slowly: plans weigh them, and lasting stragglers are replaced."""

from __future__ import annotations

import pytest

from bamboo_core.api.events import EventReason, RestoreCause
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import RecoveryPolicy
from bamboo_core.arbiter import endings
from bamboo_core.arbiter_state import events as a
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import CommitRecord, LayerCost, Progress

from .fleet import Fleet, spec

COST = LayerCost(1.0, 2.0, 1, 1, input_gradient_s=1.0, weight_gradient_s=1.0)
A0, A1 = AgentId("a0"), AgentId("a1")


def running(policy: RecoveryPolicy = RecoveryPolicy.DIFFUSE) -> Fleet:
    job = spec(pipelines=2, stages=2, steps=10_000)
    job.__dict__["recovery"] = policy
    fleet = Fleet(job, layers=2)
    for n in range(4):
        fleet.add(f"a{n}", f"z{n % 2}", costs=(COST, COST))
    fleet.tell(a.DesiredState(2))
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    fleet.run_wire()
    return fleet


def train(fleet: Fleet, steps: int, slow: str, *, step_s: float = 1.0, factor: float = 4.0) -> None:
    """Steps in which every agent is busy as expected, but ``slow`` takes longer."""
    fence = fleet.arbiter.fence
    first = max(fleet.arbiter.status().progress.committed, 0) + 1
    for step in range(first, first + steps):
        fleet.idle(step_s)
        for name in sorted(fleet.agents):
            plan = fleet.arbiter.state.speeds
            busy = plan._expected[name].at(step) if name in plan._expected else 1.0
            busy *= factor if name == slow else 1.0
            fleet.receive(name, Progress(CommitRecord(step), fence, step_s, busy))
        if fleet.arbiter.fence != fence:
            return


def slow_ones(fleet: Fleet) -> list[tuple[AgentId, ...]]:
    return [r.agents for r in fleet.records if r.reason is EventReason.AGENT_SLOW]


@pytest.mark.parametrize("policy", [RecoveryPolicy.DIFFUSE, RecoveryPolicy.SHADOW])
def test_a_slow_agent_gets_less_work_where_work_can_move(policy: RecoveryPolicy) -> None:
    fleet = running(policy)
    before = fleet.arbiter.fence
    train(fleet, 70, "a1")
    assert (fleet.arbiter.fence > before) is (policy is RecoveryPolicy.DIFFUSE)
    if policy is RecoveryPolicy.DIFFUSE:
        fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
        assert fleet.requests[-1].speeds.keys() == {A1}
        assert fleet.requests[-1].speeds[A1] <= 0.5


def test_plans_for_speed_are_rare() -> None:
    fleet = running()
    before = fleet.arbiter.fence
    train(fleet, 50, "a1")
    assert fleet.arbiter.fence == before


def test_a_lasting_straggler_is_replaced_when_there_is_another() -> None:
    fleet = running(RecoveryPolicy.SHADOW)
    train(fleet, 60, "a1")
    assert slow_ones(fleet) == [(A1,)]
    (said,) = (r.message for r in fleet.records if r.reason is EventReason.AGENT_SLOW)
    assert said == "a1 computes at less than half the usual speed: it is to be replaced"
    assert fleet.arbiter.status().slow == (A1,)
    assert A1 in fleet.arbiter.status().members
    fleet.add("b1", "z1", costs=(COST, COST))
    fleet.idle(2.0)
    fleet.until(lambda: A1 in fleet.dismissed)
    assert "b1" in fleet.arbiter.status().members
    assert A1 not in fleet.arbiter.status().members
    assert fleet.arbiter.status().slow == ()
    assert fleet.arbiter.status().outcome in (None, Outcome.COMPLETE)


def test_stragglers_are_replaced_one_after_the_other() -> None:
    """Else wrong costs of a stage would replace agent after agent."""
    fleet = running(RecoveryPolicy.SHADOW)
    train(fleet, 60, "a1")
    train(fleet, 60, "a0")
    assert slow_ones(fleet) == [(A1,)]
    train(fleet, 600, "a0")
    assert slow_ones(fleet) == [(A1,), (A0,)]


def test_equal_agents_change_nothing() -> None:
    fleet = running()
    before = fleet.arbiter.fence
    train(fleet, 100, "a1", factor=1.1)
    assert fleet.arbiter.fence == before
    assert slow_ones(fleet) == []


def test_a_slow_agent_stays_when_another_is_lost() -> None:
    """It leaves only for an agent that takes its place."""
    fleet = running(RecoveryPolicy.SHADOW)
    train(fleet, 60, "a1")
    assert slow_ones(fleet) == [(A1,)]
    fleet.kill("a2")
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    plan = fleet.arbiter.status().plan
    assert plan is not None
    assert A1 in plan.live


def test_a_slow_agent_is_better_than_none_after_a_restore() -> None:
    fleet = running(RecoveryPolicy.SHADOW)
    train(fleet, 60, "a1")
    fleet.arbiter.state.membership.slow.add(A0)
    endings.restore(fleet.arbiter.state, RestoreCause.LAYER_LOST, "a test", fleet.now)
    assert {A0, A1} <= fleet.arbiter.state.membership.usable()


def test_a_slow_agent_that_is_fast_again_is_not_slow() -> None:
    fleet = running(RecoveryPolicy.SHADOW)
    train(fleet, 60, "a1")
    assert fleet.arbiter.status().slow == (A1,)
    train(fleet, 60, "nobody")
    assert fleet.arbiter.status().slow == ()
