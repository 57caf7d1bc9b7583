"""Intervals: they have the true value as often as they say, and pairs share their histories."""

from __future__ import annotations

from random import Random

import pytest

from bamboo_sim.market.compare.intervals import LEVEL, resampled
from bamboo_sim.market.compare.timeline import BINS, Timeline


def history(samples: list[float]) -> Timeline:
    """A run in which each bin costs a dollar."""
    made = Timeline(3_600_000)
    made.net, made.dollars = samples, [1.0] * BINS
    return made


def test_a_steady_history_has_no_width() -> None:
    (found,) = resampled({"one": [history([5.0] * BINS)]}).values()
    assert found.interval() == (5.0, 5.0)


def test_the_true_mean_is_within_nearly_as_often_as_it_says() -> None:
    """Blocks of 4 bins, drawn anew each time; the true value is 10."""
    random, hits = Random(3), 0
    for _ in range(60):
        blocks = [random.gauss(10, 3) for _ in range(BINS // 4)]
        (found,) = resampled({"one": [history([b for b in blocks for _ in range(4)])]}).values()
        low, high = found.interval()
        hits += low <= 10 <= high
        assert high - low > 0.5
    assert hits >= 60 * LEVEL - 7


def test_a_ratio_of_two_that_go_together_is_sure() -> None:
    random = Random(1)
    one = [random.uniform(0, 10) for _ in range(BINS)]
    found = resampled({"one": [history(one)], "half": [history([x / 2 for x in one])]})
    assert found["half"].over(found["one"]) == pytest.approx((0.5, 0.5))
    low, high = found["one"].interval()
    assert high - low > 0.5


def test_seeds_that_differ_widen_it() -> None:
    apart = [history([4.0] * BINS), history([6.0] * BINS)]
    (found,) = resampled({"one": apart}).values()
    assert found.interval() == (4.0, 6.0)


def test_a_history_that_costs_nothing_has_no_value() -> None:
    free = history([0.0] * BINS)
    free.dollars = [0.0] * BINS
    found = resampled({"one": [free], "two": [history([1.0] * BINS)]})
    assert found["one"].interval() == (0.0, 0.0)
    assert found["two"].over(found["one"]) == (0.0, 0.0)
