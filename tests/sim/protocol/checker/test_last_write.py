"""The judge of the last write knows who is released, and by which leader."""

import pytest

from bamboo_core.api.events import EventFact, EventReason, Severity
from bamboo_core.arbiter_state.events import Record
from bamboo_sim.protocol.checker.last_write import check_released
from bamboo_sim.protocol.exploration.time_budget import SAVING
from bamboo_sim.protocol.histories.history import History, advance, apply, replay
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.planted.faults_code import SELDOM
from bamboo_sim.protocol.running.simulation import Simulation

FAULTS = (
    (308, ("suspend",)),
    (0, ("full disk", 1e9)),
    (37, ("second operator",)),
    (1, ("drain", "a01")),
)
"""A leader releases a00 and a02; the next one, which does not know it, a01 and a02."""


def test_a_leader_may_keep_agents_that_the_one_before_has_released():
    world = Simulation(SAVING, 36, "late")
    for gap, fault in FAULTS:
        assert advance(world, gap)
        apply(world, fault)
    assert world.released == {"a00", "a02"}
    while world.released == {"a00", "a02"}:
        assert world.step()
    assert world.released == {"a01", "a02"}
    assert set(world.arbiter.status().members) == {"a00", "a03"}
    replay(History(SAVING, 36, "late", FAULTS))


def test_nobody_may_release_the_last_holders():
    world = Simulation(SAVING, 36, "late")
    for gap, fault in FAULTS[:2]:
        assert advance(world, gap)
        apply(world, fault)
    while not world.released:
        assert world.step()
    record = Record(
        Severity.NORMAL,
        EventReason.AGENTS_RELEASED,
        "3 agents released",
        {EventFact.STEP: 4, EventFact.AGENTS: "a00,a01,a02"},
    )
    members = world.arbiter.state.membership.members
    world.arbiter.state.membership.members = members & {"a03"}
    with pytest.raises(Violation, match=r"layers \[0\] of version 4 have no holder left"):
        check_released(world, record)


def test_what_a_leader_before_says_does_not_begin_the_wait_anew():
    """Its facts have no last write. The job was said to be given up after 89 s of 90."""
    faults = (151, ("bad sample",)), (33, ("second operator",)), (52, ("full disk", 90.0))
    world = replay(History(SELDOM, 31, "random", faults))
    assert world.outcome == "failed by its code"
    assert world.unwritten_since == 0.0
