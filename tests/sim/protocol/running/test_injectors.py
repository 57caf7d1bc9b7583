"""Each fault that histories inject changes the history into which it is injected."""

from __future__ import annotations

import pytest

from bamboo_sim.protocol.histories.history import advance
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.running.injectors import INJECTORS, Fault
from bamboo_sim.protocol.running.simulation import Simulation

SMALL = Job(2, 2, 2, spares=1)
MOVING = Job(1, 2, 2, replica=False, spares=2)
SAVING = Job(2, 2, 2, replica=False, steps=4, save_every=1, salted=True)
AHEAD = Job(1, 3, 2, eager=True, layers=6, checked=True)
MEASURED = Job(2, 2, 2, steps=8, profiled=True)
MOMENTS = range(60, 300, 20)
NOTHING: Fault = ("thaw", "nobody")
ALL_DIE: list[Fault] = [("kill", name, 0) for name in SAVING.at_start]
OTHERS: list[Fault] = [("start", f"b{n}") for n in range(len(SAVING.at_start))]
Case = tuple[Job, list[Fault]]
"""A job, and faults: the one that is judged, and those that let it matter."""

CASES: dict[str, Case] = {
    "kill": (SMALL, [("kill", "a00", 0)]),
    "kill silently": (SMALL, [("kill silently", "a00", 0)]),
    "fail": (SMALL, [("fail", "a00", True)]),
    "fail slices": (AHEAD, [("fail slices", "a00", 9)]),
    "halt": (SMALL, [("halt", "a00")]),
    "halt backward": (SMALL, [("halt backward", "a00")]),
    "bad sample": (SAVING, [("bad sample",)]),
    "bad backward": (SAVING, [("bad backward",)]),
    "fatal sample": (SAVING, [("fatal sample",)]),
    "flip": (AHEAD, [("flip", "a00", "F", False)]),
    "alter": (SMALL, [("alter", "a00", 0)]),
    "start": (SMALL, [("start", "b9")]),
    "start stranger": (SMALL, [("start stranger", "b9")]),
    "notice": (SMALL, [("notice", "a00", 3.0)]),
    "scale": (SMALL, [("scale", 1)]),
    "drain": (MOVING, [("start", "b0"), ("start", "b1"), ("drain", "a00")]),
    "restart operator": (SMALL, [("restart operator", False)]),
    "second operator": (SMALL, [("second operator",)]),
    "defect": (SMALL, [("defect",)]),
    "fail writes": (SMALL, [("fail writes", 2, False), ("kill", "a00", 0)]),
    "fail storage": (SAVING, [("fail storage", 3)]),
    "full disk": (SAVING, [("full disk", 20.0)]),
    "fail planner": (SMALL, [("fail planner", 1), ("kill", "a00", 0)]),
    "lose continuation": (SMALL, [("lose continuation",), ("kill", "a00", 0)]),
    "regrid": (SMALL, [("regrid", 1, 2)]),
    "suspend": (SMALL, [("suspend",)]),
    "resume": (SMALL, [("suspend",), ("resume", 2, 2)]),
    "corrupt": (SAVING, [("corrupt",), *ALL_DIE, *OTHERS]),
    "corrupt known": (SAVING, [("corrupt known",), *ALL_DIE, *OTHERS]),
    "folder away": (SAVING, [("folder away", False), *ALL_DIE, *OTHERS]),
    "file away": (SAVING, [("file away",), *ALL_DIE, *OTHERS]),
    "files back": (SAVING, [("folder away", False), *ALL_DIE, *OTHERS, ("files back",)]),
    "misread": (SAVING, [("misread", "b0", 2), *ALL_DIE, *OTHERS]),
    "cut": (SMALL, [("cut", ("a00", "a01"))]),
    "cut quietly": (SMALL, [("cut quietly", ("a00", "a01"))]),
    "mute": (SMALL, [("mute", ("a00", "a01"))]),
    "trickle": (SMALL, [("trickle", ("a00", "a01"))]),
    "burst": (SMALL, [("burst", 20.0, ("a00", "a01"))]),
    "cut for": (SMALL, [("cut for", 20.0, ("a00", "a01"))]),
    "away for": (SMALL, [("away for", 20.0, "a00")]),
    "heal": (SMALL, [("cut", ("a00", "a01")), ("heal",)]),
    "reset": (SMALL, [("reset", 0, "a00", "a01")]),
    "reconnect": (SMALL, [("reconnect", "a00", 0)]),
    "drop": (SMALL, [("drop", 0)]),
    "suspect": (SMALL, [("suspect", "a00")]),
    "freeze": (SMALL, [("freeze", "a00")]),
    "thaw": (SMALL, [("freeze", "a00"), ("thaw", "a00")]),
    "stand still": (SMALL, [("stand still", "machine", "a00", 30.0)]),
    "go on": (SMALL, [("stand still", "machine", "a00", 30.0), ("go on", "machine", "a00")]),
    "pass": (SMALL, [("pass", 20)]),
    "pace": (SMALL, [("pace", 1.0, 20)]),
    "beat every": (SMALL, [("beat every", 30.0)]),
    "measure": (MEASURED, [("measure", "slow", 1), ("pace", 0.25, 4000), ("kill", "a00", 0)]),
    "slow down": (SMALL, [("slow down", "a00")]),
    "duplicate": (SMALL, [("duplicate",)]),
    "raise": (Job(1, 1, 2, replica=False, steps=1, save_every=1), [("raise", 2)]),
}


def ending(world: Simulation) -> tuple[object, ...]:
    """Run the history to its end; how it ended."""
    try:
        outcome = world.finish()
    except Violation as found:  # none of these is, unless a fault comes at an impossible moment
        outcome = str(found)
    return outcome, world.trace, world.events, world.now


def played(job: Job, faults: list[Fault], events: int) -> tuple[object, ...]:
    """The ending of a history with these faults, of which the first comes after so many events."""
    world = Simulation(job, 1, "fifo")
    advance(world, events)
    for name, *arguments in faults:
        INJECTORS[name](world, *arguments)
        advance(world, 5)
    return ending(world)


def acts(job: Job, faults: list[Fault], kind: str, events: int) -> bool:
    """Whether the history differs from that without the fault of this kind."""
    others = [NOTHING if fault[0] == kind else fault for fault in faults]
    return played(job, faults, events) != played(job, others, events)


@pytest.mark.parametrize("kind", CASES)
def test_each_injector_changes_a_history(kind: str) -> None:
    job, faults = CASES[kind]
    assert kind in {fault[0] for fault in faults}
    assert any(acts(job, faults, kind, events) for events in MOMENTS)


def test_no_injector_is_left_out() -> None:
    assert CASES.keys() == INJECTORS.keys(), "add a case"
