"""An operator that takes agents on any kind of processor is found."""

from __future__ import annotations

import pytest

from bamboo_core.model.ids import AgentId
from bamboo_core.protocol import admission
from bamboo_sim.protocol.histories.history import advance
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.running.injectors import INJECTORS
from bamboo_sim.protocol.running.simulation import Simulation


def played() -> str:
    """The ending of a history in which a stranger comes while a seat is empty."""
    world = Simulation(Job(2, 2, 2, steps=8), 1, "fifo")
    advance(world, 60)
    INJECTORS["kill"](world, AgentId("a00"), 0)
    INJECTORS["start stranger"](world, AgentId("b0"))
    return world.finish()


def test_a_stranger_gets_no_seat() -> None:
    assert played() == "complete"


def test_a_plan_of_several_kinds_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "compare", lambda *given: None)
    with pytest.raises(Violation, match="one plan has agents on several kinds of processor"):
        played()
