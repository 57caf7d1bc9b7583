"""How many seats are empty at once, by what was seen of them; and the choice that rests on it."""

from __future__ import annotations

from itertools import combinations, pairwise
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo_core.protection.hazard import chances, empty_share, last_copy_chance
from bamboo_core.protection.measured import EmptySeats

HOUR = 3600.0
SHARES = st.floats(0.0, 0.98)


def test_seats_that_are_empty_by_themselves_are_binomial() -> None:
    found = chances(8, 0.25)
    assert found == pytest.approx([comb(8, f) * 0.25**f * 0.75 ** (8 - f) for f in range(9)])
    assert chances(3, 0.0) == (1.0, 0.0, 0.0, 0.0)


@given(st.integers(1, 60), SHARES, st.floats(0, 0.95))
@settings(max_examples=60, deadline=None)
def test_share_and_correlation_are_those_of_the_chances(
    seats: int, share: float, together: float
) -> None:
    found = chances(seats, share, together)
    assert sum(found) == pytest.approx(1)
    assert sum(f * p for f, p in enumerate(found)) == pytest.approx(seats * share, abs=1e-6)
    spread = sum(f * f * p for f, p in enumerate(found)) - (seats * share) ** 2
    expected = seats * share * (1 - share) * (1 + (seats - 1) * together)
    assert spread == pytest.approx(expected, rel=1e-3, abs=1e-3)


@given(st.integers(1, 60), SHARES, SHARES, st.floats(0, 0.95))
@settings(max_examples=60, deadline=None)
def test_with_a_larger_share_more_seats_are_empty(
    seats: int, one: float, other: float, together: float
) -> None:
    few, many = (chances(seats, x, together) for x in sorted((one, other)))
    for f in range(seats + 1):
        assert sum(few[f:]) <= sum(many[f:]) + 1e-9


@pytest.mark.parametrize(("empty", "others"), [(0, 1), (2, 1), (3, 2), (4, 3), (5, 5)])
def test_the_last_copy_by_all_patterns(empty: int, others: int) -> None:
    """The agent that is lost has seat 0, and seats 1 to ``others`` hold the same."""
    seats = 8
    patterns = list(combinations(range(1, seats), empty))
    fatal = [p for p in patterns if set(range(1, others + 1)) <= set(p)]
    assert last_copy_chance(seats, empty, others) == pytest.approx(len(fatal) / len(patterns))


def test_an_agent_that_is_the_only_one_takes_the_last_copy() -> None:
    assert last_copy_chance(4, 0, 0) == 1.0


def test_the_prior_counts_until_enough_is_seen() -> None:
    prior = empty_share(0.6, 180.0)
    assert prior == pytest.approx(0.0291, abs=1e-3)
    assert (EmptySeats().share(prior), EmptySeats().length_s(180.0)) == (prior, 180.0)
    shares = [prior]
    found = EmptySeats()
    for _ in range(8):
        found = found.passed(32, 8, HOUR)
        shares.append(found.share(prior))
    assert all(a < b for a, b in pairwise(shares))
    assert shares[1] == pytest.approx((8 + 20 * prior) / 52, rel=0.02)
    assert shares[-1] == pytest.approx(0.25, abs=0.03)
    assert found.is_measured


def test_the_length_is_that_of_all_empty_time() -> None:
    found = EmptySeats()
    for _ in range(100):
        found = found.passed(32, 2, 985.0).taken(1)
    assert found.length_s(180.0) == pytest.approx(1970, rel=0.05)
    ever = EmptySeats().passed(32, 1, 10 * HOUR)
    assert ever.length_s(180.0) > 9 * HOUR


def test_seats_that_are_empty_together_are_told_from_others() -> None:
    """A pool that runs dry for a quarter of the time, and one in which a quarter is missing."""
    dry, even = EmptySeats(), EmptySeats()
    for _ in range(48):
        dry = dry.passed(8, 0, 0.75 * HOUR).passed(8, 8, 0.25 * HOUR)
        even = even.passed(8, 2, HOUR)
    assert dry.share(0.25) == pytest.approx(even.share(0.25), abs=0.01)
    assert even.together(0.25) == 0
    assert dry.together(0.25) > 0.8
    assert chances(8, 0.25, dry.together(0.25))[0] > 0.6 > chances(8, 0.25)[0]


def test_what_was_seen_fades() -> None:
    old = EmptySeats().passed(8, 8, HOUR).taken(8)
    later = old.passed(8, 0, 24 * HOUR)
    assert (later.empty_s, later.refilled) == (pytest.approx(4 * HOUR), pytest.approx(4))


def test_one_seat_and_no_time_are_no_trouble() -> None:
    found = EmptySeats().passed(1, 1, HOUR).passed(0, 0, HOUR).passed(4, 1, -5.0)
    assert found.pair_s == 0
    assert found.share(0.0) < 1
    assert EmptySeats().together(0.0) == 0
    assert found.rounded().rounded() == found.rounded()
