"""Which seats are empty after losses, as placement leaves them.

Agents of a full grid are lost one after another, in an order that a seed draws, and after each loss
placement seats those that are left. Where a pipeline goes, its agents fill other seats: so what is
empty is not always what was lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from bamboo_core.api.spec import Adjacency, RedundancyMode
from bamboo_core.model.ids import AgentId
from bamboo_core.placement.capacity import pipelines_for
from bamboo_core.placement.seats import Candidate, Seats, assign_all
from bamboo_sim.market.simulation.step_times import Hole
from bamboo_sim.market.step_times.dry import has_copies

Holes = frozenset[Hole]

PATTERNS = 5
"""Different patterns of which the mean and the worst are taken, where there are as many."""
_DRAWS = 60


def equal_to(pipelines: int, holes: Holes) -> Holes:
    """The pattern that stands for all with the same holes in other pipelines: pipelines are
    interchangeable, but for the few micro-batches that some have more than others."""
    rows = sorted(
        (sorted(s for d, s in holes if d == row) for row in range(pipelines)), reverse=True
    )
    return frozenset((d, s) for d, row in enumerate(rows) for s in row)


def patterns(
    mode: RedundancyMode, most: int, pipelines: int, stages: int, empty: int, count: int = PATTERNS
) -> tuple[Holes, ...]:
    """Up to ``count`` different patterns with so many empty seats, in which a copy of each stage is
    left. ``most``: pipelines of the grid that the losses begin with.

    Equal arguments give equal patterns. None at all: hardly any has copies. Fewer than ``count``:
    there are hardly more. ValueError: a grid with so many empty seats is not what placement makes.
    """
    if not 0 <= empty < stages:
        raise ValueError(
            f"empty is {empty} for {stages} stages; give 0 to {stages - 1}, since with more there"
            " is a pipeline fewer."
        )
    found = dict[Holes, None]()
    for draw in range(_DRAWS if empty else 1):
        random = Random(f"{most} {pipelines} {stages} {empty} {draw}")
        holes = equal_to(pipelines, after_losses(random, most, pipelines, stages, empty))
        if has_copies(mode, pipelines, stages, holes):
            found[holes] = None
        if len(found) == count:
            break
    return tuple(found)


def after_losses(random: Random, most: int, pipelines: int, stages: int, empty: int) -> Holes:
    """The empty seats once so many of a grid of ``pipelines`` are, after losses from a full grid of
    ``most`` pipelines."""
    seats: Seats = tuple(
        tuple(AgentId(f"{d:03d}-{s:03d}") for s in range(stages)) for d in range(most)
    )
    for _ in range((most - pipelines) * stages + empty):
        lost = random.choice([agent for _, _, agent in _seated(seats)])
        seats = _without(seats, lost, most, stages)
    if len(seats) != pipelines:
        raise RuntimeError(f"placement has made {len(seats)} pipelines of {pipelines}: {seats}")
    taken = {(d, s) for d, s, _ in _seated(seats)}
    return frozenset((d, s) for d in range(pipelines) for s in range(stages)) - taken


def _without(seats: Seats, lost: AgentId, most: int, stages: int) -> Seats:
    """The seats that placement gives to the others, as for a plan. Each holds its own stage."""
    left = [(agent, s) for _, s, agent in _seated(seats) if agent != lost]
    return assign_all(
        [Candidate(a, a, held=tuple(int(x == s) for x in range(stages))) for a, s in left],
        stages=stages,
        pipelines=range(pipelines_for(len(left), stages=stages, wanted=most), most + 1),
        previous=seats,
        adjacency=Adjacency.CLUSTER,
    )


def _seated(seats: Seats) -> Iterator[tuple[int, int, AgentId]]:
    for d, pipeline in enumerate(seats):
        for s, agent in enumerate(pipeline):
            if agent is not None:
                yield d, s, agent
