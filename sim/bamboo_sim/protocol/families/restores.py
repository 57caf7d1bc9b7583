"""Families of histories in which the job restores a checkpoint."""

from __future__ import annotations

import random

from bamboo_core.model.ids import AgentId
from bamboo_core.placement.plan import layers_of
from bamboo_sim.protocol.histories.branching import (
    WHOLE,
    Histories,
    Part,
    inject,
    prefixes,
    snapshot,
)
from bamboo_sim.protocol.histories.history import History, advance
from bamboo_sim.protocol.parts.network import OPERATOR, PLANNER
from bamboo_sim.protocol.running.injectors import Fault

_LONG = 100_000  # events: more than a history has
_FOR_EVER_S = 1e9


def forks(base: History, part: Part = WHOLE) -> Histories:
    """A restore, a new leader that lists the files, and another restore. Often nobody can list them
    before the first one, which then hides those that nobody knew."""
    rng = random.Random(base.seed)
    for n, at in enumerate(prefixes(base, part), part.turn):
        found, names = at, base.job.at_start
        if n % 4:
            found = inject(found, 0, ("stand still", "storage", OPERATOR, 40.0 + 40.0 * (n % 4)))
        for again in range(2):
            plan = found[1].plan
            live = [a for a in (plan.live if plan is not None else names) if a in found[1].nodes]
            for name in live:
                found = inject(found, 0, ("kill", name, 1))
            for i in range(len(names)):
                found = inject(found, 0, ("start", AgentId(f"{'bc'[again]}{i:02d}")))
            found = inject(found, rng.randrange(150), ("restart operator", bool(n % 2)))
            advance(found[1], 0)
            found = inject(found, rng.randrange(20, 120), ("duplicate",))
        yield found


def restores(base: History, part: Part = WHOLE) -> Histories:
    """All holders of a layer die; sometimes another fault follows during the restore."""
    job = base.job
    for n, at in enumerate(prefixes(base, part), part.turn):
        plan = at[1].arbiter.status().plan
        if plan is None:
            continue
        layer = n % job.num_layers
        holders = [a for a, r in sorted(plan.wants.items()) if layer in layers_of(r)]
        found = at
        for i, name in enumerate(holders):
            found = inject(found, (n + i) % 3, ("kill", name, n % 3))
        for i in range(len(holders)):
            found = inject(found, 0, ("start", AgentId(f"b{i:02d}")))
        yield snapshot(found)
        if n % 4 == 0:
            yield inject(
                inject(found, 30 + n * 11 % 100, ("corrupt",)), 0, ("restart operator", False)
            )
        elif n % 4 == 2:
            yield inject(found, 0, ("corrupt",))
        fault: Fault = ("restart operator", bool(n % 2)) if n % 2 else ("kill", "b00", n % 3)
        yield inject(found, (n * 13) % 90, fault)


def successors(base: History, part: Part = WHOLE) -> Histories:
    """All agents die, and others come on another kind of processor, alone or with some that fit;
    then another leader, or the first kind again."""
    rng, job = random.Random(base.seed + part.phase), base.job
    for n, at in enumerate(prefixes(base, part), part.turn):
        found = at
        for name in sorted(at[1].nodes):
            found = inject(found, 0, ("kill", name, n % 3))
        for i in range(len(job.at_start)):
            found = inject(found, rng.randrange(3), ("start stranger", AgentId(f"d{i:02d}")))
        for i in range(n % 3):
            found = inject(found, rng.randrange(3), ("start", AgentId(f"b{i:02d}")))
        yield snapshot(found)
        yield inject(found, rng.randrange(120), ("restart operator", bool(n % 2)))
        found = inject(found, rng.randrange(120), ("duplicate",))
        for name in sorted(found[1].nodes):
            found = inject(found, 0, ("kill", name, n % 3))
        for i in range(len(job.at_start)):
            found = inject(found, 0, ("start", AgentId(f"c{i:02d}")))
        yield found


def absences(base: History, part: Part = WHOLE) -> Histories:
    """No operator is there for a while. Agents go on, and then all die, or some; others come. In
    the meantime the job may have been suspended, and resumed."""
    rng, job = random.Random(base.seed), base.job
    for n, at in enumerate(prefixes(base, part, begun=False), part.turn):
        names = sorted(at[1].nodes)
        found = inject(at, 0, ("stand still", "machine", OPERATOR, _FOR_EVER_S))
        dying = names if n % 4 else names[n // 4 % 2 :]
        for i, name in enumerate(dying):
            gap = rng.choice((20, 60, 100, 200)) if i == 0 else rng.randrange(3)
            found = inject(found, gap, ("kill", name, n % 3))
        if n % 5 in (1, 2):  # they have deleted what the operator knows, and the storage is slow
            found = inject(found, 0, ("corrupt known",))
            found = inject(found, 0, ("stand still", "storage", OPERATOR, 65.0 * (n % 5)))
        is_suspended = n % 3 == 2
        if is_suspended:
            found = inject(found, 0, ("suspend",))
        found = inject(found, 0, ("restart operator", False))
        if is_suspended:
            found = inject(found, _LONG, ("resume", job.pipelines, job.stages))
        for i in range(len(dying)):
            found = inject(found, rng.randrange(9), ("start", AgentId(f"b{i:02d}")))
        yield snapshot(found)
        yield inject(found, rng.randrange(90), ("kill", "b00", n % 3))


def suspensions(base: History, part: Part = WHOLE) -> Histories:
    """Suspend, sometimes with a loss or a planner in trouble, and resume: too early, or later on
    another grid."""
    rng, job = random.Random(base.seed), base.job
    grids = [(d, p) for p in range(1, job.num_layers + 1) for d in (1, 2)]
    for n, at in enumerate(prefixes(base, part, begun=False), part.turn):
        found = inject(at, 0, ("suspend",))
        if n % 3 == 1:
            found = inject(found, rng.randrange(60), _fault(n // 3, sorted(found[1].nodes)))
        if n % 4 == 3:
            found = inject(found, rng.randrange(80), ("resume", job.pipelines, job.stages))
            yield found
            continue
        if n % 8 == 0:
            yield snapshot(found)
        pipelines, stages = grids[n % len(grids)]
        found = inject(found, _LONG, ("resume", pipelines, stages))
        for i in range(pipelines * stages):
            found = inject(found, 0, ("start", AgentId(f"d{i:02d}")))
        yield snapshot(found)
        yield inject(found, rng.randrange(120), ("kill", "d00", n % 3))


def _fault(n: int, names: list[AgentId]) -> Fault:
    if n % 3 == 0 or not names:
        return ("restart operator", bool(n % 2))
    if n % 6 == 4:
        return ("fail planner", 1 + n % 4 // 2)
    if n % 6 == 5:
        return ("stand still", "machine", PLANNER, 130.0)
    return ("kill", names[n % len(names)], n % 3)


def raises(base: History, part: Part = WHOLE) -> Histories:
    """The job is complete or suspended, after a loss or without one. Then it gets more steps and
    new agents, and sometimes another fault follows, or more steps once again."""
    rng, job = random.Random(base.seed), base.job
    for n, at in enumerate(prefixes(base, part), part.turn):
        names, found = sorted(at[1].nodes), at
        if n % 3 == 1:
            found = inject(found, 0, ("kill", rng.choice(names), n % 2))
            found = inject(found, rng.randrange(20), ("start", AgentId("c00")))
        elif n % 3 == 2:
            found = inject(found, 0, ("suspend",))
        for again, letter in enumerate("bd"[: 1 + n % 2]):
            found = inject(found, _LONG, ("raise", 1 + (n + again) % 3))
            for i in range(len(job.at_start)):
                found = inject(found, rng.randrange(3), ("start", AgentId(f"{letter}{i:02d}")))
            yield snapshot(found)
        fault: Fault = ("restart operator", bool(n % 2)) if n % 4 else ("kill", "b00", n % 3)
        yield inject(found, rng.randrange(120), fault)
