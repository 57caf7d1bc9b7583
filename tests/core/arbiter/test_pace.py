"""Rarer heartbeats in large fleets: agents are told, and silence is judged by that."""

from __future__ import annotations

from bamboo_core.arbiter_state import events as a
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Cause, Welcome

from .fleet import Fleet, running

USUAL = a.Timing()
RARE = USUAL.at_pace(3.2)


def told(fleet: Fleet) -> dict[AgentId, float]:
    """The pace in the Welcomes that are on their way."""
    return {to: m.heartbeat_s for to, m in fleet.wire if isinstance(m, Welcome)}


def silent(fleet: Fleet, agent: str, seconds: float) -> None:
    """Time passes; all others are heard twice a second."""
    for _ in range(round(2 * seconds)):
        fleet.now += 0.5
        for name in list(fleet.agents):
            if name != agent:
                fleet.receive(name, fleet.beat)
        fleet.tell(a.Tick())


def test_every_connected_agent_is_told() -> None:
    fleet = running()
    fleet.tell(a.Disconnected(AgentId("a1")))
    fleet.wire.clear()
    fleet.tell(a.Paced(RARE))
    assert told(fleet) == {AgentId("a0"): 3.2, AgentId("a2"): 3.2}


def test_an_agent_that_comes_later_is_told_at_once() -> None:
    fleet = running()
    fleet.tell(a.Paced(RARE))
    fleet.wire.clear()
    fleet.add("late", "z0")
    assert told(fleet) == {AgentId("late"): 3.2}


def test_silence_is_noticed_later_but_it_is_noticed() -> None:
    fleet = running()
    before = fleet.arbiter.fence
    fleet.tell(a.Paced(RARE))
    silent(fleet, "a1", 8.5)
    assert fleet.arbiter.fence == before
    silent(fleet, "a1", 1.0)
    assert fleet.arbiter.fence > before


def test_a_closed_stream_and_a_suspicion_still_count_at_once() -> None:
    fleet = running()
    before = fleet.arbiter.fence
    fleet.tell(a.Paced(RARE))
    fleet.tell(a.Disconnected(AgentId("a1")))
    fleet.suspect("a0", "a1", Cause.LIVENESS_CLOSED)
    assert fleet.arbiter.fence > before


def test_a_suspected_agent_may_be_as_silent_as_it_was_told() -> None:
    fleet = running()
    before = fleet.arbiter.fence
    fleet.tell(a.Paced(RARE))
    silent(fleet, "a1", 2.5)
    fleet.suspect("a0", "a1", Cause.LIVENESS_SILENT)
    assert fleet.arbiter.fence == before
    silent(fleet, "a1", 2.0)
    assert fleet.arbiter.fence > before


def test_back_to_the_usual_pace_nobody_is_lost_for_the_silence_before() -> None:
    fleet = running()
    before = fleet.arbiter.fence
    fleet.tell(a.Paced(RARE))
    silent(fleet, "a1", 5.0)
    fleet.tell(a.Paced(USUAL))
    fleet.tell(a.Tick())
    assert fleet.arbiter.fence == before
    silent(fleet, "a1", 3.0)
    assert fleet.arbiter.fence > before


def test_more_often_than_usual_is_not_wanted() -> None:
    assert USUAL.at_pace(0.01) == USUAL
