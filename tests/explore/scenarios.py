"""Families of histories. Each yields (history, world) with the world just after the last fault.

A family walks along one undisturbed run and branches off at its events by copying the world, so
that the beginning is not computed again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import combinations

from tests.explore.disturbances import Fault, island
from tests.explore.history import History, advance, apply
from tests.explore.job import Job
from tests.explore.network import OPERATOR
from tests.explore.world import World

from bamboo_core.ids import AgentId
from bamboo_core.plan import layers_of

POLICIES = ("random", "fifo", "late", "slow-control")
Branches = Iterator[tuple[History, World]]


def walk(history: History, stride: int = 1, *, begun: bool = True) -> Branches:
    """The undisturbed run, stopped at every ``stride``-th event; the seed says which.

    begun: only from the first plan on.
    """
    world, event = World(history.job, history.seed, history.policy), 0
    while True:
        if (world.plan is not None or not begun) and event % stride == history.seed % stride:
            yield history.then(event, ()), world
        if not world.step():
            return
        event += 1


def branch(at: tuple[History, World], gap: int, fault: Fault) -> tuple[History, World]:
    """A copy that meets a fault ``gap`` events later."""
    history, world = at
    world = world.copy()
    if history.script and history.script[-1][1] == ():
        waited = history.script[-1][0]
        history = History(history.job, history.seed, history.policy, history.script[:-1])
        gap_all = waited + gap
    else:
        gap_all = gap
    advance(world, gap)
    apply(world, fault)
    return history.then(gap_all, fault), world


def singles(base: History, stride: int = 1) -> Branches:
    """Every event x every agent that lives; the fate of what it had sent rotates."""
    for n, at in enumerate(walk(base, stride, begun=False)):
        for i, name in enumerate(sorted(at[1].nodes)):
            yield branch(at, 0, ("kill", name, (n + i) % 3))


def pairs(base: History, stride: int = 1) -> Branches:
    """Two at once."""
    for n, at in enumerate(walk(base, stride)):
        for a, b in combinations(sorted(at[1].nodes), 2):
            first = branch(at, 0, ("kill", a, n % 3))
            yield branch(first, 0, ("kill", b, (n + 1) % 3))


def seconds(base: History, stride: int = 1) -> Branches:
    """A second one during the recovery from the first, at every third of its events."""
    for n, at in enumerate(walk(base, stride)):
        for i, a in enumerate(sorted(at[1].nodes)):
            first = branch(at, 0, ("kill", a, (n + i) % 3))
            for gap in range(0, 60, 3):
                for j, b in enumerate(sorted(first[1].nodes)):
                    if (n + gap + j) % 3 == 0:
                        yield branch(first, gap, ("kill", b, (gap + j) % 3))


def bulks(base: History, stride: int = 1) -> Branches:
    """A pipeline, a stage, half of the agents: at once, or over a while."""
    names, p = base.job.at_start, base.job.stages
    groups = [names[i : i + p] for i in range(0, len(names), p)]
    groups += [names[s::p] for s in range(p)] + [names[::2], names[1::2]]
    for n, at in enumerate(walk(base, stride)):
        group, late = groups[n % len(groups)], n // len(groups) % 2
        found = at
        for i, name in enumerate(group):
            found = branch(found, (n * 7 + i * 5) % 11 if late and i else 0, ("kill", name, n % 3))
        yield found


def operators(base: History, stride: int = 1) -> Branches:
    """The operator dies, alone or with an agent, once or twice; or a second one appears."""
    for n, at in enumerate(walk(base, stride)):
        names = sorted(at[1].nodes)
        crash: Fault = ("restart operator", bool(n % 2))
        yield branch(branch(at, 0, crash), n % 13, crash)
        name = names[n % len(names)]
        killed = branch(at, 0, ("kill", name, n % 3))
        yield branch(killed, n % 23, crash)
        both = branch(killed, (n * 5) % 31, ("second operator",))
        yield branch(both, n % 17, ("kill", names[(n + 1) % len(names)], n % 3))
        yield branch(at, 0, ("second operator",))


def _links(kind: int, names: list[AgentId], rng: random.Random) -> tuple:
    a, b = rng.choice(names), rng.choice(names)
    if kind == 0:
        return ((a, b),) if a != b else ((a, OPERATOR),)
    if kind == 1:
        return island({a}, {b}) if a != b else ((OPERATOR, a),)
    if kind == 2:
        return ((a, OPERATOR), (OPERATOR, a))
    members = {x for x in names if rng.random() < 0.5} or {a}
    others = set(names) - members
    if kind == 3:
        return island(members, others | {OPERATOR})
    if kind == 4:
        return island(members, others) or ((a, OPERATOR),)
    return island(set(names), {OPERATOR})


def partitions(base: History, stride: int = 1) -> Branches:
    """Links break, one way or both, an island with or without the operator; healed or not."""
    rng = random.Random(base.seed)
    for n, at in enumerate(walk(base, stride)):
        names = sorted(at[1].nodes)
        found = branch(at, 0, ("cut", *_links(n % 6, names, rng)))
        if n % 5 == 1:
            found = branch(found, rng.randrange(60), ("kill", rng.choice(names), n % 3))
        if n % 5 == 2:
            found = branch(found, rng.randrange(60), ("restart operator", bool(n % 2)))
        if n % 3:
            found = branch(found, rng.randrange(150), ("heal",))
        yield found


def changes(base: History, stride: int = 1) -> Branches:
    """Joins, drains with long and short notice, replaced or not, other grids; with a kill."""
    job = base.job
    spare = job.agents[-1]
    for n, at in enumerate(walk(base, stride)):
        names = sorted(at[1].nodes)
        name = names[n % len(names)]
        kind = n % 6
        if kind == 0:
            found = branch(branch(at, 0, ("kill", name, n % 3)), n % 40, ("start", spare))
        elif kind == 1:
            found = branch(at, 0, ("notice", name, 3.0))
        elif kind == 2:
            found = branch(at, 0, ("notice", name, 1.0))
        elif kind == 3:
            found = branch(branch(at, 0, ("start", spare)), n % 30, ("notice", name, 3.0))
        elif kind == 4:
            found = branch(branch(at, 0, ("start", spare)), n % 30, ("notice", name, 1.0))
        else:
            found = branch(at, 0, ("want", max(1, job.pipelines - 1)))
            found = branch(found, n % 50, ("want", job.pipelines))
        yield found
        other = names[(n * 3 + 1) % len(names)]
        yield branch(found, (n * 11) % 70, ("kill", other, n % 3))
        if n % 4 == 0:
            yield branch(found, (n * 7) % 70, ("restart operator", bool(n % 8)))


def moves(base: History, stride: int = 1) -> Branches:
    """Agents hand over to newcomers while the operator restarts; nobody dies."""
    rng, spares = random.Random(base.seed), base.job.agents[len(base.job.at_start) :]
    for n, at in enumerate(walk(base, stride)):
        found = at
        for name in spares:
            found = branch(found, 0, ("start", name))
        leaver = base.job.at_start[n % len(base.job.at_start)]
        found = branch(found, rng.randrange(12), ("notice", leaver, 3.0))
        for _ in range(n % 3):
            found = branch(found, rng.randrange(90), ("restart operator", rng.random() < 0.5))
        yield found
        yield branch(found, rng.randrange(90), ("want", base.job.pipelines))


def rushes(base: History, stride: int = 1) -> Branches:
    """Short notice: what an agent holds is taken over by a newcomer; nobody dies."""
    for n, at in enumerate(walk(base, stride)):
        found = branch(at, 0, ("start", base.job.agents[-1]))
        yield branch(found, n % 4, ("notice", base.job.at_start[n % 2], 1.0))


def heirs(base: History, stride: int = 1) -> Branches:
    """A newcomer gets its copies; then everybody dies who had been there before."""
    rng = random.Random(base.seed)
    for at in walk(base, stride):
        first, *others = base.job.at_start
        found = branch(at, 0, ("start", base.job.agents[-1]))
        for name in others:
            found = branch(found, 0, ("kill", name, 0))
        yield branch(found, rng.randrange(10, 70), ("kill", first, 1))


def handovers(base: History, stride: int = 1) -> Branches:
    """An agent hands over to a newcomer, which dies."""
    rng = random.Random(base.seed)
    for n, at in enumerate(walk(base, stride)):
        newcomer = base.job.agents[-1]
        found = branch(at, 0, ("start", newcomer))
        found = branch(found, rng.randrange(8), ("notice", base.job.at_start[n % 2], 3.0))
        yield branch(found, rng.randrange(20, 110), ("kill", newcomer, n % 3))


def forks(base: History, stride: int = 1) -> Branches:
    """A restore, a new leader that looks at the files, and another restore."""
    rng = random.Random(base.seed)
    for n, at in enumerate(walk(base, stride)):
        found, names = at, base.job.at_start
        for again in range(2):
            plan = found[1].plan
            live = [a for a in (plan.live if plan is not None else names) if a in found[1].nodes]
            for name in live:
                found = branch(found, 0, ("kill", name, 1))
            for i in range(len(names)):
                found = branch(found, 0, ("start", AgentId(f"{'bc'[again]}{i:02d}")))
            found = branch(found, rng.randrange(150), ("restart operator", bool(n % 2)))
            advance(found[1], 0)
            found = branch(found, rng.randrange(20, 120), ("duplicate",))
        yield found


def shrinks(base: History, stride: int = 1) -> Branches:
    """Fewer pipelines are wanted; whoever stays is cut off with its plan from the operator."""
    rng = random.Random(base.seed)
    for n, at in enumerate(walk(base, stride)):
        found = branch(at, 0, ("want", 1))
        found = branch(found, rng.randrange(10, 60), ("duplicate",))
        plan, names = found[1].plan, set(found[1].nodes)
        inside = set(plan.live) & names if plan is not None else set()
        if not inside or inside == names:
            continue
        found = branch(found, 0, ("cut", *island(inside, (names - inside) | {OPERATOR})))
        for name in sorted(inside):
            found = branch(found, 0, ("doubt", name))
        if n % 2:
            found = branch(found, rng.randrange(20), ("restart operator", False))
            for name in sorted(inside):
                found = branch(found, 0, ("doubt", name))
        yield found


def islands(base: History, stride: int = 1) -> Branches:
    """A hand-over, then an island without the operator: all newcomers, or all who were there."""
    rng, job = random.Random(base.seed), base.job
    for n, at in enumerate(walk(base, stride)):
        found = at
        for name in job.agents[len(job.at_start) :]:
            found = branch(found, 0, ("start", name))
        for name in job.at_start[: 1 + n % len(job.at_start)]:
            found = branch(found, rng.randrange(5), ("notice", name, 3.0))
        advance(found[1], 0)
        found = branch(found, rng.randrange(80), ("duplicate",))
        names = set(found[1].nodes)
        plan = found[1].arbiter.status().plan
        island_of = (
            set(plan.live) & names if plan is not None and n % 3 else names - {job.agents[0]}
        )
        if not island_of:
            continue
        found = branch(found, 0, ("cut", *island(island_of, (names - island_of) | {OPERATOR})))
        if n % 2:
            found = branch(found, rng.randrange(40), ("restart operator", bool(n % 4)))
        yield found


def restores(base: History, stride: int = 1) -> Branches:
    """All holders of a layer die; sometimes a second blow during the restore."""
    job = base.job
    for n, at in enumerate(walk(base, stride)):
        plan = at[1].arbiter.status().plan
        if plan is None:
            continue
        layer = n % job.num_layers
        holders = [a for a, r in sorted(plan.wants.items()) if layer in layers_of(r)]
        found = at
        for i, name in enumerate(holders):
            found = branch(found, (n + i) % 3, ("kill", name, n % 3))
        for i in range(len(holders)):
            found = branch(found, 0, ("start", AgentId(f"b{i:02d}")))
        yield found
        blow: Fault = ("restart operator", bool(n % 2)) if n % 2 else ("kill", "b00", n % 3)
        yield branch(found, (n * 13) % 90, blow)


def fuzz(base: History, stride: int = 1) -> Branches:
    """One to six faults of any kind at random moments."""
    rng = random.Random(base.seed * 7919 + stride)
    job = base.job
    for _ in range(10**9):
        seed = rng.randrange(1 << 30)
        history = History(job, seed, POLICIES[seed % 4])
        found = history, World(job, seed, history.policy)
        for _ in range(1 + rng.randrange(6)):
            gap = rng.randrange(60 if rng.random() < 0.5 else 250)
            found = branch(found, gap, _any_fault(job, rng))
        yield found


def _any_fault(job: Job, rng: random.Random) -> Fault:
    name = rng.choice(job.agents)
    names = sorted(job.agents)
    kind = rng.randrange(16)
    if kind < 4:
        return ("kill", name, rng.randrange(3))
    if kind == 4:
        return ("vanish", name, rng.randrange(3))
    if kind < 7:
        return ("start", AgentId(f"c{rng.randrange(1 << 20)}"))
    if kind < 9:
        return ("notice", name, rng.choice((1.0, 3.0)))
    if kind == 9:
        return ("want", 1 + rng.randrange(job.pipelines))
    if kind == 10:
        return ("restart operator", rng.random() < 0.5)
    if kind == 11:
        return ("second operator",)
    if kind < 14:
        return ("cut", *_links(rng.randrange(6), names, rng)) if kind == 12 else ("heal",)
    return ("duplicate",)


FAMILIES: dict[str, Callable[..., Branches]] = {
    "singles": singles,
    "pairs": pairs,
    "seconds": seconds,
    "bulks": bulks,
    "operators": operators,
    "partitions": partitions,
    "changes": changes,
    "moves": moves,
    "islands": islands,
    "rushes": rushes,
    "heirs": heirs,
    "handovers": handovers,
    "forks": forks,
    "shrinks": shrinks,
    "restores": restores,
    "fuzz": fuzz,
}
