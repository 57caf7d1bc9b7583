"""Zones: which grids are feasible, which zone each seat gets, which zone needs the next agent.

Ring neighbours never share a zone unless the adjacency is Cluster. Then D rings of P seats are
feasible iff the sum over the zones of min(agents, D * floor(P/2)) is at least D * P.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bamboo_core.api.spec import Adjacency
from bamboo_core.model.counts import counted

ZoneGrid = tuple[tuple[str, ...], ...]
"""zones[pipeline][stage]"""


@dataclass(frozen=True)
class Infeasible:
    """No placement exists; ``reason`` says what is missing and how to fix it."""

    reason: str


def capacity(zones: Mapping[str, int], *, stages: int, pipelines: int, adjacency: Adjacency) -> int:
    """Number of seats that the agents can fill; at most D * P."""
    limit = zone_limit(stages=stages, pipelines=pipelines, adjacency=adjacency)
    return min(sum(min(n, limit) for n in zones.values()), stages * pipelines)


def ring_neighbours(stage: int, stages: int) -> set[int]:
    """The stages before and after it in the ring; none if it is alone."""
    return {(stage - 1) % stages, (stage + 1) % stages} - {stage}


def is_apart(zone: str, around: Iterable[str], adjacency: Adjacency) -> bool:
    """Whether an agent of the zone may sit between ring neighbours of these zones."""
    return adjacency is Adjacency.CLUSTER or zone not in around


def zone_limit(*, stages: int, pipelines: int, adjacency: Adjacency) -> int:
    """The most seats that one zone may fill."""
    if stages == 1 or adjacency is Adjacency.CLUSTER:
        return stages * pipelines
    return pipelines * (stages // 2)


def feasible(
    zones: Mapping[str, int],
    *,
    stages: int,
    pipelines: int,
    adjacency: Adjacency = Adjacency.ALTERNATE,
) -> bool:
    """Whether the agents can fill D rings of P seats; ``zones``: usable agents per zone."""
    able = capacity(zones, stages=stages, pipelines=pipelines, adjacency=adjacency)
    return able == stages * pipelines


def feasible_pipelines(
    zones: Mapping[str, int],
    *,
    stages: int,
    most: int,
    adjacency: Adjacency = Adjacency.ALTERNATE,
) -> int:
    """The largest feasible D <= ``most``, or 0. (If D is feasible, so is every smaller D.)"""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if feasible(zones, stages=stages, pipelines=middle, adjacency=adjacency):
            low = middle
        else:
            high = middle - 1
    return low


def explain(
    zones: Mapping[str, int],
    *,
    stages: int,
    pipelines: int,
    adjacency: Adjacency = Adjacency.ALTERNATE,
) -> Infeasible | None:
    """Why the grid is infeasible; None if it is feasible."""
    if feasible(zones, stages=stages, pipelines=pipelines, adjacency=adjacency):
        return None
    seats, agents = stages * pipelines, sum(zones.values())
    listed = ", ".join(f"{z}: {n}" for z, n in sorted(zones.items())) or "none"
    grid = f"{pipelines} x {stages} needs {counted(seats, 'agent')}; usable by zone: {listed}"
    if agents < seats:
        more = counted(seats - agents, "agent")
        return Infeasible(f"{grid}: add {more} or ask for fewer pipelines")
    limit = zone_limit(stages=stages, pipelines=pipelines, adjacency=adjacency)
    able = capacity(zones, stages=stages, pipelines=pipelines, adjacency=adjacency)
    return Infeasible(
        f"{grid}; ring neighbours must not share a zone, so one zone fills at most {limit} seats:"
        f" {seats - able} of {seats} seats stay empty; add agents in other zones, ask for fewer"
        " pipelines or set placement.adjacency to Cluster"
    )


def next_zone(
    zones: Mapping[str, int],
    *,
    stages: int,
    pipelines: int,
    adjacency: Adjacency = Adjacency.ALTERNATE,
    preference: Sequence[str] = (),
) -> str | None:
    """The zone in which the next agent helps most; None if no known zone helps.

    zones: present and pending agents per zone, including zones without any; preference: breaks
    ties. Alternate: the emptiest zone that still has room, so that the loss of a zone costs least;
    Cluster: the fullest. For standbys beyond a full grid, all zones have room.
    """
    rank = {z: i for i, z in enumerate(preference)}
    limit = zone_limit(stages=stages, pipelines=pipelines, adjacency=adjacency)
    full = feasible(zones, stages=stages, pipelines=pipelines, adjacency=adjacency)
    room = [z for z, n in zones.items() if full or n < limit]
    sign = -1 if adjacency is Adjacency.CLUSTER else 1
    return min(room, key=lambda z: (sign * zones[z], rank.get(z, len(rank)), z), default=None)


def zones_for_slots(
    zones: Mapping[str, int],
    *,
    stages: int,
    pipelines: int,
    adjacency: Adjacency = Adjacency.ALTERNATE,
) -> ZoneGrid | Infeasible:
    """A zone for every seat; separates ring neighbours and spreads the copies of a stage.

    zones: agents per zone. Cluster: as few zones per ring as possible.
    """
    problem = explain(zones, stages=stages, pipelines=pipelines, adjacency=adjacency)
    if problem is not None:
        return problem
    if adjacency is Adjacency.CLUSTER:
        return _clustered(zones, stages, pipelines)
    limit = zone_limit(stages=stages, pipelines=pipelines, adjacency=adjacency)
    used = _level({z: min(n, limit) for z, n in zones.items()}, stages * pipelines)
    pool = [z for z in sorted(used, key=lambda z: (-used[z], z)) for _ in range(used[z])]
    columns: list[dict[str, int]] = [{} for _ in range(stages)]
    return tuple(_spread(_arrange(pool[d::pipelines]), columns) for d in range(pipelines))


def _level(most: dict[str, int], seats: int) -> dict[str, int]:
    """Distribute the seats as evenly as the zones allow (water filling)."""
    out, left = {}, seats
    for i, zone in enumerate(sorted(most, key=lambda z: (most[z], z))):
        out[zone] = min(most[zone], left // (len(most) - i))
        left -= out[zone]
    for zone in sorted(out):  # what integer division left over
        more = min(most[zone] - out[zone], left)
        out[zone], left = out[zone] + more, left - more
    return out


def _arrange(zones: list[str]) -> list[str]:
    """A ring without equal neighbours: the most frequent zones take even places, then odd ones."""
    count = {z: zones.count(z) for z in set(zones)}
    ordered = sorted(zones, key=lambda z: (-count[z], z))
    ring = [""] * len(zones)
    places = (*range(0, len(zones), 2), *range(1, len(zones), 2))
    for place, zone in zip(places, ordered, strict=True):
        ring[place] = zone
    return ring


def _spread(ring: list[str], columns: list[dict[str, int]]) -> tuple[str, ...]:
    """The rotation or reflection that repeats the fewest zones within the columns."""
    turns = [
        way[k:] + way[:k] for way in (ring, ring[::-1]) for k in range(min(len(ring), _ROTATIONS))
    ]
    best = min(
        turns,
        key=lambda turn: sum(
            column.get(zone, 0) for column, zone in zip(columns, turn, strict=True)
        ),
    )
    for column, zone in zip(columns, best, strict=True):
        column[zone] = column.get(zone, 0) + 1
    return tuple(best)


_ROTATIONS = 16


def _clustered(zones: Mapping[str, int], stages: int, pipelines: int) -> ZoneGrid:
    left = dict(zones)
    rings = []
    for _ in range(pipelines):
        ring: list[str] = []
        while len(ring) < stages:
            need = stages - len(ring)
            whole = [z for z in left if left[z] >= need]
            zone = (
                min(whole, key=lambda z: (left[z], z))
                if whole
                else max(left, key=lambda z: (left[z], z))
            )
            take = min(need, left[zone])
            ring += [zone] * take
            left[zone] -= take
        rings.append(tuple(ring))
    return tuple(rings)
