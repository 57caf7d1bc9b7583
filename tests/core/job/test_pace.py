"""How far away the end of a job is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo_core.api.totals import Times, TimeState
from bamboo_core.job.pace import LEAST_S, LEAST_STEPS, WINDOW_S, Mark, Pace, clock_s


def seen(*marks: tuple[float, int]) -> Pace:
    found = Pace()
    for mark in marks:
        found = found.seen(Mark(*mark))
    return found


def test_the_pace_is_that_of_a_window_with_all_its_pauses() -> None:
    """10 steps in 100 s, of which 50 s were a pause: the other 90 steps take 900 s."""
    pace = seen((100.0, 1), (150.0, 1), (200.0, 11))
    assert pace.left_s(Mark(200.0, 11), 101) == pytest.approx(900.0)


def test_what_is_long_ago_does_not_count() -> None:
    """A step a second for one window, then one in two seconds for two."""
    slow = [(WINDOW_S + 2.0 * n, int(WINDOW_S) + n) for n in range(0, int(WINDOW_S), 10)]
    fast = [(float(n), n) for n in range(1, int(WINDOW_S), 10)]
    now = Mark(*slow[-1])
    assert seen(*fast, *slow).left_s(now, now.step + 10) == pytest.approx(20.0)
    assert len(seen(*fast, *slow).marks) == 2


@pytest.mark.parametrize(
    ("clock", "step"), [(LEAST_S - 1, 100), (LEAST_S * 9, LEAST_STEPS), (LEAST_S * 9, 1)]
)
def test_of_too_little_nothing_is_said(clock: float, step: int) -> None:
    """The first step is slow, so it does not count."""
    assert seen((0.0, 0), (0.0, 1)).left_s(Mark(clock, step), 1000) is None
    assert Pace().left_s(Mark(clock, step), 1000) is None
    assert seen((0.0, 1)).left_s(Mark(LEAST_S, 1 + LEAST_STEPS), 1000) is not None


def test_a_step_of_an_hour_is_measured_too() -> None:
    pace = seen(*((3600.0 * n, n) for n in range(1, 9)))
    assert pace.left_s(Mark(8 * 3600.0, 8), 10) == pytest.approx(7200.0)


def test_steps_that_a_restore_has_undone_are_no_progress() -> None:
    pace = seen((0.0, 1), (100.0, 21), (100.0, 11))
    assert pace.left_s(Mark(200.0, 21), 41) == pytest.approx(200.0)
    assert seen((500.0, 50), (600.0, 60), (610.0, 40)) == Pace((Mark(610.0, 40),))


@given(
    st.lists(st.tuples(st.floats(-1e9, 1e9), st.integers(-5, 10**9)), max_size=20),
    st.integers(0, 10**9),
)
def test_it_is_never_negative(marks: list[tuple[float, int]], steps: int) -> None:
    """Whatever clocks and restores do."""
    for number in range(1, len(marks) + 1):
        left = seen(*marks[:number]).left_s(Mark(*marks[number - 1]), steps)
        assert left is None or left >= 0.0


def test_the_clock_stands_while_the_job_does_not_train() -> None:
    spent = {"Waiting": 5.0, "Starting": 7.0, "Training": 10.0, "WaitingForCapacity": 20.0}
    assert clock_s(Times(TimeState.SUSPENDED, 100.0, spent), 900.0) == 30.0
    assert clock_s(Times(TimeState.RECOVERING, 100.0, spent), 104.0) == 34.0
