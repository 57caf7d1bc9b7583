"""Families of histories in which the user's code fails, on one agent or wherever it runs."""

from __future__ import annotations

import random

from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Halted
from bamboo_sim.protocol.families.moments import wait_until, who_says
from bamboo_sim.protocol.histories.branching import (
    WHOLE,
    Histories,
    Part,
    inject,
    prefixes,
    snapshot,
)
from bamboo_sim.protocol.histories.history import History
from bamboo_sim.protocol.parts.network import OPERATOR
from bamboo_sim.protocol.running.injectors import Fault
from bamboo_sim.protocol.world.state import World


def samples(base: History, part: Part = WHOLE) -> Histories:
    """A forward or a backward fails on one or two agents, or on all, or a sample ends the process
    of whoever reads it. Meanwhile agents die, leave, come or are heard again, leaders change, the
    disk fills up, and the job is suspended."""
    rng, job = random.Random(base.seed), base.job
    for n, at in enumerate(prefixes(base, part), part.turn):
        names = sorted(at[1].nodes)
        one, other = rng.choice(names), rng.choice(names)
        is_back = bool(n % 2)
        halts, spoils = ("halt backward", "bad backward") if is_back else ("halt", "bad sample")
        halting = inject(at, 0, (halts, one))
        yield snapshot(halting)
        yield inject(halting, rng.randrange(60), (halts, other))
        yield inject(halting, rng.randrange(60), ("kill", other, n % 3))
        bad = inject(at, 0, (spoils,))
        yield snapshot(bad)
        changes: tuple[Fault, ...] = (
            ("kill", one, n % 3),
            ("notice", one, rng.choice((3.0, 30.0))),
            ("drain", one),
            ("start", AgentId("c00")),
            ("restart operator", bool(n % 2)),
            ("second operator",),
            ("defect",),
            ("reconnect", one, n % 4),
            ("suspend",),
            ("full disk", rng.choice((0.5, 20.0, 90.0))),
            ("stand still", "storage", OPERATOR, 20.0),
            ("fail planner", 1),
            (halts, one),
        )
        yield inject(bad, rng.randrange(120), rng.choice(changes))
        fatal = inject(at, 0, ("fatal sample",))
        yield snapshot(fatal)
        yield inject(fatal, rng.randrange(120), rng.choice(changes))
        halted, failing = wait_until(bad, who_says(Halted)), wait_until(bad, _is_failing)
        if halted is not None:
            yield inject(halted, 0, ("reconnect", who_says(Halted)(halted[1]), 0))
        for moment in (halted, failing):
            if moment is None:
                continue
            found = inject(moment, rng.randrange(60), changes[n % len(changes)])
            yield snapshot(found)
            yield inject(found, rng.randrange(60), rng.choice(changes))
            if job.save_every and n % 3 == 0:
                again = inject(moment, rng.randrange(60), ("suspend",))
                yield inject(again, 200, ("resume", job.pipelines, job.stages))

        if failing is not None:
            gone = inject(failing, rng.randrange(20), ("kill", _who_fails(failing[1]), n % 3))
            yield inject(gone, rng.randrange(20), ("notice", other, rng.choice((3.0, 30.0))))


def _who_fails(world: World) -> AgentId:
    """The agent that has met the error last: it may be the only one with its layers."""
    return AgentId(world.arbiter.durable.failing.partition(":")[0])


def _is_failing(world: World) -> bool:
    durable = world.arbiter.durable
    return bool(durable.failing) and durable.outcome is None
