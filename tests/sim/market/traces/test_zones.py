"""Zones that are dealt: who is lost together was together."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo_sim.market.simulation.events import Kind
from bamboo_sim.market.traces.records import Seen
from bamboo_sim.market.traces.trace import by_time
from bamboo_sim.market.traces.zones import dealt

ZONES = ("a", "b", "c")


LIVES = st.tuples(
    st.integers(0, 3),
    st.sampled_from([1, 2, 3, 4, 5, 6, None]),
    st.sampled_from(["", "", "", "given"]),
    st.sampled_from([True, True, False]),
)
"""The begin and the length of a life, the zone, and whether its end is a loss."""


def fleet(lives: list[tuple[int, int | None, str, bool]]) -> list[Seen]:
    """Nodes that come, and mostly go, some of them by their user; some have zones."""
    found = []
    for number, (begin, life, zone, is_loss) in enumerate(lives):
        found.append(Seen(begin, Kind.ADD, f"n{number}", zone))
        if life is not None:
            gone = Seen(begin + life, Kind.REMOVE, f"n{number}", zone, is_loss=is_loss)
            found.append(gone)
    return by_time(found)


@given(st.lists(LIVES, min_size=4, max_size=9).map(fleet), st.integers(0, 2), st.integers(0, 9))
def test_losses_of_a_burst_are_in_one_zone(seen: list[Seen], within: int, seed: int) -> None:
    found = dealt(seen, ZONES, seed, within)
    assert found == dealt(seen, ZONES, seed, within)
    zones: dict[str, str] = {}
    for before, after in zip(seen, found, strict=True):
        assert (before.at_ms, before.kind, before.name) == (after.at_ms, after.kind, after.name)
        assert after.zone == (before.zone or zones.get(after.name, after.zone))
        assert before.zone or after.zone in ZONES
        zones[after.name] = after.zone
    losses = [event for event in found if event.kind is Kind.REMOVE and event.is_loss]
    free = [event for event in losses if event.zone != "given"]
    for before, after in pairwise(free):
        if after.at_ms - before.at_ms <= within:
            assert before.zone == after.zone


def test_a_gap_of_just_the_length_is_within_a_burst() -> None:
    ends = (0, 5, 10, 16)
    seen = [Seen(0, Kind.ADD, f"n{end}") for end in ends]
    seen += [Seen(end, Kind.REMOVE, f"n{end}") for end in ends]
    found = [[event.zone for event in dealt(seen, ZONES, seed, 5)[-4:]] for seed in range(30)]
    assert all(len({*zones[:3]}) == 1 for zones in found)
    assert any(zones[2] != zones[3] for zones in found)


def test_each_zone_is_as_likely_and_the_seed_decides() -> None:
    nodes = [Seen(0, Kind.ADD, f"n{number}") for number in range(50)]
    lost = [Seen(number, Kind.REMOVE, f"n{number}") for number in range(25)]
    zones: Counter[str] = Counter()
    for seed in range(60):
        zones.update(event.zone for event in dealt([*nodes, *lost], ZONES, seed, 0)[:50])
    assert all(abs(zones[zone] - 1000) < 100 for zone in ZONES)


def test_without_zones_there_is_nothing_to_deal() -> None:
    with pytest.raises(ValueError, match="no zones to deal; give at least one"):
        dealt([], (), 1, 0)
