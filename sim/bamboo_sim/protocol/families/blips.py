"""Families in which live agents cannot be reached for a while, and something would be given up.

Nobody dies for it. The links between agents, or their sessions, are cut and restored, together or
one by one, or the operator reads nothing.
"""

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
from bamboo_sim.protocol.parts.network import OPERATOR, PLANNER
from bamboo_sim.protocol.running.injectors import Fault, island

_LONG = 100_000  # events: more than a history has
_FOR_EVER_S = 1e9


def blips(base: History, part: Part = WHOLE) -> Histories:
    """Links between agents are cut for a time, sometimes twice, or for ever; another agent may die,
    or be away for a time of its own."""
    rng = random.Random(base.seed + part.phase)
    for n, at in enumerate(prefixes(base, part), part.turn):
        names = sorted(at[1].nodes)
        name = rng.choice(names)
        others = [a for a in names if a != name]
        if not others:
            continue
        seconds = rng.choice((8.0, 45.0, 75.0, 98.0, 150.0, 167.0, 170.0, 173.0))
        cut: Fault = ("cut for", seconds, *island([name], others))
        found = inject(at, 0, cut)
        yield snapshot(found)
        dying = inject(at, 0, ("kill", rng.choice(others), n % 3))
        dying = inject(dying, rng.randrange(20), cut)
        for again in (snapshot(dying), found):
            yield inject(again, rng.randrange(250), ("cut for", 6.0, *island([name], others)))
        yield dying
        still = inject(at, 0, ("stand still", "supervisor", name, rng.choice((80.0, 110.0))))
        yield _held_twice(snapshot(still), rng.choice(others), rng)
        slow = rng.choice((20.0, 40.0, 60.0))
        yield inject(still, 30 + rng.randrange(90), ("stand still", "machine", PLANNER, slow))
        found = _one_by_one(at, names, rng)
        yield snapshot(found)
        yield inject(found, rng.randrange(120), ("kill", rng.choice(names), n % 3))
        if n % 4 == 0:
            yield inject(at, 0, ("cut for", _FOR_EVER_S, *island([name], others)))


def _held_twice(still: At, other: AgentId, rng: random.Random) -> At:
    """The job waits for one agent, then for more agents, and then for the first one again."""
    apart = island([other], [OPERATOR])
    return inject(still, 30 + rng.randrange(60), ("cut for", rng.choice((62.0, 70.0)), *apart))


def _one_by_one(at: At, names: list[AgentId], rng: random.Random) -> At:
    """Sessions of some agents are closed, and each of them comes back at a time of its own."""
    first_s, pause_s = rng.choice((4.0, 20.0)), rng.choice((0.0, 0.5, 1.0, 12.0))
    for i, name in enumerate(rng.sample(names, rng.randrange(1, len(names) + 1))):
        at = inject(at, rng.randrange(3), ("away for", first_s + i * pause_s, name))
    return at


def rests(base: History, part: Part = WHOLE) -> Histories:
    """The job is suspended while sessions of some agents are broken; later it is resumed."""
    rng, job = random.Random(base.seed + part.phase), base.job
    for at in prefixes(base, part):
        names = sorted(at[1].nodes)
        some = rng.sample(names, rng.randrange(1, len(names) + 1))
        away: Fault = ("cut for", rng.choice((4.0, 20.0, 50.0, 90.0)), *island(some, [OPERATOR]))
        found = _one_by_one(at, names, rng) if rng.random() < 0.5 else inject(at, 0, away)
        found = inject(found, rng.randrange(40), ("suspend",))
        yield snapshot(found)
        yield inject(found, rng.randrange(60), ("resume", job.pipelines, job.stages))
        found = inject(found, _LONG, ("resume", job.pipelines, job.stages))
        for i in range(len(names)):
            found = inject(found, 0, ("start", f"d{i:02d}"))
        yield found


def deaf(base: History, part: Part = WHOLE) -> Histories:
    """All connections are reset, or some, and then the operator reads nothing for a while."""
    rng = random.Random(base.seed + part.phase)
    for n, at in enumerate(prefixes(base, part), part.turn):
        names = sorted(at[1].nodes)
        some = names if n % 2 else rng.sample(names, max(1, len(names) // 2))
        found = inject(at, 0, ("reset", n % 3, *sorted(some)))
        seconds = rng.choice((2.0, 15.0, 25.0, 40.0))
        found = inject(found, rng.randrange(9), ("stand still", "inbox", OPERATOR, seconds))
        yield snapshot(found)
        yield inject(found, rng.randrange(60), ("kill", rng.choice(names), n % 3))
