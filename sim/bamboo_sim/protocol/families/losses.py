"""Families of histories in which agents, operators or links fail."""

from __future__ import annotations

import random
from itertools import combinations

from bamboo_core.model.ids import AgentId
from bamboo_sim.protocol.histories.branching import (
    WHOLE,
    At,
    Histories,
    Part,
    inject,
    prefixes,
    run_on,
    snapshot,
)
from bamboo_sim.protocol.histories.history import History, advance
from bamboo_sim.protocol.parts.network import OPERATOR, Link
from bamboo_sim.protocol.running.injectors import Fault, island


def singles(base: History, part: Part = WHOLE) -> Histories:
    """Every event x every live agent; the fate of the messages it sent rotates."""
    for n, at in enumerate(prefixes(base, part, begun=False), part.turn):
        for i, name in enumerate(sorted(at[1].nodes)):
            yield inject(at, 0, ("kill", name, (n + i) % 3))


def slices(base: History, part: Part = WHOLE) -> Histories:
    """Slices that an agent computes ahead fail, some of them or all; alone, and with a kill before
    or after."""
    rng = random.Random(base.seed)
    for n, at in enumerate(prefixes(base, part), part.turn):
        names = sorted(at[1].nodes)
        for i, name in enumerate(names):
            fault = ("fail slices", name, (1, 2, 1000)[(n + i) % 3])
            failing = inject(at, 0, fault)
            yield snapshot(failing)
            kill = ("kill", rng.choice(names), n % 3)
            yield inject(failing, rng.randrange(60), kill)
            yield inject(inject(at, 0, kill), rng.randrange(30), fault)


def pairs(base: History, part: Part = WHOLE) -> Histories:
    """Two kills at once, with and without new agents."""
    for n, at in enumerate(prefixes(base, part), part.turn):
        for a, b in combinations(sorted(at[1].nodes), 2):
            first = inject(at, 0, ("kill", a, n % 3))
            found = inject(first, 0, ("kill", b, (n + 1) % 3))
            yield replaced(found, 2) if n % 2 else found


def replaced(at: At, count: int) -> At:
    """Start new agents, so that the job can continue or must restore, instead of waiting."""
    for i in range(count):
        at = inject(at, 0, ("start", AgentId(f"b{i:02d}")))
    return at


def seconds(base: History, part: Part = WHOLE) -> Histories:
    """A second kill at every third event of the recovery from the first."""
    for n, at in enumerate(prefixes(base, part), part.turn):
        for i, a in enumerate(sorted(at[1].nodes)):
            history, world = inject(at, 0, ("kill", a, (n + i) % 3))
            for gap in range(0, 60, 3):
                for j, b in enumerate(sorted(world.nodes)):
                    if (n + gap + j) % 3 == 0:
                        first = history.then(gap, ()), world
                        yield inject(first, 0, ("kill", b, (gap + j) % 3))
                if not run_on((history, world), 3):
                    break


def bulks(base: History, part: Part = WHOLE) -> Histories:
    """Kill a pipeline, a stage, or half of the agents, at once or one after the other."""
    names, p = base.job.at_start, base.job.stages
    groups = [names[i : i + p] for i in range(0, len(names), p)]
    groups += [names[s::p] for s in range(p)] + [names[::2], names[1::2]]
    for n, at in enumerate(prefixes(base, part), part.turn):
        group, late = groups[n % len(groups)], n // len(groups) % 2
        found = at
        for i, name in enumerate(group):
            found = inject(found, (n * 7 + i * 5) % 11 if late and i else 0, ("kill", name, n % 3))
        yield found


def operators(base: History, part: Part = WHOLE) -> Histories:
    """The operator dies, alone or with an agent, once or twice; or a second one starts."""
    for n, at in enumerate(prefixes(base, part), part.turn):
        names = sorted(at[1].nodes)
        crash: Fault = ("restart operator", bool(n % 2))
        yield inject(inject(at, 0, crash), n % 13, crash)
        name = names[n % len(names)]
        killed = inject(at, 0, ("kill", name, n % 3))
        yield inject(killed, n % 23, crash)
        both = inject(killed, (n * 5) % 31, ("second operator",))
        yield inject(both, n % 17, ("kill", names[(n + 1) % len(names)], n % 3))
        yield inject(at, 0, ("second operator",))


def zones(base: History, part: Part = WHOLE) -> Histories:
    """A zone dies, at once or slowly; new agents start there or elsewhere; one more may die."""
    rng, job = random.Random(base.seed + part.phase), base.job
    for n, at in enumerate(prefixes(base, part), part.turn):
        zone, late, found = f"z{n % job.zones}", n // job.zones % 2, at
        gone = [a for a in sorted(at[1].nodes) if job.zone(a) == zone]
        for i, name in enumerate(gone):
            found = inject(found, rng.randrange(9) if late and i else 0, ("kill", name, n % 3))
        if n % 3:
            for i in range(len(gone)):
                number = i * job.zones + (n if n % 3 == 1 else n + 1) % job.zones
                found = inject(found, rng.randrange(40), ("start", AgentId(f"b{number:02d}")))
        yield snapshot(found)
        others = [a for a in sorted(found[1].nodes) if job.zone(a) != zone]
        if others:
            yield inject(found, rng.randrange(90), ("kill", rng.choice(others), n % 3))


def freezes(base: History, part: Part = WHOLE) -> Histories:
    """An agent freezes, and thaws before or after it is suspected; another may die."""
    rng = random.Random(base.seed + part.phase)
    for n, at in enumerate(prefixes(base, part), part.turn):
        names = sorted(at[1].nodes)
        name = names[n % len(names)]
        found = inject(at, 0, ("freeze", name))
        if n % 3 == 1:
            others = [a for a in names if a != name]
            found = inject(found, rng.randrange(60), ("kill", rng.choice(others), n % 3))
        if n % 5 == 2:
            found = inject(found, rng.randrange(60), ("restart operator", bool(n % 2)))
        if n % 4:
            found = inject(found, rng.randrange(200), ("thaw", name))
        yield found


def links(kind: int, names: list[AgentId], rng: random.Random) -> tuple[Link, ...]:
    """Links between some agents, or to the operator, in one of six patterns."""
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


def partitions(base: History, part: Part = WHOLE) -> Histories:
    """Partitions, in one or both directions, with or without the operator; healed or not."""
    rng = random.Random(base.seed)
    for n, at in enumerate(prefixes(base, part), part.turn):
        names = sorted(at[1].nodes)
        found = inject(at, 0, ("cut", *links(n % 6, names, rng)))
        if n % 5 == 1:
            found = inject(found, rng.randrange(60), ("kill", rng.choice(names), n % 3))
        if n % 5 == 2:
            found = inject(found, rng.randrange(60), ("restart operator", bool(n % 2)))
        if n % 3:
            found = inject(found, rng.randrange(150), ("heal",))
        yield found


def isolations(base: History, part: Part = WHOLE) -> Histories:
    """A hand-over, then a partition that separates the old or the new agents from the operator."""
    rng, job = random.Random(base.seed), base.job
    for n, at in enumerate(prefixes(base, part), part.turn):
        found = at
        for name in job.agents[len(job.at_start) :]:
            found = inject(found, 0, ("start", name))
        for name in job.at_start[: 1 + n % len(job.at_start)]:
            found = inject(found, rng.randrange(5), ("notice", name, 3.0))
        advance(found[1], 0)
        found = inject(found, rng.randrange(80), ("duplicate",))
        names = set(found[1].nodes)
        plan = found[1].arbiter.status().plan
        island_of = (
            set(plan.live) & names if plan is not None and n % 3 else names - {job.agents[0]}
        )
        if not island_of:
            continue
        found = inject(found, 0, ("cut", *island(island_of, (names - island_of) | {OPERATOR})))
        if n % 2:
            found = inject(found, rng.randrange(40), ("restart operator", bool(n % 4)))
        yield found


def shrinks(base: History, part: Part = WHOLE) -> Histories:
    """The job shrinks; the remaining agents are cut off from the operator with their plan."""
    rng = random.Random(base.seed)
    for n, at in enumerate(prefixes(base, part), part.turn):
        found = inject(at, 0, ("scale", 1))
        found = inject(found, rng.randrange(10, 60), ("duplicate",))
        plan, names = found[1].plan, set(found[1].nodes)
        inside = set(plan.live) & names if plan is not None else set()
        if not inside or inside == names:
            continue
        found = inject(found, 0, ("cut", *island(inside, (names - inside) | {OPERATOR})))
        for name in sorted(inside):
            found = inject(found, 0, ("suspect", name))
        if n % 2:
            found = inject(found, rng.randrange(20), ("restart operator", False))
            for name in sorted(inside):
                found = inject(found, 0, ("suspect", name))
        yield found
