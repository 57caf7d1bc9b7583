"""Which share is checked: everything has its turn."""

from __future__ import annotations

import pytest

from bamboo_core.model.ids import Range
from bamboo_core.model.numerics import BatchShape, choose, middle
from bamboo_core.model.program import Instruction, Op
from bamboo_core.model.sampling import are_copies_due, is_due, is_task_due, newest_compared


@pytest.mark.parametrize("every", [1, 2, 7, 100])
@pytest.mark.parametrize("step", [0, 1, 350])
@pytest.mark.parametrize("index", [0, 3, 99, 100])
def test_each_index_has_its_turn_once_in_so_many_steps(every: int, step: int, index: int) -> None:
    assert sum(is_due(step + k, index, every) for k in range(every)) == 1


def test_a_batch_as_large_as_the_sample_checks_one_micro_batch_in_each_step() -> None:
    for step in range(100):
        assert sum(is_due(step, index, 100) for index in range(100)) == 1


def folds(batch: BatchShape, run: Range) -> list[Instruction]:
    """All additions of the canonical sum of a run, in step 0."""
    if run[1] - run[0] == 1:
        return []
    at = middle(batch, run)
    own = Instruction(Op.FOLD, 0, 0, 2, at, ranges=(run,))
    return [own, *folds(batch, (run[0], at)), *folds(batch, (at, run[1]))]


@pytest.mark.parametrize("microbatches", [2, 12, 48, 128])
@pytest.mark.parametrize("every", [1, 3, 100])
def test_every_sum_of_two_runs_is_checked_once_in_so_many_steps(
    microbatches: int, every: int
) -> None:
    """Each has a number of its own, so none waits for ever, and they share the steps."""
    batch = choose(microbatches=microbatches, pipelines_max=1)
    tasks = folds(batch, (0, batch.leaves))
    assert sorted(task.index for task in tasks) == [*range(1, batch.leaves)]
    for task in tasks:
        turns = [is_task_due(task._replace(step=step), every) for step in range(every)]
        assert sum(turns) == 1


def test_a_slice_is_counted_by_its_first_leaf_and_others_by_their_number() -> None:
    sliced = Instruction(Op.SLICE, 3, 0, 2, ranges=((4, 8), (0, 2)))
    assert [n for n in range(2, 12) if is_task_due(sliced, n)] == [7]
    reduce = Instruction(Op.REDUCE, 3, 0, 2, 4, ranges=((0, 8), (0, 8)))
    assert [n for n in range(2, 12) if is_task_due(reduce, n)] == [7]


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
