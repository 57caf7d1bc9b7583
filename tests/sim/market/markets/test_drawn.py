"""Markets that are drawn: order, zones, and that each parameter means what it says."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from itertools import groupby, islice, pairwise
from statistics import fmean, pstdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.market.fleets import AllServe
from tests.sim.market.markets.draws import HOUR, drawn, market, recorded

from bamboo_sim.market.markets import market_files
from bamboo_sim.market.simulation.engine import Terms, run
from bamboo_sim.market.simulation.events import FleetEvent, Kind

SIZES = st.dictionaries(st.integers(2, 6).map(str), st.integers(1, 3), min_size=1, max_size=3)


@given(
    nodes=st.integers(1, 12),
    zones=st.sampled_from([["a"], ["a", "b"], ["a", "b", "c"]]),
    hazard=st.floats(0.1, 100),
    bulk_chance=st.floats(0, 1),
    bulk_sizes=SIZES,
    gap_cv=st.floats(0.1, 10),
    refill_minutes=st.floats(1e-6, 100),
    boot_seconds=st.sampled_from([0, 45, 100_000]),
    seed=st.integers(0, 9),
)
@settings(max_examples=80, deadline=None)
def test_every_fleet_is_in_order_and_within_its_nodes(seed: int, **parameters: object) -> None:
    made = market(**parameters)
    events = list(islice(made.events(seed), 150))
    assert events == list(islice(made.events(seed), 150))
    assert all(before < after for before, after in pairwise(events))
    live: dict[int, str] = {}
    ready: set[int] = set()
    most = made["nodes"]
    for event in events:
        number, zone, capacity = event.node
        match event.kind:
            case Kind.ADD:
                live[number] = zone
            case Kind.READY:
                assert number in live.keys() - ready
                ready.add(number)
            case Kind.REMOVE:
                assert live.pop(number) == zone
        assert len(live) <= most
        assert (zone in made["zones"], capacity) == (True, "spot")
    numbers = [event.node.number for event in events if event.kind is Kind.ADD]
    assert numbers == [*range(1, len(numbers) + 1)]


def bursts(events: list[FleetEvent]) -> list[list[FleetEvent]]:
    losses = [event for event in events if event.kind is Kind.REMOVE]
    return [list(group) for _, group in groupby(losses, key=lambda event: event.at_ms)]


def test_a_burst_is_in_one_zone_and_sizes_have_their_chances() -> None:
    found = bursts(drawn(market(), 1, hours=500))
    assert len(found) > 4000
    assert all(len({event.node.zone for event in burst}) == 1 for burst in found)
    sizes = Counter(len(burst) for burst in found)
    shares = {size: times / len(found) for size, times in sizes.items()}
    assert shares == pytest.approx({1: 0.6, 2: 0.2, 3: 0.1, 5: 0.1}, abs=0.03)


@pytest.mark.parametrize("zones", [["a"], ["a", "b", "c", "d"]])
def test_the_hazard_holds_also_where_bulks_take_whole_zones(zones: list[str]) -> None:
    """Four zones of two nodes: most bulks find fewer nodes than they would take."""
    made = market(nodes=8, zones=zones, bulk_chance=0.8, bulk_sizes={"4": 1, "8": 1})
    hours = 2000.0
    events = drawn(made, 2, hours)
    lost = sum(event.kind is Kind.REMOVE for event in events)
    assert lost / node_hours(events, hours) == pytest.approx(0.5, rel=0.1)


def node_hours(events: list[FleetEvent], hours: float) -> float:
    sign = {Kind.ADD: 1, Kind.REMOVE: -1, Kind.READY: 0}
    return sum(sign[event.kind] * (hours - event.at_ms / HOUR) for event in events)


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.0])
def test_gaps_are_as_regular_as_is_said(cv: float) -> None:
    """A fleet that is always full: its clock is that of the wall."""
    found = bursts(drawn(market(gap_cv=cv, refill_minutes=1e-6), 3, hours=400))
    gaps = [after[0].at_ms - before[0].at_ms for before, after in pairwise(found)]
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.1)


def test_what_is_lost_comes_back_in_its_zone_after_the_time_to_refill() -> None:
    hours = 1500.0
    events = drawn(market(), 4, hours)
    lost = Counter(event.node.zone for event in events if event.kind is Kind.REMOVE)
    came = Counter(event.node.zone for event in events if event.kind is Kind.ADD and event.at_ms)
    assert all(0 <= lost[zone] - came[zone] <= 20 for zone in "ab")
    missing = 40 * hours - node_hours(events, hours)
    assert 60 * missing / lost.total() == pytest.approx(10, rel=0.06)


def test_memory_does_not_grow_with_time() -> None:
    events = market().events(5)
    for _ in islice(events, 5000):
        pass
    tracemalloc.start()
    try:
        last = next(iter(islice(events, 20_000, None)))
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert last.at_ms > 250 * HOUR
    assert grown < 100_000


@pytest.mark.parametrize("name", ["bamboo-p3", "brutal", "calm", "gcp-bulk"])
def test_a_named_market_is_met_by_a_policy(name: str) -> None:
    made = market_files.named()[name]
    prices = {(zone, "spot"): 1.0 for zone in made["zones"]}
    terms = Terms(prices=prices, best_per_node=10, until_ms=100 * HOUR)
    found = run(AllServe(), made.events(1), terms)
    assert found.removals > 0
    hours = sum(found.node_ms.values()) / HOUR
    assert found.removals / hours == pytest.approx(made["hazard"], rel=0.35)
    assert recorded(drawn(made, 1, 100), 100).hours == 100
