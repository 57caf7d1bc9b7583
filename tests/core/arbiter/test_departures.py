"""Agents that have left in order, and agents that are lost while the job has no plan: who counts."""

from __future__ import annotations

import pytest

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import RedundancyMode
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
