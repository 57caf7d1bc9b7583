"""Families of histories with planned changes: agents join and leave, and the grid changes."""

from __future__ import annotations

import random

from bamboo_core.model.ids import AgentId
from bamboo_sim.protocol.histories.branching import (
    WHOLE,
    Histories,
    Part,
    inject,
    prefixes,
    snapshot,
)
from bamboo_sim.protocol.histories.history import History
from bamboo_sim.protocol.parts.job import Job


def changes(base: History, part: Part = WHOLE) -> Histories:
    """Joins, long and short notice with and without a new agent, other grids; with a kill."""
    job = base.job
    spare = job.agents[-1]
    for n, at in enumerate(prefixes(base, part), part.turn):
        names = sorted(at[1].nodes)
        name = names[n % len(names)]
        kind = n % 6
        if kind == 0:
            found = inject(inject(at, 0, ("kill", name, n % 3)), n % 40, ("start", spare))
        elif kind == 1:
            found = inject(at, 0, ("notice", name, 3.0))
        elif kind == 2:
            found = inject(at, 0, ("notice", name, 1.0))
        elif kind == 3:
            found = inject(inject(at, 0, ("start", spare)), n % 30, ("notice", name, 3.0))
        elif kind == 4:
            found = inject(inject(at, 0, ("start", spare)), n % 30, ("notice", name, 1.0))
        else:
            found = inject(at, 0, ("scale", max(1, job.pipelines - 1)))
            found = inject(found, n % 50, ("scale", job.pipelines))
        yield snapshot(found)
        other = names[(n * 3 + 1) % len(names)]
        yield inject(found, (n * 11) % 70, ("kill", other, n % 3))
        if n % 4 == 0:
            yield inject(found, (n * 7) % 70, ("restart operator", bool(n % 8)))


def surplus(base: History, part: Part = WHOLE) -> Histories:
    """More agents than the zone rule can seat; some are killed, some or all nodes are drained, and
    the number of pipelines changes."""
    rng, job = random.Random(base.seed + part.phase), base.job
    for n, at in enumerate(prefixes(base, part), part.turn):
        found = at
        for _ in range(1 + n % 3):
            name = AgentId(f"c{rng.randrange(1 << 20)}")
            found = inject(found, rng.randrange(30), ("start", name))
        for _ in range(n % 4):
            found = inject(found, rng.randrange(40), ("kill", rng.choice(job.at_start), n % 3))
        yield snapshot(found)
        if n % 3 == 0:
            count = rng.randrange(1, 1 + len(job.at_start))
            names = sorted(rng.sample(job.at_start, count))
            found = inject(found, rng.randrange(30), ("drain", *names))
        for _ in range(2):
            want = 1 + rng.randrange(job.pipelines)
            found = inject(found, rng.randrange(60), ("scale", want))
        yield found


def strangers(base: History, part: Part = WHOLE) -> Histories:
    """Agents on another kind of processor come first, alone or with one that fits, while a seat is
    empty, or around a change of leaders."""
    rng, job = random.Random(base.seed + part.phase), base.job
    for n, at in enumerate(prefixes(base, part, begun=False), part.turn):
        odd = [AgentId(f"d{rng.randrange(1 << 20)}") for _ in range(1 + n % 2)]
        found = at
        if n % 3:
            found = inject(found, 0, ("kill", rng.choice(job.at_start), n % 3))
        for name in odd:
            found = inject(found, rng.randrange(20), ("start stranger", name))
        yield snapshot(found)
        found = inject(found, rng.randrange(30), ("start", AgentId(f"c{rng.randrange(1 << 20)}")))
        yield snapshot(found)
        yield inject(found, rng.randrange(30), ("restart operator", bool(n % 2)))


def replacements(base: History, part: Part = WHOLE) -> Histories:
    """Agents hand over to new agents while the operator restarts; no kills."""
    rng, spares = random.Random(base.seed), base.job.agents[len(base.job.at_start) :]
    for n, at in enumerate(prefixes(base, part), part.turn):
        found = at
        for name in spares:
            found = inject(found, 0, ("start", name))
        leaver = base.job.at_start[n % len(base.job.at_start)]
        found = inject(found, rng.randrange(12), ("notice", leaver, 3.0))
        for _ in range(n % 3):
            found = inject(found, rng.randrange(90), ("restart operator", rng.random() < 0.5))
        yield snapshot(found)
        yield inject(found, rng.randrange(90), ("scale", base.job.pipelines))


def short_notices(base: History, part: Part = WHOLE) -> Histories:
    """A new agent takes over from an agent on short notice; no kills."""
    for n, at in enumerate(prefixes(base, part), part.turn):
        found = inject(at, 0, ("start", base.job.agents[-1]))
        yield inject(found, n % 4, ("notice", base.job.at_start[n % 2], 1.0))


def new_owners(base: History, part: Part = WHOLE) -> Histories:
    """A new agent gets its copies; then all agents that were there before die."""
    rng = random.Random(base.seed)
    for at in prefixes(base, part):
        first, *others = base.job.at_start
        found = inject(at, 0, ("start", base.job.agents[-1]))
        for name in others:
            found = inject(found, 0, ("kill", name, 0))
        yield inject(found, rng.randrange(10, 70), ("kill", first, 1))


def handovers(base: History, part: Part = WHOLE) -> Histories:
    """An agent hands over to a new agent, which dies."""
    rng = random.Random(base.seed)
    for n, at in enumerate(prefixes(base, part), part.turn):
        newcomer = base.job.agents[-1]
        found = inject(at, 0, ("start", newcomer))
        found = inject(found, rng.randrange(8), ("notice", base.job.at_start[n % 2], 3.0))
        yield inject(found, rng.randrange(20, 110), ("kill", newcomer, n % 3))


def leavers(base: History, part: Part = WHOLE) -> Histories:
    """An agent hands over to a new agent, and dies before it may go."""
    rng = random.Random(base.seed)
    for n, at in enumerate(prefixes(base, part), part.turn):
        leaver = base.job.at_start[n % len(base.job.at_start)]
        found = inject(at, 0, ("start", base.job.agents[-1]))
        found = inject(found, rng.randrange(8), ("notice", leaver, 3.0))
        for gap in (rng.randrange(20, 60), rng.randrange(60, 110)):
            yield inject(found, gap, ("kill", leaver, 1 + n % 2))


def learners(base: History, part: Part = WHOLE) -> Histories:
    """A new agent catches up while the others train; it, a source or the operator dies."""
    rng, spares = random.Random(base.seed), base.job.agents[len(base.job.at_start) :]
    for n, at in enumerate(prefixes(base, part), part.turn):
        names = sorted(set(at[1].nodes) & set(base.job.at_start))
        found = inject(at, 0, ("kill", names[n % len(names)], n % 3)) if n % 4 else at
        for name in spares:
            found = inject(found, rng.randrange(30), ("start", name))
        yield snapshot(found)
        newcomer, others = rng.choice(spares), [a for a in names if a != names[n % len(names)]]
        faults = (
            ("kill", newcomer, n % 3),
            ("kill", rng.choice(others), n % 3),
            ("restart operator", bool(n % 2)),
            ("notice", newcomer, rng.choice((1.0, 3.0))),
            ("notice", rng.choice(others), rng.choice((1.0, 3.0))),
            ("second operator",),
            ("cut", (newcomer, rng.choice(others))),
            ("duplicate",),
        )
        for fault in (faults[n % len(faults)], rng.choice(faults[:3])):
            found = inject(found, rng.randrange(110), fault)
            yield snapshot(found)


def regrids(base: History, part: Part = WHOLE) -> Histories:
    """Another number of stages, and so another cut, while agents live; then another fault."""
    rng, job, grids = random.Random(base.seed), base.job, _other_grids(base.job)
    for n, at in enumerate(prefixes(base, part), part.turn):
        grid, names = grids[n % len(grids)], sorted(at[1].nodes)
        found = inject(at, 0, ("regrid", *grid))
        yield snapshot(found)
        yield inject(found, rng.randrange(120), ("kill", rng.choice(names), n % 3))
        back = inject(found, rng.randrange(120), ("regrid", job.pipelines, job.stages))
        if n % 3 == 0:
            yield inject(back, rng.randrange(90), ("kill", rng.choice(names), n % 3))
        elif n % 3 == 1:
            yield inject(back, rng.randrange(90), ("restart operator", True))
        else:
            yield back


def returns(base: History, part: Part = WHOLE) -> Histories:
    """Another grid, and back to the first one while some agents still end the step before."""
    rng, job, grids = random.Random(base.seed), base.job, _other_grids(base.job)
    for n, at in enumerate(prefixes(base, part), part.turn):
        found = inject(at, 0, ("regrid", *grids[n % len(grids)]))
        yield inject(found, 80 + rng.randrange(50), ("regrid", job.pipelines, job.stages))


def _other_grids(job: Job) -> list[tuple[int, int]]:
    """(pipelines, stages) of every other grid for the agents of the start."""
    agents = len(job.at_start)
    grids = [(d, p) for p in range(1, job.num_layers + 1) for d in (1, 2, 3) if d * p <= agents]
    return [grid for grid in grids if grid != (job.pipelines, job.stages)]
