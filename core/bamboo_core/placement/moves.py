"""Moves of one agent to an empty seat of another stage, so that lost seats lie better.

Agents that are lost choose no stage: both own copies of one may go while another keeps all of its
own. The work of an empty seat goes to agents that hold its stage, which are few then.
"""

from __future__ import annotations

from collections.abc import Mapping

from bamboo_core.api.spec import Adjacency
from bamboo_core.model.ids import AgentId, Coordinate
from bamboo_core.placement.plan import Move
from bamboo_core.placement.seats import Seats
from bamboo_core.placement.zones import is_apart, ring_neighbours

_KEPT = 1  # agents that stay in the stage that one leaves: they hold all that it holds


def own(seats: Seats) -> list[int]:
    """Stage -> how many of its seats have an agent."""
    return [sum(agent is not None for agent in column) for column in zip(*seats, strict=True)]


def has_bare_stage(seats: Seats) -> bool:
    """Whether a stage has no agent in any of its seats."""
    return 0 in own(seats)


def moved(seats: Seats, move: Move) -> Seats:
    """The seats after the move."""
    grid = [[None if a == move.agent else a for a in pipeline] for pipeline in seats]
    grid[move.to.pipeline][move.to.stage] = move.agent
    return tuple(map(tuple, grid))


def is_made(seats: Seats, move: Move) -> bool:
    """Whether the agent has the seat."""
    (agent, (d, s)) = move
    return d < len(seats) and s < len(seats[d]) and seats[d][s] == agent


def is_allowed(
    seats: Seats, move: Move, *, zones: Mapping[AgentId, str], adjacency: Adjacency
) -> bool:
    """Whether the seat is empty, the agent's stage keeps an agent, and no ring neighbour of the new
    seat is in the agent's zone.

    An agent in a seat of the same stage holds all layers that the mover holds for its seat, so no
    move takes the last copy of a layer.
    """
    (agent, (d, s)), stages = move, len(seats[0]) if seats else 0
    if not (d < len(seats) and s < stages) or seats[d][s] is not None:
        return False
    left = next((t for p in seats for t, a in enumerate(p) if a == agent), None)
    if left is not None and own(seats)[left] <= _KEPT:
        return False
    around = (seats[d][n] for n in ring_neighbours(s, stages))
    theirs = (zones[a] for a in around if a is not None and a != agent)
    return is_apart(zones[agent], theirs, adjacency)


def candidates(
    seats: Seats, *, zones: Mapping[AgentId, str], adjacency: Adjacency, most: int
) -> list[Move]:
    """Moves that may shorten the step, those that help most often first, at most so many.

    A stage without an agent in any seat gets one before all others. Then agents go to the empty
    seats from stages that have more agents than the seat's: from full stages first, and from near
    ones, since replicas pass work on along the ring.
    """
    count, stages = own(seats), len(seats[0]) if seats else 0
    is_bare = 0 in count
    ranked: list[tuple[tuple[bool, int, bool, Coordinate, Coordinate], Move]] = []
    for d, pipeline in enumerate(seats):
        for s, taken in enumerate(pipeline):
            if taken is not None or (is_bare and count[s]):
                continue
            to = Coordinate(d, s)
            for e, other in enumerate(seats):
                for t, agent in enumerate(other):
                    if agent is None or count[t] <= max(count[s], _KEPT):
                        continue
                    way = min((s - t) % stages, (t - s) % stages)
                    rank = count[t] < len(seats), way, e != d, to, Coordinate(e, t)
                    ranked.append((rank, Move(agent, to)))
    found: list[Move] = []
    for _, move in sorted(ranked):
        if len(found) == most:
            break
        if is_allowed(seats, move, zones=zones, adjacency=adjacency):
            found.append(move)
    return found
