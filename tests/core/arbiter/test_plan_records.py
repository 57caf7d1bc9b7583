"""What the record of a plan says."""

from __future__ import annotations

from collections import deque

from bamboo_core.api.events import EventReason, Severity
from bamboo_core.arbiter_state import events as a
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Notice

from .fleet import Fleet, committed, running

A1, B1 = AgentId("a1"), AgentId("b1")


def planned(fleet: Fleet) -> a.Record:
    return [r for r in fleet.records if r.reason is EventReason.PLANNED][-1]


def settle(fleet: Fleet) -> None:
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)


def test_a_first_plan_tells_its_grid_and_what_is_built() -> None:
    record = planned(running(pipelines=2, stages=2))
    text = record.message
    assert record.severity is Severity.NORMAL
    assert text.startswith("epoch 1: 2 x 2 from step 0, 4 agents, ")
    assert text.endswith("layers built")
    assert "seat" not in text


def test_a_plan_after_a_loss_tells_of_its_empty_seat() -> None:
    fleet = running(steps=12)
    fleet.until(lambda: committed(fleet, 2))
    fleet.kill("a1")
    settle(fleet)
    text = planned(fleet).message
    assert "1 x 3 from step" in text
    assert "2 agents, 1 seat empty" in text
    assert not any(word in text for word in ("leaving", "loaded", "get copies", "repeated"))


def test_a_plan_tells_who_leaves_and_what_is_copied() -> None:
    fleet = running(pipelines=2, stages=2, steps=20)
    fleet.until(lambda: committed(fleet, 2))
    fleet.add("b1", "z1")
    fleet.receive(A1, Notice(30.0, "SIGTERM"))
    fleet.now += 2.0
    fleet.tell(a.Tick())
    fleet.until(lambda: "leaving" in planned(fleet).message)
    text = planned(fleet).message
    assert ", 1 leaving" in text
    assert "layers copied" in text
    assert "seat" not in text


def test_a_newcomer_that_leaves_before_it_has_copies_has_left() -> None:
    fleet = running(stages=2, steps=12)
    fleet.until(lambda: committed(fleet, 2))
    fleet.add("b1", "z1")
    fleet.kill("a1")
    fleet.until(lambda: B1 in fleet.arbiter.durable.voters)
    fleet.wire = deque(x for x in fleet.wire if x[0] != B1)  # its directive is on its way
    fleet.receive(B1, Notice(2.0, "SIGTERM"))
    fleet.add("c1", "z1")
    fleet.now += 2.0
    fleet.tell(a.Tick())
    fleet.until(lambda: B1 in fleet.dismissed)
    said = [r.message for r in fleet.records if r.reason is EventReason.AGENT_LEFT]
    assert said == ["b1 holds nothing that is needed"]
