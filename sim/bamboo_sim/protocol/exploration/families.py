"""All families of histories by name, and the one that mixes all faults."""

from __future__ import annotations

import random
from collections.abc import Callable

from bamboo_core.model.ids import AgentId
from bamboo_sim.protocol.exploration import fleets, losses, restores
from bamboo_sim.protocol.exploration.branching import POLICIES, WHOLE, Histories, Part, inject
from bamboo_sim.protocol.exploration.history import History
from bamboo_sim.protocol.exploration.losses import links
from bamboo_sim.protocol.world.faults import Fault
from bamboo_sim.protocol.world.job import Job
from bamboo_sim.protocol.world.world import World


def fuzz(base: History, part: Part = WHOLE) -> Histories:
    """One to six random faults at random moments."""
    rng = random.Random(base.seed * 7919 + part.phase + part.turn)
    job = base.job
    for _ in range(10**9):
        seed = rng.randrange(1 << 30)
        history = History(job, seed, POLICIES[seed % 4])
        found = history, World(job, seed, history.policy)
        for _ in range(1 + rng.randrange(6)):
            gap = rng.randrange(60 if rng.random() < 0.5 else 250)
            found = inject(found, gap, _any_fault(job, rng))
        yield found


def _any_fault(job: Job, rng: random.Random) -> Fault:
    name = rng.choice(job.agents)
    names = sorted(job.agents)
    kind = rng.randrange(18)
    if kind < 4:
        return ("kill", name, rng.randrange(3))
    if kind == 4:
        return ("kill silently", name, rng.randrange(3))
    if kind < 7:
        return ("start", AgentId(f"c{rng.randrange(1 << 20)}"))
    if kind < 9:
        return ("notice", name, rng.choice((1.0, 3.0)))
    if kind == 9:
        return ("scale", 1 + rng.randrange(job.pipelines))
    if kind == 10:
        return ("restart operator", rng.random() < 0.5)
    if kind == 11:
        return ("second operator",)
    if kind < 14:
        return ("cut", *links(rng.randrange(6), names, rng)) if kind == 12 else ("heal",)
    if kind == 14:
        return ("duplicate",)
    if kind == 15:
        return ("suspect", name)
    return (rng.choice(("freeze", "freeze", "thaw")), name)


FAMILIES: dict[str, Callable[..., Histories]] = {
    "singles": losses.singles,
    "sessions": losses.sessions,
    "pairs": losses.pairs,
    "seconds": losses.seconds,
    "bulks": losses.bulks,
    "zones": losses.zones,
    "freezes": losses.freezes,
    "operators": losses.operators,
    "partitions": losses.partitions,
    "changes": fleets.changes,
    "surplus": fleets.surplus,
    "replacements": fleets.replacements,
    "isolations": losses.isolations,
    "short-notices": fleets.short_notices,
    "new-owners": fleets.new_owners,
    "handovers": fleets.handovers,
    "regrids": fleets.regrids,
    "learners": fleets.learners,
    "forks": restores.forks,
    "suspensions": restores.suspensions,
    "shrinks": losses.shrinks,
    "restores": restores.restores,
    "fuzz": fuzz,
}
