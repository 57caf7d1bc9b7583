"""Which checkpoints may be deleted: never one that the job may still need."""

from __future__ import annotations

from bamboo_core.model.pruning import LEAST_KEPT, Mark, removable


def gone(
    marks: list[Mark], *, newest: Mark, keep: int, bad: tuple[Mark, ...] = (), forks: tuple = ()
) -> list[Mark]:
    return removable(marks, newest=newest, keep=keep, sealed=set(marks) - set(bad), forks=forks)


def test_a_checkpoint_goes_once_enough_of_higher_steps_are_sealed() -> None:
    marks = [(0, 2), (0, 4), (0, 6)]
    assert gone(marks, newest=(0, 6), keep=2) == [(0, 2)]
    assert gone(marks, newest=(0, 6), keep=3) == []


def test_those_of_an_older_attempt_do_not_count_as_kept() -> None:
    """The old attempt has 4 and 5, and the young one has sealed 6 only."""
    marks = [(0, 4), (0, 5), (1, 6)]
    assert gone(marks, newest=(1, 6), keep=2, forks=((1, 5),)) == []


def test_those_of_an_older_attempt_go_once_the_young_one_has_enough() -> None:
    marks = [(0, 4), (0, 5), (1, 6), (1, 7)]
    assert gone(marks, newest=(1, 7), keep=2, forks=((1, 5),)) == [(0, 4), (0, 5)]


def test_a_step_2_of_a_young_attempt_does_not_push_out_a_step_6() -> None:
    marks = [(0, 4), (0, 6), (1, 2)]
    assert gone(marks, newest=(1, 2), keep=1) == []


def test_what_a_fork_has_ruled_out_goes_at_once() -> None:
    marks = [(0, 4), (0, 6), (1, 6)]
    assert gone(marks, newest=(1, 6), keep=LEAST_KEPT, forks=((1, 4),)) == [(0, 6)]


def test_one_that_is_bad_does_not_count() -> None:
    marks = [(0, 2), (0, 4), (0, 6)]
    assert gone(marks, newest=(0, 6), keep=2, bad=((0, 4),)) == []


def test_newer_ones_of_a_later_attempt_are_not_touched() -> None:
    """A writer of an attempt that is over does not know them."""
    marks = [(0, 2), (0, 4), (0, 6), (1, 1)]
    assert gone(marks, newest=(0, 6), keep=2) == [(0, 2)]
