"""Attentive time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo_core.protocol.clock import MOST_BEHIND_S, Backlog, Hearing, PatientClock

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


def test_while_something_is_unread_no_more_than_the_most_passes() -> None:
    clock = PatientClock(0.5)
    clock.read(10)
    assert clock.read(10.25, heard_at=10) == 10.25
    assert [clock.read(now, heard_at=10) for now in (11, 12, 15)] == [10.5] * 3
    assert clock.read(15.25, heard_at=15.25) == 10.5
    assert clock.read(15.5, heard_at=15.25) == 10.75


def test_short_times_between_two_instants_at_which_all_is_read_count_wholly() -> None:
    clock = PatientClock(0.5)
    clock.read(10)
    assert [clock.read(10 + n / 2, heard_at=10 + n / 2 - 0.25) for n in range(1, 9)] == [
        10 + n / 2 for n in range(1, 9)
    ]


def test_an_instant_that_is_still_to_come_counts_as_now() -> None:
    clock = PatientClock(0.5)
    clock.read(10)
    assert clock.read(10.25, heard_at=11) == 10.25
    assert clock.read(10.5) == 10.5


def test_a_process_that_was_never_asked_has_read_everything() -> None:
    assert Hearing().at(7) == 7


def test_a_process_says_when_it_had_read_everything() -> None:
    hearing = Hearing()
    hearing.caught_up(5)
    assert hearing.at(5 + 10 * MOST_BEHIND_S) == 5


def test_a_process_that_is_busy_for_ever_is_taken_to_have_read_now_and_then() -> None:
    clock = PatientClock(0.5)
    clock.read(5)
    assert clock.read(5 + MOST_BEHIND_S, heard_at=5) == 5.5
    late = 5 + MOST_BEHIND_S + 1
    assert clock.read(late, heard_at=5) == 5.5
    assert clock.read(late + 1, heard_at=5) == 6.0
    assert clock.read(late + MOST_BEHIND_S, heard_at=5) == 6.0


def test_what_has_waited_is_judged_when_all_is_read() -> None:
    backlog = Backlog(0.5)
    assert not backlog.is_behind(10.5, 10, is_word=True)
    assert backlog.is_behind(10.6, 10, is_word=False)
    assert backlog.is_behind(60, 10, is_word=True)
    assert not backlog.is_behind(60.1, 60, is_word=True)


def test_a_process_that_reads_all_the_time_judges_though_more_is_left() -> None:
    backlog = Backlog(0.5)
    assert backlog.is_behind(50, 10, is_word=False)
    assert backlog.is_behind(60, 10, is_word=True)
    assert backlog.is_behind(60 + MOST_BEHIND_S, 10, is_word=True)
    assert not backlog.is_behind(60.1 + MOST_BEHIND_S, 10, is_word=True)
    assert not backlog.is_behind(70, 70, is_word=True)
    assert backlog.is_behind(80.1 + MOST_BEHIND_S, 70, is_word=True), "it is behind anew"


def test_a_time_that_is_skipped_does_not_count() -> None:
    clock = PatientClock(0.5)
    clock.skip(5)
    clock.read(10)
    assert clock.read(10.25) == 10.25
    clock.skip(60)
    assert clock.read(60, heard_at=59.5) == 10.25
    assert clock.read(60.25, heard_at=60.25) == 10.5
    clock.skip(50)
    assert clock.read(60.5) == 10.75


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


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 20)), min_size=1))
def test_it_never_goes_back_whatever_was_unread(readings: list[tuple[float, float]]) -> None:
    clock, now = PatientClock(0.5), 0.0
    shown = clock.read(now)
    for passed_s, behind_s in readings:
        now += passed_s
        read = clock.read(now, now - behind_s)
        assert shown <= read <= shown + passed_s + behind_s + 1e-6
        shown = read
