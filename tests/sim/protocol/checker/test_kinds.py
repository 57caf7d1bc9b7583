"""An operator that takes agents on any kind of processor is found."""

from __future__ import annotations

import pytest

from bamboo_core.arbiter import plans
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol import admission
from bamboo_sim.protocol.histories.history import advance, apply
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


def restored() -> Simulation:
    """A history in which all agents die, and strangers take their places."""
    world = Simulation(Job(2, 2, 2, replica=False, steps=8, save_every=1), 1, "fifo")
    while not world.sealed:
        advance(world, 10)
    for name in sorted(world.nodes):
        apply(world, ("kill", name, 0))
    for number in range(4):
        apply(world, ("start stranger", AgentId(f"b{number}")))
    assert world.finish() == "restored"
    return world


def test_a_job_goes_on_with_strangers_alone_and_says_so() -> None:
    world = restored()
    kinds = world.operators.durable.processors
    assert [kind.products for kind in kinds] == ["usual", "others"]
    assert (world.kind, world.told_kind) == ("others", "others")


def test_a_change_of_processors_in_silence_is_a_violation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plans, "_tell_processors", lambda *kinds, is_mixed: None)
    with pytest.raises(Violation, match="processors change from usual to others"):
        restored()
