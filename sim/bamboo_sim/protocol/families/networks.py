"""Histories in which agents measure the network, so that plans change by what they say."""

from __future__ import annotations

import random

from bamboo_sim.protocol.families.moments import wait_until
from bamboo_sim.protocol.histories.branching import (
    WHOLE,
    Histories,
    Part,
    inject,
    prefixes,
    snapshot,
)
from bamboo_sim.protocol.histories.history import History
from bamboo_sim.protocol.parts.meters import Meter
from bamboo_sim.protocol.world.state import World

_STEP_S = 1.0  # for about a dozen events of each agent
_HURRIED_S = 0.3  # where what the operator says comes last, or it would count as lost


def networks(base: History, part: Part = WHOLE) -> Histories:
    """Agents die while others say what their network passes, or lie. Each event takes time, so
    that plans count with it; then another agent dies, or they say something else, or another
    operator comes, which has to hear it again."""
    rng = random.Random(base.seed)
    every = tuple(Meter)
    step_s = _HURRIED_S if base.policy == "slow-control" else _STEP_S
    for n, at in enumerate(prefixes(base, part), part.turn):
        names = sorted(at[1].nodes)
        meter = every[n % len(every)].value
        found = inject(inject(at, 0, ("measure", meter, n)), 0, ("pace", step_s / len(names), 4000))
        if n % 4:
            found = inject(found, rng.randrange(30), ("kill", rng.choice(names), n % 3))
        yield snapshot(found)
        later = wait_until(found, counts_with_it)
        if later is None:
            continue
        faults = (
            ("kill", rng.choice(names), n % 3),
            ("measure", rng.choice(every).value, n + 1),
            ("restart operator", bool(n % 2)),
            ("notice", rng.choice(names), 3.0),
        )
        yield inject(later, rng.randrange(60), faults[n % len(faults)])
        yield inject(later, rng.randrange(60), rng.choice(faults))


def counts_with_it(world: World) -> bool:
    """Whether the next plan counts with what agents have measured."""
    state = world.arbiter.state
    return state.wire.settled < state.job.spec.transport.bytes_per_s
