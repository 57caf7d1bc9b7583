"""Which share is checked: everything has its turn."""

from __future__ import annotations

import pytest

from bamboo_core.model.sampling import are_copies_due, is_due, newest_compared


@pytest.mark.parametrize("every", [1, 2, 7, 100])
@pytest.mark.parametrize("step", [0, 1, 350])
@pytest.mark.parametrize("index", [0, 3, 99, 100])
def test_each_index_has_its_turn_once_in_so_many_steps(every: int, step: int, index: int) -> None:
    assert sum(is_due(step + k, index, every) for k in range(every)) == 1


def test_a_batch_as_large_as_the_sample_checks_one_micro_batch_in_each_step() -> None:
    for step in range(100):
        assert sum(is_due(step, index, 100) for index in range(100)) == 1


def test_never() -> None:
    assert not any(is_due(step, 0, 0) for step in range(9))


@pytest.mark.parametrize(("every", "due"), [(0, [100, 200]), (60, [60, 100, 120, 180, 200])])
def test_copies_are_compared_in_the_steps_of_checkpoints_and_every_hundred(
    every: int, due: list[int]
) -> None:
    assert [step for step in range(201) if are_copies_due(step, every)] == due
    for committed in range(-1, 201):
        before = [step for step in due if step <= committed]
        assert newest_compared(committed, every) == max(before, default=0)
