"""Families of histories in which checkpoints are away for a while, or look wrong to one agent."""

from __future__ import annotations

import random

from bamboo_core.model.ids import AgentId
from bamboo_sim.protocol.histories.branching import (
    WHOLE,
    At,
    Histories,
    Part,
    inject,
    prefixes,
    snapshot,
)
from bamboo_sim.protocol.histories.history import History
from bamboo_sim.protocol.parts.network import PLANNER
from bamboo_sim.protocol.running.injectors import Fault

_BACK: Fault = ("files back",)
_ALWAYS = 1000  # reads


def folders(base: History, part: Part = WHOLE) -> Histories:
    """All agents die and others come, while the folder or a file is away; it comes back, sometimes
    after another fault. Or one of them reads something wrong."""
    rng = random.Random(base.seed * 31 + part.phase)
    for n, at in enumerate(prefixes(base, part), part.turn):
        if not at[1].sealed:
            continue
        away: Fault = (("folder away", False), ("folder away", True), ("file away",))[n % 3]
        found = _replaced(inject(at, 0, away), "b", rng)
        found = inject(found, rng.choice((20, 60, 120)), ("pass", rng.choice((1, 60, 140))))
        yield inject(found, rng.randrange(40), _BACK)
        other: Fault = (
            ("restart operator", bool(n % 2)),
            ("kill", AgentId("b00"), n % 3),
            ("suspend",),
            ("file away",),
        )[n % 4]
        again = inject(inject(found, 0, other), rng.randrange(60), _BACK)
        if n % 4 == 1:
            again = inject(again, 0, ("start", AgentId("e00")))
        if n % 4 == 2:
            grid = base.job.pipelines, base.job.stages
            again = inject(again, rng.randrange(60), ("resume", *grid))
        yield again
        yield _lost_again(found, rng)
        wrong = _replaced(at, "b", rng)
        reader = AgentId(f"b{n % len(base.job.at_start):02d}")
        yield inject(wrong, 0, ("misread", reader, 1))
        always = inject(wrong, 0, ("misread", reader, _ALWAYS))
        yield inject(always, 0, ("start", AgentId("e00")))
        yield inject(inject(wrong, 0, ("corrupt",)), rng.randrange(60), ("restart operator", False))


def beginnings(base: History, part: Part = WHOLE) -> Histories:
    """Before the first plan the folder is away, for less or more than a listing may take; then it
    comes back, sometimes to another operator or to other agents."""
    rng = random.Random(base.seed * 37 + part.phase)
    for n, at in enumerate(prefixes(base, part, begun=False), part.turn):
        if at[1].plan is not None:
            return
        found = inject(at, 0, ("folder away", False))
        found = inject(found, rng.choice((20, 60, 120)), ("pass", rng.choice((1, 70, 140))))
        if n % 3 == 1:
            found = inject(found, 0, ("restart operator", bool(n % 2)))
        elif n % 3 == 2:
            found = _replaced(found, "b", rng)
        yield inject(found, rng.randrange(60), _BACK)


def _lost_again(away: At, rng: random.Random) -> At:
    """The folder has been back for long, when all agents die once more."""
    back = inject(away, rng.randrange(40), _BACK)
    slow = inject(back, rng.randrange(60), ("stand still", "machine", PLANNER, 70.0))
    found = inject(slow, rng.randrange(60), ("kill", AgentId("b00"), 0))
    for i in range(1, len(away[0].job.at_start) // 2 + 1):
        found = inject(found, 0, ("start", AgentId(f"c{i:02d}")))
    return _replaced(inject(found, rng.randrange(60, 200), ()), "d", rng)


def attempts(base: History, part: Part = WHOLE) -> Histories:
    """One attempt follows the other, each from a checkpoint of the one before; the storage deletes
    old ones meanwhile."""
    rng = random.Random(base.seed * 37 + part.phase)
    for at in prefixes(base, part):
        if not at[1].sealed:
            continue
        found = at
        for prefix in "bcd":
            found = _replaced(found, prefix, rng)
            if rng.random() < 0.5:
                found = inject(found, 0, ("corrupt",))
            found = inject(found, rng.choice((80, 200, 400)), ("duplicate",))
            yield snapshot(found)


def _replaced(at: At, prefix: str, rng: random.Random) -> At:
    """All agents die, and as many others start."""
    found = at
    for name in sorted(at[1].nodes):
        found = inject(found, rng.randrange(2), ("kill", name, rng.randrange(3)))
    for i in range(len(at[0].job.at_start)):
        found = inject(found, 0, ("start", AgentId(f"{prefix}{i:02d}")))
    return found
