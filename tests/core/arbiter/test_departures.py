"""Agents that have left in order, and agents that are lost while there is no plan: who counts."""

from __future__ import annotations

import pytest

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import RedundancyMode, RestoreSpec
from bamboo_core.arbiter_state import events as a
from bamboo_core.arbiter_state.durable import Durable, from_json, to_json
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Notice

from .fleet import Fleet, committed, running

A0, A1 = AgentId("a0"), AgentId("a1")


def agents_of(fleet: Fleet, reason: EventReason) -> list[AgentId]:
    return [agent for r in fleet.records if r.reason is reason for agent in r.agents]


# ---------------------------------------------------------------- departures


def one_has_left(*, is_noticed: bool) -> tuple[Fleet, AgentId]:
    """An agent has handed over: it has got notice, or fewer pipelines are wanted."""
    fleet = running(pipelines=2, stages=2, steps=60)
    fleet.until(lambda: committed(fleet, 1))
    if is_noticed:
        fleet.receive(A1, Notice(0.5, "SIGTERM"))
    else:
        fleet.tell(a.DesiredState(1))
    fleet.until(lambda: bool(agents_of(fleet, EventReason.AGENT_LEFT)))
    (left, *_) = agents_of(fleet, EventReason.AGENT_LEFT)
    fleet.agents.pop(left, None)  # its pod ends
    return fleet, left


@pytest.mark.parametrize("is_noticed", [True, False])
def test_a_new_leader_does_not_miss_an_agent_that_has_left_in_order(*, is_noticed: bool) -> None:
    fleet, left = one_has_left(is_noticed=is_noticed)
    fleet.restart()
    fleet.tell(a.DesiredState(2 if is_noticed else 1))
    fleet.reconnect()
    fleet.idle(30.0)
    assert agents_of(fleet, EventReason.AGENT_LOST) == []
    fleet.run()
    assert agents_of(fleet, EventReason.AGENT_LEFT).count(left) == 1
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert fleet.arbiter.durable.attempt == 0


def test_the_departures_of_a_plan_are_forgotten_with_it() -> None:
    fleet, left = one_has_left(is_noticed=True)
    assert fleet.arbiter.durable.departed == (left,)
    before = fleet.arbiter.durable.plan
    fleet.kill("a3")
    fleet.until(lambda: fleet.arbiter.durable.plan > before)
    assert fleet.arbiter.durable.departed == ()


def test_departures_are_written_with_the_facts() -> None:
    many = tuple(AgentId(f"some-job-p{n}-s1-i8") for n in range(512))
    for departed in ((A1,), many):
        stored = to_json(Durable(departed=departed))
        assert from_json(stored).departed == departed
        assert len(str(stored)) < 4096


# ---------------------------------------------------------------- losses without a plan


def one_waits(mode: RedundancyMode = RedundancyMode.NONE) -> Fleet:
    """A job that is to restore waits for agents: nobody is a member."""
    fleet = running(stages=2, steps=40, mode=mode)
    fleet.until(lambda: committed(fleet, 5))
    fleet.kill("a1")
    fleet.tell(a.DesiredState(1, restore=RestoreSpec("again", 0)))
    assert fleet.arbiter.durable.attempt == 1
    assert fleet.arbiter.status().phase is a.ArbiterPhase.WAITING
    assert agents_of(fleet, EventReason.AGENT_LOST) == [A1]
    return fleet


def losses_in(fleet: Fleet, zone: str) -> float:
    return sum(z.losses for z in fleet.arbiter.state.protection.hazard.zones if z.zone == zone)


def test_an_agent_that_is_lost_while_the_job_waits_for_a_restore_is_lost_once() -> None:
    fleet = one_waits()
    fleet.kill("a0", confirmed=False)
    assert agents_of(fleet, EventReason.AGENT_LOST) == [A1, A0]
    fleet.tell(a.Lost(A0, confirmed=True, evidence="its node is gone"))
    fleet.add("n0", "z0")
    fleet.add("n1", "z1")
    fleet.wait(30.0)
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert agents_of(fleet, EventReason.AGENT_LOST) == [A1, A0]


def test_its_zone_has_a_loss_more() -> None:
    fleet = one_waits(RedundancyMode.AUTO)
    before = losses_in(fleet, "z0")
    fleet.kill("a0")
    assert losses_in(fleet, "z0") == pytest.approx(before + 1, abs=0.01)


def test_a_new_leader_counts_an_agent_of_the_attempt_before_once() -> None:
    fleet = one_waits()
    fleet.restart()
    fleet.tell(a.DesiredState(1))
    fleet.reconnect()
    fleet.kill("a0", confirmed=False)
    fleet.tell(a.Lost(A0, confirmed=True, evidence="its node is gone"))
    assert agents_of(fleet, EventReason.AGENT_LOST) == [A1, A0]
    fleet.restart()
    fleet.tell(a.DesiredState(1))
    fleet.tell(a.Lost(A0, confirmed=True, evidence="its node is gone"))
    assert agents_of(fleet, EventReason.AGENT_LOST) == [A1, A0]


def test_an_agent_that_comes_back_while_the_job_waits_is_lost_once() -> None:
    fleet = one_waits()
    kept = fleet.agents[A0]
    fleet.kill("a0", confirmed=False)
    fleet.agents[A0] = kept
    fleet.connect(kept)
    fleet.kill("a0")
    assert agents_of(fleet, EventReason.AGENT_LOST) == [A1, A0]


def test_an_agent_that_has_never_taken_part_is_no_loss() -> None:
    """Whether it has failed to start, its pod's end shows."""
    fleet = one_waits()
    fleet.tell(a.DesiredState(2, least=2))
    fleet.add("n0", "z1")
    fleet.kill("n0")
    assert agents_of(fleet, EventReason.AGENT_LOST) == [A1]


@pytest.mark.parametrize(("source", "lost"), [("", [A1]), ("Gce", [A1, A0])])
def test_one_that_is_told_to_end_is_a_loss_if_its_node_goes(
    source: str, lost: list[AgentId]
) -> None:
    """The operator deletes pods that are too many, and without a plan nobody lets them go first."""
    fleet = one_waits()
    fleet.receive(A0, Notice(15.0, "SIGTERM", source))
    fleet.kill("a0")
    assert agents_of(fleet, EventReason.AGENT_LOST) == lost
