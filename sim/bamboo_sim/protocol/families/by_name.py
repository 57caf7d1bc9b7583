"""All families of histories by name, and the one that mixes all faults."""

from __future__ import annotations

import random
from collections.abc import Callable

from bamboo_core.model.ids import AgentId
from bamboo_sim.protocol.families import (
    blips,
    edges,
    fleets,
    flips,
    folders,
    losses,
    moments,
    moves,
    networks,
    restores,
    samples,
)
from bamboo_sim.protocol.families.losses import links
from bamboo_sim.protocol.histories.branching import POLICIES, WHOLE, Histories, Part, inject
from bamboo_sim.protocol.histories.history import History
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.parts.meters import Meter
from bamboo_sim.protocol.parts.network import OPERATOR, PLANNER, STORE
from bamboo_sim.protocol.running.injectors import Fault
from bamboo_sim.protocol.running.simulation import Simulation


def fuzz(base: History, part: Part = WHOLE) -> Histories:
    """One to six random faults at random moments."""
    rng = random.Random(base.seed * 7919 + part.phase + part.turn)
    job = base.job
    for _ in range(10**9):
        seed = rng.randrange(1 << 30)
        history = History(job, seed, POLICIES[seed % 4])
        found = history, Simulation(job, seed, history.policy)
        for _ in range(1 + rng.randrange(6)):
            gap = rng.randrange(60 if rng.random() < 0.5 else 250)
            found = inject(found, gap, _any_fault(job, rng))
        yield found


def _any_fault(job: Job, rng: random.Random) -> Fault:
    """Faults of agents and links, those of :mod:`.edges`, and what users and others change."""
    name, names = rng.choice(job.agents), sorted(job.agents)
    seconds = rng.choice((0.5, 2.0, 5.0, 40.0))
    kinds: tuple[Callable[[], Fault], ...] = (
        lambda: ("kill", name, rng.randrange(3)),
        lambda: ("kill", name, rng.randrange(3)),
        lambda: ("kill silently", name, rng.randrange(3)),
        lambda: ("start", AgentId(f"c{rng.randrange(1 << 20)}")),
        lambda: ("start", AgentId(f"c{rng.randrange(1 << 20)}")),
        lambda: ("start stranger", AgentId(f"d{rng.randrange(1 << 20)}")),
        lambda: ("notice", name, rng.choice((1.0, 3.0))),
        lambda: ("scale", 1 + rng.randrange(job.pipelines)),
        lambda: ("restart operator", rng.random() < 0.5),
        lambda: ("second operator",),
        lambda: ("cut", *links(rng.randrange(6), names, rng)),
        lambda: ("heal",),
        lambda: ("duplicate",),
        lambda: ("suspect", name),
        lambda: (rng.choice(("freeze", "freeze", "thaw")), name),
        lambda: ("reconnect", name, rng.randrange(9)),
        lambda: ("reset", rng.randrange(3), *names),
        lambda: ("pass", rng.choice((1, 3, 8))),
        lambda: ("pace", rng.choice((0.01, 0.1)), 50),
        lambda: ("stand still", "machine", rng.choice((OPERATOR, STORE, PLANNER)), seconds),
        lambda: ("stand still", rng.choice(("supervisor", "worker")), name, seconds),
        lambda: ("stand still", rng.choice(("lease", "storage")), OPERATOR, seconds),
        lambda: ("fail writes", rng.randrange(1, 4), rng.random() < 0.5),
        lambda: ("fail storage", rng.randrange(1, 4)),
        lambda: (("folder away", True), ("folder away", False), ("file away",))[rng.randrange(3)],
        lambda: ("files back",),
        lambda: ("misread", name, 1),
        lambda: ("fail", name, rng.random() < 0.5),
        lambda: (rng.choice(("halt", "halt backward")), name),
        lambda: ("bad sample",) if rng.random() < 0.3 else ("halt", name),
        lambda: ("cut quietly", *links(rng.randrange(2), names, rng)),
        lambda: ("drop", rng.randrange(9)),
        lambda: ("trickle", *links(rng.randrange(2), names, rng)),
        lambda: rng.choice((("defect",), ("fail planner", 1))),
        lambda: ("slow down", name),
        lambda: ("fail slices", name, rng.choice((1, 1000))),
        lambda: ("cut for", rng.choice((4.0, 20.0, 98.0)), *links(rng.randrange(6), names, rng)),
        lambda: ("away for", seconds, name),
        lambda: ("suspend",),
        lambda: ("resume", job.pipelines, job.stages),
        lambda: ("resume", job.pipelines, job.stages),
        lambda: ("drain", name),
        lambda: ("stand still", "inbox", OPERATOR, rng.choice((2.0, 15.0, 40.0))),
        lambda: ("mute", *links(rng.randrange(2), names, rng)),
        lambda: rng.choice((("corrupt",), ("corrupt known",))),
        lambda: ("alter", name, rng.randrange(job.num_layers)),
        lambda: ("flip", name, rng.choice(("F", "R", "VOTE")), rng.random() < 0.3),
        lambda: ("lose continuation",),
        lambda: ("beat every", rng.choice((0.2, 6.4))),
        lambda: ("measure", rng.choice(tuple(Meter)).value, rng.randrange(9)),
    )
    return rng.choice(kinds)()


FAMILIES: dict[str, Callable[..., Histories]] = {
    "singles": losses.singles,
    "slices": losses.slices,
    "pairs": losses.pairs,
    "seconds": losses.seconds,
    "bulks": losses.bulks,
    "zones": losses.zones,
    "freezes": losses.freezes,
    "operators": losses.operators,
    "partitions": losses.partitions,
    "changes": fleets.changes,
    "surplus": fleets.surplus,
    "strangers": fleets.strangers,
    "replacements": fleets.replacements,
    "isolations": losses.isolations,
    "short-notices": fleets.short_notices,
    "new-owners": fleets.new_owners,
    "handovers": fleets.handovers,
    "leavers": fleets.leavers,
    "regrids": fleets.regrids,
    "returns": fleets.returns,
    "learners": fleets.learners,
    "moves": moves.moves,
    "networks": networks.networks,
    "forks": restores.forks,
    "absences": restores.absences,
    "suspensions": restores.suspensions,
    "raises": restores.raises,
    "folders": folders.folders,
    "beginnings": folders.beginnings,
    "attempts": folders.attempts,
    "shrinks": losses.shrinks,
    "restores": restores.restores,
    "successors": restores.successors,
    "sessions": edges.sessions,
    "words": edges.words,
    "tears": moments.tears,
    "farewells": moments.farewells,
    "finishes": moments.finishes,
    "reports": moments.reports,
    "echoes": moments.echoes,
    "lists": moments.lists,
    "stops": moments.stops,
    "sources": moments.sources,
    "resets": edges.resets,
    "races": edges.races,
    "writes": edges.writes,
    "pauses": edges.pauses,
    "hangs": edges.hangs,
    "storage": edges.storage,
    "space": edges.space,
    "samples": samples.samples,
    "silences": edges.silences,
    "trickles": edges.trickles,
    "delays": edges.delays,
    "flips": flips.flips,
    "merges": flips.merges,
    "votes": flips.votes,
    "tellers": flips.tellers,
    "alterations": flips.alterations,
    "spreads": flips.spreads,
    "relapses": flips.relapses,
    "blips": blips.blips,
    "rests": blips.rests,
    "deaf": blips.deaf,
    "fuzz": fuzz,
}
