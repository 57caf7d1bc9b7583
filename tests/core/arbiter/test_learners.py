"""Newcomers that get their copies while the others train."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.arbiter_state import events as a
from bamboo_core.model.ids import AgentId
from bamboo_core.model.program import Op
from bamboo_core.planning import requests
from bamboo_core.protocol.messages import Directive, LayerCost, Notice

from .fleet import Fleet, is_running, newest, plan, spec

N1, N2 = AgentId("n1"), AgentId("n2")
BIG = (LayerCost(0.0, 0.0, parameter_bytes=1 << 30, output_bytes=0),) * 2


def degraded(catch_up_above_bytes: float = 256e6, steps: int = 60) -> Fleet:
    """2 x 2 that has lost one agent, with large layers."""
    timing = a.Timing(catch_up_above_bytes=catch_up_above_bytes)
    fleet = Fleet(spec(pipelines=2, stages=2, steps=steps, every=0), layers=2, timing=timing)
    for i in range(4):
        fleet.add(f"a{i}", f"z{i % 2}", costs=BIG)
    fleet.tell(a.DesiredState(2))
    fleet.until(lambda: newest(fleet) >= 1)
    fleet.kill("a1")
    fleet.until(lambda: is_running(fleet))
    return fleet


def join(fleet: Fleet, *names: str) -> None:
    for name in names:
        fleet.add(name, "z1", costs=BIG)
    epoch = plan(fleet).fence.epoch
    fleet.idle(1.5)
    fleet.until(lambda: is_running(fleet) and plan(fleet).fence.epoch > epoch)


def test_training_does_not_wait_for_a_learner() -> None:
    fleet = degraded()
    join(fleet, "n1")
    assert set(plan(fleet).learners) == {N1}
    assert N1 in plan(fleet).members
    assert N1 not in plan(fleet).live
    decision = next(p for p in reversed(fleet.plans) if isinstance(p, requests.Decision))
    rest = next(p for p in reversed(fleet.plans) if isinstance(p, requests.Continuations))
    for agent, directive in decision.directives.items():
        continuation = rest.directives[agent]
        for program in (directive.resume, continuation.steady, continuation.final):
            assert not any(x.op is Op.RECV and x.peer == N1 for x in program), agent
            assert not any(N1 in x.agents for x in program if x.op is Op.COMMIT), agent


def test_it_gets_its_seat_when_it_keeps_up() -> None:
    fleet = degraded()
    join(fleet, "n1")
    learning = plan(fleet)
    fleet.until(lambda: plan(fleet) is not learning)
    assert N1 in plan(fleet).live
    entry = next(p for p in reversed(fleet.plans) if isinstance(p, requests.Decision))
    assert entry.copies == 0
    assert any("copies are complete on n1" in r.message for r in fleet.records)
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert fleet.arbiter.durable.attempt == 0


@pytest.mark.parametrize("after", range(0, 60, 7))
def test_the_death_of_a_learner_does_not_stop_training(after: int) -> None:
    fleet = degraded()
    join(fleet, "n1")
    learning = plan(fleet)
    for _ in range(after):
        fleet.step()
    assert plan(fleet) is learning, "it has entered: its death would be another loss"
    assert is_running(fleet)
    fence = fleet.arbiter.fence
    fleet.kill("n1")
    fleet.run()
    assert fleet.arbiter.fence == fence
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_later_newcomers_wait_until_the_first_learners_have_joined() -> None:
    fleet = degraded()
    fleet.kill("a3")
    fleet.until(lambda: is_running(fleet))
    join(fleet, "n1")
    learning = plan(fleet)
    fleet.add("n2", "z1", costs=BIG)
    fleet.now += 2.0
    fleet.tell(a.Tick())
    assert plan(fleet) is learning
    fleet.until(lambda: N1 in plan(fleet).live)
    assert any(r.message.endswith("copies are complete on n1") for r in fleet.records)


def test_a_learner_that_must_leave_is_let_go() -> None:
    fleet = degraded()
    join(fleet, "n1")
    fleet.receive(N1, Notice(1.0, "SIGTERM"))
    fleet.until(lambda: N1 in fleet.dismissed)
    assert not any(r.reason is EventReason.AGENT_LOST and "n1" in r.message for r in fleet.records)


def test_small_layers_are_copied_at_the_entry() -> None:
    fleet = degraded(inf)
    join(fleet, "n1")
    assert not plan(fleet).learners
    assert N1 in plan(fleet).live


def test_training_waits_in_the_end_for_a_learner_that_never_keeps_up() -> None:
    """Every time it has caught up, a loss comes first; the fourth time all wait for its copies."""
    fleet = degraded(-1.0, steps=300)
    for round_ in range(4):
        join(fleet, f"x{round_}")
        is_learning = bool(plan(fleet).learners)
        assert is_learning == (round_ < 3)
        if is_learning:
            fleet.kill(f"x{round_}")


def test_a_new_leader_too_plans_three_times_with_learners() -> None:
    fleet = degraded(-1.0, steps=300)
    fleet.restart()
    fleet.tell(a.DesiredState(2))
    fleet.add("x0", "z1", costs=BIG)  # it is there before the leader's first plan
    fleet.reconnect()
    fleet.until(lambda: is_running(fleet))
    for round_ in range(4):
        assert bool(plan(fleet).learners) == (round_ < 3)
        if round_ < 3:
            fleet.kill(f"x{round_}")
            join(fleet, f"x{round_ + 1}")


def test_a_learner_that_reconnects_gets_no_more_time() -> None:
    fleet = degraded()
    join(fleet, "n1")
    in_force = fleet.arbiter.state.in_force
    assert in_force is not None
    fleet.until(lambda: N1 in in_force.sent_at)
    by = in_force.catch_up_by
    assert by < inf
    fleet.now += 1.0
    hello = replace(fleet.agents[N1].hello, fence=fleet.arbiter.fence)
    fleet.tell(a.Connected(hello, b""))
    assert any(to == N1 and isinstance(m, Directive) for to, m in fleet.wire)
    assert fleet.arbiter.state.in_force is in_force
    assert in_force.catch_up_by == by


def test_there_are_no_learners_near_the_end() -> None:
    fleet = degraded(steps=6)
    fleet.until(lambda: newest(fleet) >= 3)
    join(fleet, "n1")
    fleet.run()
    assert all(not p.plan.learners for p in fleet.plans if isinstance(p, requests.Decision))
    assert fleet.over is not None
