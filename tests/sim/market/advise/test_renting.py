"""The fleet that a job rents: never more than it wants, replaced where others are offered."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

import pytest
from tests.sim.market.fleets import HOUR, fleet

from bamboo_sim.market.advise.renting import STEADY, offered, rented
from bamboo_sim.market.markets import market_files
from bamboo_sim.market.markets.opening import Replay
from bamboo_sim.market.simulation.events import FleetEvent, Kind, Node
from bamboo_sim.market.traces.records import Seen
from bamboo_sim.market.traces.trace import Trace

MINUTE = 60_000
BOOT = 45_000


def replay(*lives: tuple[int, int | None], until_ms: int) -> Replay:
    """A recorded fleet in one zone."""
    seen = []
    for number, (begin_ms, end_ms) in enumerate(lives):
        seen.append(Seen(begin_ms, Kind.ADD, f"n{number}", "a"))
        if end_ms is not None:
            seen.append(Seen(end_ms, Kind.REMOVE, f"n{number}", "a"))
    seen.sort(key=lambda event: (event.at_ms, event.kind))
    return Replay(Trace("made", until_ms, tuple(seen)))


def lives(events: Iterable[FleetEvent], until_ms: int) -> list[tuple[int, int | None]]:
    """Begin and end of each node, by number."""
    found: dict[int, tuple[int, int | None]] = {}
    for event in takewhile(lambda event: event.at_ms < until_ms, events):
        if event.kind is Kind.ADD:
            found[event.node.number] = (event.at_ms, None)
        elif event.kind is Kind.REMOVE:
            found[event.node.number] = (found[event.node.number][0], event.at_ms)
    return [found[number] for number in sorted(found)]


def test_a_record_begins_again_and_nodes_at_both_ends_live_on() -> None:
    """One node is there at both ends; of two at the end one has no successor."""
    source = replay((0, None), (MINUTE, None), until_ms=5 * MINUTE)
    assert lives(offered(source, 1), 11 * MINUTE) == [
        (0, None),
        (MINUTE, 6 * MINUTE - MINUTE),
        (6 * MINUTE, 10 * MINUTE),
    ]


def test_nodes_that_only_its_begin_has_come_again() -> None:
    source = replay((0, None), (0, 2 * MINUTE), until_ms=5 * MINUTE)
    assert lives(offered(source, 1), 9 * MINUTE) == [
        (0, None),
        (0, 2 * MINUTE),
        (5 * MINUTE, 7 * MINUTE),
    ]


def test_other_seeds_begin_anywhere_in_the_record() -> None:
    source = replay((0, None), (0, 50 * MINUTE), until_ms=60 * MINUTE)
    ends = {lives(offered(source, seed), 60 * MINUTE)[1][1] for seed in range(2, 12)}
    assert len(ends) == 10
    assert lives(offered(source, 7), HOUR) == lives(offered(source, 7), HOUR)


def test_a_lost_node_is_replaced_where_another_is_offered() -> None:
    offers = fleet((0, 5 * MINUTE), (0, 7 * MINUTE), (0, None))
    found = list(rented(offers, 1, 0, BOOT, HOUR))
    assert lives(found, HOUR) == [
        (0, 5 * MINUTE),
        (5 * MINUTE + 1, 7 * MINUTE),
        (7 * MINUTE + 1, None),
    ]
    ready = [event.at_ms for event in found if event.kind is Kind.READY]
    assert ready == [BOOT, 5 * MINUTE + 1 + BOOT, 7 * MINUTE + 1 + BOOT]


def test_what_goes_at_the_same_instant_is_no_replacement() -> None:
    offers = fleet((0, MINUTE), (0, MINUTE), (0, MINUTE))
    assert lives(rented(offers, 2, 0, BOOT, HOUR), HOUR) == [(0, MINUTE), (0, MINUTE)]


def test_a_node_that_goes_while_it_boots_is_never_ready() -> None:
    offers = fleet((0, 30_000))
    kinds = [event.kind for event in rented(offers, 1, 0, BOOT, HOUR)]
    assert kinds == [Kind.ADD, Kind.REMOVE]


def test_nodes_on_demand_are_never_lost_and_stand_beside_the_spot_nodes() -> None:
    found = list(rented(fleet((0, MINUTE), (0, MINUTE)), 2, 3, BOOT, HOUR))
    steady = [event for event in found if (event.node.zone, event.node.capacity) == STEADY]
    assert [event.kind for event in steady] == [Kind.ADD] * 3 + [Kind.READY] * 3
    assert len(lives(found, HOUR)) == 5


def test_zones_that_are_not_wanted_are_not_rented() -> None:
    nodes = [Node(1, "a", "spot"), Node(2, "b", "spot"), Node(3, "b", "spot")]
    offers = fleet((0, None), (0, None), (0, None), nodes=nodes)
    found = list(rented(offers, 3, 0, BOOT, HOUR, zones=("b",)))
    assert {event.node.zone for event in found} == {"b"}
    assert len(lives(found, HOUR)) == 2


@pytest.mark.parametrize("market", ["brutal", "gcp-bulk", "calm"])
@pytest.mark.parametrize("spot", [1, 5, 11])
def test_at_no_instant_there_are_more_than_wanted_and_all_is_in_order(
    market: str, spot: int
) -> None:
    source = market_files.named()[market]
    live: set[int] = set()
    latest: tuple[int, Kind] = (0, Kind.ADD)
    stages: dict[int, Kind] = {}
    for event in rented(offered(source, 3), spot, 2, BOOT, 30 * HOUR):
        assert (event.at_ms, event.kind) >= latest
        latest = event.at_ms, event.kind
        number = event.node.number
        if event.kind is Kind.ADD:
            assert number not in stages
            live.add(number)
        elif event.kind is Kind.REMOVE:
            live.remove(number)
        else:
            assert stages[number] is Kind.ADD
        stages[number] = event.kind
        assert len(live) <= spot + 2
    assert latest[0] > 0


def test_a_fleet_that_never_changes_comes_to_its_end() -> None:
    source = replay((0, None), until_ms=MINUTE)
    assert len(list(rented(offered(source, 1), 1, 0, BOOT, 10 * HOUR))) == 2
