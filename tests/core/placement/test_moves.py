"""Moves to empty seats of other stages: no last copy goes, and the zones' rule stays."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest

from bamboo_core.api.spec import Adjacency, RedundancyMode
from bamboo_core.model.ids import AgentId, Coordinate
from bamboo_core.placement import moves
from bamboo_core.placement.plan import Move, layers_of, wants
from bamboo_core.placement.seats import Candidate, Seats, assign

ALTERNATE, CLUSTER = Adjacency.ALTERNATE, Adjacency.CLUSTER
GRIDS = [(1, 4), (2, 2), (2, 3), (2, 4), (3, 2), (3, 3), (2, 5)]


def full(pipelines: int, stages: int) -> Seats:
    return tuple(tuple(AgentId(f"{d}-{s}") for s in range(stages)) for d in range(pipelines))


def zone_of(agent: AgentId, zones: int) -> str:
    d, s = map(int, agent.split("-"))
    return f"z{(d + s) % zones}"


def damaged(pipelines: int, stages: int) -> Iterator[Seats]:
    """The grid after every loss of fewer agents than stages."""
    grid = full(pipelines, stages)
    agents = [a for p in grid for a in p]
    for count in range(1, stages):
        for lost in combinations(agents, count):
            yield tuple(tuple(None if a in lost else a for a in p) for p in grid)


def live(seats: Seats) -> list[AgentId]:
    return sorted(a for p in seats for a in p if a is not None)


Held = dict[AgentId, set[int]]


def held(seats: Seats, mode: RedundancyMode, before: Held | None = None) -> Held:
    """Agent -> layers, one for each stage. before: what agents held under the plan before."""
    cut = tuple((s, s + 1) for s in range(len(seats[0])))
    holders = {x: [a for a, own in (before or {}).items() if x in own] for x in range(len(cut))}
    found = wants(pipelines=seats, cut=cut, live=live(seats), mode=mode, holders=holders)
    return {a: set(layers_of(ranges)) for a, ranges in found.items()}


def tried(seats: Seats, adjacency: Adjacency, zones: int) -> list[Move]:
    known = {a: zone_of(a, zones) for a in live(seats)}
    return moves.candidates(seats, zones=known, adjacency=adjacency, most=1000)


@pytest.mark.parametrize("mode", [RedundancyMode.NONE, RedundancyMode.REPLICA])
@pytest.mark.parametrize(("pipelines", "stages"), GRIDS)
def test_no_move_takes_the_last_copy_of_a_layer(
    pipelines: int, stages: int, mode: RedundancyMode
) -> None:
    """Some agent holds what the mover held before and after the move; another one, what the mover
    held for its seat. A bare stage's layers are copied before their present holder may free them.
    """
    count = 0
    for seats in damaged(pipelines, stages):
        before = held(seats, mode)
        for move in tried(seats, CLUSTER, 1):
            after, count = held(moves.moved(seats, move), mode, before), count + 1
            assert set(range(stages)) == set[int]().union(*after.values())
            for layer in before[move.agent]:
                keepers = [a for a in before if layer in before[a] and layer in after[a]]
                assert keepers, (seats, move, layer)
            (left,) = (s for p in seats for s, a in enumerate(p) if a == move.agent)
            assert {a for a in before if left in before[a] & after[a]} - {move.agent}
    assert count or pipelines == 1


@pytest.mark.parametrize(("pipelines", "stages"), GRIDS)
def test_ring_neighbours_stay_in_different_zones(pipelines: int, stages: int) -> None:
    allowed = 0
    zones = 2 if stages % 2 == 0 else 3
    for seats in damaged(pipelines, stages):
        for move in tried(seats, ALTERNATE, zones):
            after, allowed = moves.moved(seats, move), allowed + 1
            known = [Candidate(a, zone_of(a, zones)) for a in live(after)]
            again = assign(
                known,
                stages=stages,
                pipelines=pipelines,
                previous=after,
                adjacency=ALTERNATE,
                holes=True,
            )
            assert again == after, "an agent would lose its seat"
    near = len(tried(next(damaged(2, 4)), CLUSTER, 2))
    assert len(tried(next(damaged(2, 4)), ALTERNATE, 2)) < near
    assert allowed or (pipelines, stages) in {(1, 4), (2, 2), (3, 2)}


@pytest.mark.parametrize(("pipelines", "stages"), GRIDS)
def test_a_move_makes_the_numbers_of_agents_more_equal(pipelines: int, stages: int) -> None:
    for seats in damaged(pipelines, stages):
        before = moves.own(seats)
        for move in tried(seats, CLUSTER, 1):
            after = moves.own(moves.moved(seats, move))
            assert live(moves.moved(seats, move)) == live(seats)
            assert min(after) >= min(before)
            if moves.has_bare_stage(seats):
                assert before[move.to.stage] == 0
                assert sum(n == 0 for n in after) == sum(n == 0 for n in before) - 1


def test_the_first_candidates_come_from_full_stages_nearby() -> None:
    grid = [list(p) for p in full(2, 8)]
    for d, s in ((0, 3), (0, 4), (1, 0), (1, 4)):
        grid[d][s] = None
    seats = tuple(map(tuple, grid))
    found = moves.candidates(seats, zones={a: "z" for a in live(seats)}, adjacency=CLUSTER, most=3)
    assert found[0] == Move(AgentId("0-5"), Coordinate(0, 4))
    assert {m.to.stage for m in found} == {4}
    assert len(found) == 3


def test_a_stage_that_keeps_one_agent_gives_none() -> None:
    seats: Seats = ((AgentId("0-0"), None), (AgentId("1-0"), None))
    move = Move(AgentId("1-0"), Coordinate(1, 1))
    assert moves.is_allowed(seats, move, zones={AgentId("1-0"): "a"}, adjacency=CLUSTER)
    alone: Seats = ((None, None), (AgentId("1-0"), None))
    assert not moves.is_allowed(alone, move, zones={AgentId("1-0"): "a"}, adjacency=CLUSTER)
    taken = Move(AgentId("1-0"), Coordinate(0, 0))
    assert not moves.is_allowed(seats, taken, zones={AgentId("1-0"): "a"}, adjacency=CLUSTER)
    outside = Move(AgentId("1-0"), Coordinate(2, 1))
    assert not moves.is_allowed(seats, outside, zones={AgentId("1-0"): "a"}, adjacency=CLUSTER)
