"""The bounded backlog of a hook, and the pauses between its starts."""

from __future__ import annotations

from bamboo_agent.hooks.backlog import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    MOST,
    STEADY_S,
    WINDOW,
    Backlog,
    Restarts,
)
from bamboo_agent.hooks.record import StepRecord


def record(step: int) -> StepRecord:
    return StepRecord("ns/job", 1, step, 10_000, 1.0, 1.0)


def filled(count: int) -> Backlog:
    backlog = Backlog()
    for step in range(count):
        backlog.add(record(step))
    return backlog


def taken(backlog: Backlog) -> list[int]:
    return [x.step for x in backlog.take()]


def test_records_come_in_order_and_a_window_at_a_time() -> None:
    backlog = filled(WINDOW + 2)
    assert taken(backlog) == list(range(WINDOW))
    assert taken(backlog) == []
    backlog.told()
    assert taken(backlog) == [WINDOW]
    assert len(backlog) == WINDOW + 1


def test_the_oldest_that_are_not_sent_are_dropped_when_there_is_no_room() -> None:
    backlog = filled(MOST)
    sent = taken(backlog)
    for step in range(MOST, MOST + 3):
        backlog.add(record(step))
    assert (len(backlog), backlog.dropped) == (MOST, 3)
    for _ in sent:
        backlog.told()
    assert backlog.first == record(WINDOW + 3)


def test_what_was_not_answered_is_sent_again() -> None:
    backlog = filled(4)
    assert taken(backlog) == [0, 1, 2, 3]
    backlog.told()
    backlog.restart()
    assert not backlog.is_in_flight
    assert taken(backlog) == [1, 2, 3]


def test_a_record_with_which_two_processes_have_ended_is_given_up() -> None:
    backlog = filled(3)
    for _ in range(2):
        assert taken(backlog) == [0, 1, 2]
        backlog.restart()
    assert backlog.dropped == 1
    assert taken(backlog) == [1, 2]
    backlog.told()
    backlog.restart()
    assert taken(backlog) == [2]  # it was the first time for this one
    assert backlog.dropped == 1


def test_a_process_that_ends_before_it_got_a_record_gives_none_up() -> None:
    backlog = filled(1)
    for _ in range(5):
        backlog.restart()
    assert taken(backlog) == [0]


def pauses(restarts: Restarts, lives: list[float]) -> list[float]:
    """The pause after each process, which has lived for so long."""
    found, now = [], 0.0
    for lived_s in lives:
        restarts.failed(now, lived_s)
        pause = next(x / 2 for x in range(10_000) if restarts.may(now + x / 2))
        found.append(pause)
        now += pause
    return found


def test_pauses_double_up_to_a_limit() -> None:
    assert Restarts().may(0.0)
    found = pauses(Restarts(), [0.0] * 12)
    assert found[:4] == [FIRST_PAUSE_S, 2.0, 4.0, 8.0]
    assert found[-1] == LONGEST_PAUSE_S


def test_a_long_life_makes_the_pause_short_again() -> None:
    assert pauses(Restarts(), [0.0, 0.0, STEADY_S, 0.0]) == [1.0, 2.0, 1.0, 2.0]
