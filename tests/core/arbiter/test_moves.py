"""An agent moves to a stage that has lost all its agents, while the others train."""

from __future__ import annotations

from math import inf

import pytest

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import Adjacency
from bamboo_core.arbiter_state import events as a
from bamboo_core.model.ids import AgentId
from bamboo_core.placement import moves
from bamboo_core.placement.plan import Plan
from bamboo_core.planning import requests
from bamboo_core.protocol.messages import LayerCost, Notice

from .fleet import Fleet, is_running, newest, plan, spec

BIG = (LayerCost(1.0, 2.0, parameter_bytes=1 << 30, output_bytes=0),) * 4


def bare(above: float = 256e6, steps: int = 60) -> Fleet:
    """2 x 4 that has lost both agents of one stage, with large layers."""
    timing = a.Timing(catch_up_above_bytes=above)
    fleet = Fleet(spec(pipelines=2, stages=4, steps=steps, every=0), layers=4, timing=timing)
    for i in range(8):
        fleet.add(f"a{i}", f"z{i % 2}", costs=BIG)
    fleet.tell(a.DesiredState(2))
    fleet.until(lambda: newest(fleet) >= 1)
    for pipeline in plan(fleet).pipelines:
        assert pipeline[1] is not None
        fleet.kill(pipeline[1])
    fleet.until(lambda: is_running(fleet) and plan(fleet).holes == 2)
    return fleet


def of_stage(found: Plan, stage: int) -> list[AgentId]:
    return [a for p in found.pipelines if (a := p[stage]) is not None]


def advice(fleet: Fleet) -> requests.Relocation:
    return next(p for p in reversed(fleet.plans) if isinstance(p, requests.Relocation))


def until_copying(fleet: Fleet) -> Plan:
    fleet.until(lambda: is_running(fleet) and plan(fleet).move is not None)
    return plan(fleet)


def test_the_agent_gets_its_copies_first_and_then_its_seat() -> None:
    fleet = bare()
    copying = until_copying(fleet)
    move, moved = copying.move, advice(fleet)
    assert move is not None
    assert set(copying.learners) == {move.agent}
    assert newest(fleet) >= 2, "it begins when the step of the loss is committed"
    fleet.until(lambda: is_running(fleet) and move.agent in plan(fleet).live)
    assert plan(fleet).seats[move.agent] == move.to
    assert of_stage(plan(fleet), 1) == [move.agent]
    entry = next(p for p in reversed(fleet.plans) if isinstance(p, requests.Decision))
    assert entry.copies == 0
    said = [r.message for r in fleet.records if r.reason is EventReason.STOPPED]
    gain = 1 - moved.then / moved.now
    moving = f"{move.agent} moves to stage 1, so that a step takes {gain:.0%} less time"
    assert any(moving in text for text in said)
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert fleet.arbiter.durable.attempt == 0


def test_small_layers_are_copied_with_one_stop() -> None:
    fleet = bare(inf)
    stops = sum(r.reason is EventReason.STOPPED for r in fleet.records)
    fleet.until(lambda: is_running(fleet) and bool(of_stage(plan(fleet), 1)))
    assert not plan(fleet).learners
    assert sum(r.reason is EventReason.STOPPED for r in fleet.records) == stops + 1
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_a_newcomer_takes_the_seat_instead() -> None:
    fleet = bare(inf)
    fleet.add("n0", "z1", costs=BIG)
    fleet.idle(1.5)
    fleet.until(lambda: is_running(fleet) and AgentId("n0") in plan(fleet).live)
    assert of_stage(plan(fleet), 1) == ["n0"]
    assert all(request.move is None for request in fleet.requests)


def test_a_loss_before_the_move_makes_another_plan_first() -> None:
    fleet = bare(inf)
    mover = advice(fleet).move.agent
    fleet.kill(mover)
    fleet.until(lambda: is_running(fleet) and mover not in plan(fleet).members)
    assert fleet.requests[-1].move is None


@pytest.mark.parametrize("after", range(0, 40, 5))
def test_the_death_of_the_mover_stops_nothing(after: int) -> None:
    fleet = bare(steps=100)
    copying = until_copying(fleet)
    assert copying.move is not None
    for _ in range(after):
        fleet.step()
    assert plan(fleet) is copying
    fence = fleet.arbiter.fence
    fleet.kill(copying.move.agent)
    fleet.run()
    assert fleet.arbiter.fence == fence
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert fleet.arbiter.durable.attempt == 0


@pytest.mark.parametrize("after", range(0, 40, 5))
def test_another_leader_goes_on_with_the_move(after: int) -> None:
    """Else the agent would take any empty seat, and what it has copied would be of no use."""
    fleet = bare(steps=100)
    move = until_copying(fleet).move
    assert move is not None
    for _ in range(after):
        fleet.step()
    assert plan(fleet).move == move
    known = len(fleet.requests)
    fleet.restart()
    fleet.tell(a.DesiredState(2))
    fleet.reconnect()
    fleet.until(lambda: len(fleet.requests) > known)
    assert fleet.requests[-1].move == move
    fleet.until(lambda: is_running(fleet) and move.agent in plan(fleet).live)
    assert plan(fleet).seats[move.agent] == move.to
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert fleet.arbiter.durable.attempt == 0
    assert fleet.arbiter.durable.move is None


def test_a_move_is_forgotten_if_its_agent_dies_with_the_leader() -> None:
    fleet = bare(steps=100)
    move = until_copying(fleet).move
    assert move is not None
    fleet.restart()
    del fleet.agents[move.agent]
    fleet.tell(a.DesiredState(2))
    fleet.reconnect()
    fleet.tell(a.Lost(move.agent, True, "killed"))
    fleet.until(lambda: is_running(fleet) and plan(fleet).move is None)
    assert fleet.arbiter.durable.move is None
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_the_mover_keeps_what_it_has_until_it_has_its_seat() -> None:
    """The other agent of the stage that it leaves dies: it has the last copy of that layer."""
    fleet = bare(steps=100)
    before = plan(fleet)
    copying = until_copying(fleet)
    assert copying.move is not None
    stage = before.seats[copying.move.agent].stage
    (other,) = of_stage(copying, stage)
    fleet.kill(other)
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert fleet.arbiter.durable.attempt == 0


def test_an_agent_that_is_to_leave_does_not_move() -> None:
    fleet = bare(inf)
    mover = advice(fleet).move.agent
    fleet.receive(mover, Notice(600.0, "a taint"))
    fleet.run()
    assert all(request.move is None or request.move.agent != mover for request in fleet.requests)


def test_a_fleet_makes_a_few_moves_at_most() -> None:
    """Even if the planner's advice never ends."""
    fleet = bare(inf, steps=400)
    for _ in range(6):
        seats = plan(fleet).pipelines
        zones = dict.fromkeys(plan(fleet).live, "")
        found = moves.candidates(seats, zones=zones, adjacency=Adjacency.CLUSTER, most=1)
        for move in found:
            fleet.tell(a.Planned(fleet.arbiter.state.requests, requests.Relocation(move, 2.0, 1.0)))
        for _ in range(400):
            fleet.step()
    assert is_running(fleet)
    assert 1 <= sum(request.move is not None for request in fleet.requests) <= 3
