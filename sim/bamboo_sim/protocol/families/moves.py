"""Histories in which an agent moves to a stage that has lost all its agents."""

from __future__ import annotations

import random

from bamboo_core.model.ids import AgentId
from bamboo_core.placement.plan import Move
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
from bamboo_sim.protocol.world.state import World


def moves(base: History, part: Part = WHOLE) -> Histories:
    """All agents of a stage die, so that one of another stage moves there. While it does, it dies,
    or another agent, or the operator; or a new agent comes."""
    rng, job = random.Random(base.seed), base.job
    for n, at in enumerate(prefixes(base, part), part.turn):
        plan = at[1].plan
        if plan is None:
            continue
        found = at
        for pipeline in plan.pipelines:
            if (agent := pipeline[n % job.stages]) is not None:
                found = inject(found, rng.randrange(3), ("kill", agent, n % 3))
        yield snapshot(found)
        moment = wait_until(found, due_move)
        if moment is None:
            continue
        move = due_move(moment[1])
        assert move is not None
        others = sorted(moment[1].nodes.keys() - {move.agent})
        faults = (
            ("kill", move.agent, n % 3),
            ("kill", rng.choice(others), n % 3),
            ("restart operator", bool(n % 2)),
            ("second operator",),
            ("notice", move.agent, rng.choice((1.0, 3.0))),
            ("notice", rng.choice(others), rng.choice((1.0, 3.0))),
            ("cut", (move.agent, rng.choice(others))),
            ("start", AgentId(f"c{rng.randrange(1 << 20)}")),
        )
        for fault in (faults[n % len(faults)], faults[n % 2], rng.choice(faults)):
            yield inject(moment, rng.randrange(90), fault)
        if (begun := wait_until(moment, has_begun)) is not None:
            yield inject(begun, rng.randrange(40), ("restart operator", bool(n % 2)))


def due_move(world: World) -> Move | None:
    """A move that the planner advises, or that has begun."""
    in_force = world.arbiter.state.in_force
    if in_force is None:
        return None
    advice = in_force.relocation
    return in_force.plan.move or (advice.move if advice is not None else None)


def has_begun(world: World) -> bool:
    """Whether an agent has left its seat and gets the layers of another one."""
    in_force = world.arbiter.state.in_force
    return in_force is not None and in_force.plan.move is not None
