"""Attentive time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo_core.protocol.clock import PatientClock

SECONDS = st.floats(0, 1e6)


def test_a_clock_that_is_read_often_keeps_real_time() -> None:
    clock = PatientClock(0.5)
    assert [clock.read(100 + i / 4) for i in range(5)] == [100, 100.25, 100.5, 100.75, 101]


def test_a_pause_counts_as_the_most() -> None:
    clock = PatientClock(0.5)
    clock.read(10)
    assert clock.read(70) == 10.5
    assert clock.read(70.25) == 10.75


def test_a_clock_that_goes_back_stands_still_and_then_goes_on() -> None:
    clock = PatientClock(0.5)
    clock.read(10)
    assert clock.read(4) == 10
    assert clock.read(4.25) == 10.25


def test_a_copy_goes_its_own_way() -> None:
    clock = PatientClock(0.5)
    clock.read(10)
    copy = clock.copy()
    assert (clock.read(12), copy.read(10.25)) == (10.5, 10.25)


def test_a_length_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match="most_s is 0"):
        PatientClock(0)


@given(st.floats(0.01, 10), st.lists(SECONDS, min_size=2))
def test_each_reading_advances_by_no_more_than_the_pause_and_the_most(
    most_s: float, times: list[float]
) -> None:
    clock = PatientClock(most_s)
    read = [clock.read(now) for now in times]
    assert read[0] == times[0]
    for (before, now), (earlier, later) in zip(pairwise(times), pairwise(read), strict=True):
        assert 0 <= later - earlier <= min(max(now - before, 0), most_s) + 1e-6
