"""Placement: which agent gets which seat of the grid.

First keep all agents and fill the empty seats, with chains of two moves if the zones require it.
If seats stay empty although the zones allow a full grid, lay out the zones again and keep as many
layers in place as possible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bamboo_core.api.spec import Adjacency
from bamboo_core.model.ids import AgentId
from bamboo_core.placement.zones import (
    Infeasible,
    ZoneGrid,
    capacity,
    explain,
    feasible,
    feasible_pipelines,
    is_apart,
    next_zone,
    ring_neighbours,
    zones_for_slots,
)

__all__ = [
    "Candidate",
    "Infeasible",
    "Seats",
    "assign",
    "assign_all",
    "capacity",
    "explain",
    "feasible",
    "feasible_pipelines",
    "next_zone",
    "zones_for_slots",
]

Seats = tuple[tuple[AgentId | None, ...], ...]
"""seats[pipeline][stage]; None: an empty seat."""


@dataclass(frozen=True)
class Candidate:
    """An agent that can get a seat."""

    agent: AgentId
    zone: str
    age_s: float = 0.0  # of its node; agents on old nodes go first
    held: tuple[int, ...] = ()  # layers held per stage of the new cut; empty: use the old seat


def assign(
    candidates: Sequence[Candidate],
    *,
    stages: int,
    pipelines: int,
    previous: Seats = (),
    adjacency: Adjacency = Adjacency.ALTERNATE,
    holes: bool = False,
) -> Seats | Infeasible:
    """Seat the agents with as few moves as possible.

    previous: the seats of the previous plan, of any shape; agents that are no longer candidates
    lose their seats. holes: allow empty seats (else Infeasible if the zones do not allow a full
    grid). Ring neighbours never share a zone, except under Cluster.
    """
    zones: dict[str, int] = {}
    for candidate in candidates:
        zones[candidate.zone] = zones.get(candidate.zone, 0) + 1
    problem = explain(zones, stages=stages, pipelines=pipelines, adjacency=adjacency)
    if problem is not None and not holes:
        return problem
    seating = _Seating(candidates, stages, pipelines, previous, adjacency)
    if previous or problem is not None:
        seating.fill()
    if problem is not None or seating.is_full():
        return seating.seats()
    layout = zones_for_slots(zones, stages=stages, pipelines=pipelines, adjacency=adjacency)
    assert not isinstance(layout, Infeasible)
    return _laid_out(layout, candidates, previous)


def assign_all(
    candidates: Sequence[Candidate],
    *,
    stages: int,
    pipelines: range,
    previous: Seats = (),
    adjacency: Adjacency = Adjacency.ALTERNATE,
) -> Seats:
    """Seat as many agents as possible in the smallest of these grids that does it; seats may stay
    empty. Agents of one zone may need more pipelines, since neighbours must not share it: one
    without a seat would lose the state that it holds."""
    best: Seats = ()
    for number in pipelines:
        found = assign(
            candidates,
            stages=stages,
            pipelines=number,
            previous=previous,
            adjacency=adjacency,
            holes=True,
        )
        assert not isinstance(found, Infeasible)
        best = max(best, found, key=_num_seated)
        if _num_seated(best) == len(candidates):
            break
    return best


def _num_seated(seats: Seats) -> int:
    return sum(agent is not None for pipeline in seats for agent in pipeline)


class _Seating:
    """The grid under construction; seats have the number pipeline * stages + stage."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        stages: int,
        pipelines: int,
        previous: Seats,
        adjacency: Adjacency,
    ) -> None:
        self.stages, self.pipelines, self.adjacency = stages, pipelines, adjacency
        self.together = adjacency is Adjacency.CLUSTER
        self.known = {c.agent: c for c in candidates}
        self.grid: list[Candidate | None] = [None] * (stages * pipelines)
        self.columns: list[dict[str, int]] = [{} for _ in range(stages)]
        self._keep(previous)
        seated = {c.agent for c in self.grid if c is not None}
        self.free = _Free([c for c in candidates if c.agent not in seated], stages, previous)

    def _keep(self, previous: Seats) -> None:
        """Keep the pipelines with most agents left, except agents that clash with a neighbour."""
        if not previous or len(previous[0]) != self.stages:
            return
        alive = [sum(a in self.known for a in p) for p in previous]
        best = sorted(range(len(previous)), key=lambda d: (-alive[d], d))[: self.pipelines]
        for row, d in enumerate(sorted(best)):
            for s, agent in enumerate(previous[d]):
                candidate = self.known.get(agent) if agent is not None else None
                seat = row * self.stages + s
                if candidate is not None and self.fits(candidate.zone, seat):
                    self.put(seat, candidate)

    def put(self, seat: int, candidate: Candidate | None) -> Candidate | None:
        """Put a candidate into the seat, or empty it (None); return the previous candidate."""
        before, self.grid[seat] = self.grid[seat], candidate
        column = self.columns[seat % self.stages]
        if before is not None:
            column[before.zone] -= 1
        if candidate is not None:
            column[candidate.zone] = column.get(candidate.zone, 0) + 1
        return before

    def neighbours(self, seat: int) -> Iterator[int]:
        """The previous and the next seat of the ring."""
        stage = seat % self.stages
        for other in ring_neighbours(stage, self.stages):
            yield seat - stage + other

    def fits(self, zone: str, seat: int) -> bool:
        """Whether an agent of the zone may take the seat."""
        around = (other.zone for n in self.neighbours(seat) if (other := self.grid[n]) is not None)
        return is_apart(zone, around, self.adjacency)

    def is_full(self) -> bool:
        return None not in self.grid

    def seats(self) -> Seats:
        names = [c.agent if c is not None else None for c in self.grid]
        p = self.stages
        return tuple(tuple(names[d * p : (d + 1) * p]) for d in range(self.pipelines))

    def fill(self) -> None:
        """Fill empty seats, those with the fewest choices of zone first; then move other agents."""
        open_seats = [i for i, c in enumerate(self.grid) if c is None]
        choices = {i: sum(self.fits(z, i) for z in self.free.count) for i in open_seats}
        for seat in sorted(open_seats, key=lambda i: (choices[i], i)):
            best = self._best(seat)
            if best is not None:
                self.put(seat, self.known[self.free.take(best, seat % self.stages)])
        left = [i for i, c in enumerate(self.grid) if c is None]
        for seat in left[:_MOST_CHAINS]:
            self._chain(seat)

    def _best(self, seat: int) -> str | None:
        """The best zone for a seat: an agent there holds the stage, or zones stay balanced."""
        stage, free = seat % self.stages, self.free
        column = self.columns[stage]
        zones = [z for z, n in free.count.items() if n and self.fits(z, seat)]
        if self.together:
            around = [self.grid[n] for n in self.neighbours(seat)]
            near = {c.zone for c in around if c is not None}
            return max(
                zones,
                key=lambda z: (z in near, free.worth(z, stage), free.count[z], z),
                default=None,
            )
        return min(
            zones,
            key=lambda z: (-free.worth(z, stage), column.get(z, 0), -free.count[z], z),
            default=None,
        )

    def _chain(self, hole: int) -> None:
        """Move an agent that fits into the empty seat, and give its seat to a free agent."""
        stage = hole % self.stages
        order = sorted(range(len(self.grid)), key=lambda t: t % self.stages != stage)
        for seat in order:
            mover = self.grid[seat]
            if mover is None:
                continue
            self.put(seat, None)
            if self.fits(mover.zone, hole):
                self.put(hole, mover)
                best = self._best(seat)
                if best is not None:
                    self.put(seat, self.known[self.free.take(best, seat % self.stages)])
                    return
                self.put(hole, None)
            self.put(seat, mover)


class _Free:
    """Agents without a seat, by zone (oldest first) and by the stages that they hold."""

    def __init__(self, candidates: list[Candidate], stages: int, previous: Seats) -> None:
        before = _stages_before(previous)
        self.count: dict[str, int] = {}
        self._taken: set[AgentId] = set()
        self._all: dict[str, list[Candidate]] = {}
        self._holders: dict[tuple[str, int], list[tuple[int, float, AgentId]]] = {}
        for c in sorted(candidates, key=lambda c: (c.age_s, c.agent)):
            self.count[c.zone] = self.count.get(c.zone, 0) + 1
            self._all.setdefault(c.zone, []).append(c)
            for s in range(stages):
                if worth := _worth(c, s, before):
                    self._holders.setdefault((c.zone, s), []).append((worth, c.age_s, c.agent))
        for holders in self._holders.values():
            holders.sort()

    def worth(self, zone: str, stage: int) -> int:
        """The most layers of the stage that a free agent of the zone holds."""
        holders = self._holders.get((zone, stage), [])
        while holders and holders[-1][2] in self._taken:
            holders.pop()
        return holders[-1][0] if holders else 0

    def take(self, zone: str, stage: int) -> AgentId:
        """Take the free agent of the zone that holds most of the stage; the oldest if equal."""
        if self.worth(zone, stage):
            agent = self._holders[zone, stage].pop()[2]
        else:
            every = self._all[zone]
            while every[-1].agent in self._taken:
                every.pop()
            agent = every.pop().agent
        self._taken.add(agent)
        self.count[zone] -= 1
        return agent


_MOST_CHAINS = 32
"""Most empty seats that chains try to fill; beyond it, the grid is laid out again."""


def _stages_before(previous: Seats) -> dict[AgentId, int]:
    return {a: s for p in previous for s, a in enumerate(p) if a is not None}


def _worth(candidate: Candidate, stage: int, before: dict[AgentId, int]) -> int:
    if candidate.held:
        return candidate.held[stage]
    return int(before.get(candidate.agent) == stage)


def _laid_out(layout: ZoneGrid, candidates: Sequence[Candidate], previous: Seats) -> Seats:
    """Seat agents on a fixed zone grid: those that hold most of a stage first, then the oldest."""
    before = _stages_before(previous)
    places: dict[tuple[str, int], list[int]] = {}
    for d, ring in enumerate(layout):
        for s, zone in enumerate(ring):
            places.setdefault((zone, s), []).append(d)
    for rows in places.values():
        rows.reverse()
    grid: list[list[AgentId | None]] = [[None] * len(ring) for ring in layout]
    free = {c.agent: c for c in sorted(candidates, key=lambda c: (-c.age_s, c.agent))}
    stages = range(len(layout[0]))
    preferences = [
        (-worth, rank, s, c)
        for rank, c in enumerate(free.values())
        for s in stages
        if (worth := _worth(c, s, before))
    ]
    for _, _, s, c in sorted(preferences, key=lambda x: x[:3]):
        if c.agent in free and places.get((c.zone, s)):
            grid[places[c.zone, s].pop()][s] = free.pop(c.agent).agent
    by_zone: dict[str, list[AgentId]] = {}
    for c in reversed(free.values()):
        by_zone.setdefault(c.zone, []).append(c.agent)
    for (zone, s), rows in places.items():
        for d in rows:
            grid[d][s] = by_zone[zone].pop()
    return tuple(tuple(ring) for ring in grid)
