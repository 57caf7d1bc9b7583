"""Planted faults of the rules by which agents move to other stages. Rows: V."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from bamboo_core.arbiter import rounds
from bamboo_core.arbiter.changes import take_move
from bamboo_core.arbiter_state.state import State
from bamboo_core.model.ids import AgentId, Range
from bamboo_core.placement import moves, seats
from bamboo_core.placement.plan import Move
from bamboo_core.planning.team import Seating
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.planted.patches import Planted, both, patched

SHORT = Job(1, 4, 2, steps=9)
ZONES = Job(2, 4, 2, steps=9, zones=2)
LEARNING = Job(2, 4, 2, steps=12, learners=True)


def only_the_new(self: Seating, grid: Any) -> dict[AgentId, tuple[Range, ...]]:
    """An agent that moves drops its layers as soon as it leaves its seat."""
    learners = _learners(self, grid)
    mover = self._mover
    if mover is not None and mover in learners:
        stage = next(s for p in grid for s, a in enumerate(p) if a == mover)
        learners[mover] = (self._cut()[stage],)
    return learners


_learners = Seating._learners


def in_force_only(state: State) -> Move | None:
    """The leader knows the move from its own plan, and not from the facts."""
    before = state.durable
    plan = state.in_force.plan if state.in_force is not None else None
    if before.move is not None and (plan is None or plan.move is None):
        return None
    return take_move(state)


def anywhere(zone: str, around: Collection[str], adjacency: Any) -> bool:
    """Neighbours may share a zone."""
    return True


PLANTS: tuple[Planted, ...] = (
    Planted("the last agent of a stage moves", "V1", patched(moves, "_KEPT", 0),
            (("moves", SHORT),)),
    Planted("an agent that moves gives up its layers before it has its seat", "V2",
            patched(Seating, "_learners", only_the_new), (("moves", LEARNING),)),
    Planted("an agent moves next to another of its zone", "V3",
            both(patched(moves, "is_apart", anywhere), patched(seats, "is_apart", anywhere)),
            (("moves", ZONES),)),
    Planted("an agent moves next to another of its zone, which loses its seat", "V5",
            patched(moves, "is_apart", anywhere), (("moves", ZONES),)),
    Planted("another leader forgets a move that has begun", "V4",
            patched(rounds, "take_move", in_force_only), (("moves", LEARNING),)),
)  # fmt: skip
