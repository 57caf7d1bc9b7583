"""Which share of a job's work is checked: the same rule everywhere, without randomness."""

from __future__ import annotations

from bamboo_core.model.program import Instruction, Op


def is_due(step: int, index: int, every: int) -> bool:
    """Whether this one is checked. index: micro-batch, leaf, slice or layer; every: 0 means never.

    Each index is due once in ``every`` steps, whatever their number is, so that no agent and no
    layer is left out.
    """
    return every > 0 and (step + index) % every == 0


def is_task_due(task: Instruction, every: int) -> bool:
    """Whether the result of this instruction is checked. It is counted by its micro-batch or slice;
    a FOLD by the leaf at which its runs meet, where no other one of the step meets; a SLICE by the
    first leaf."""
    index = task.ranges[0][0] if task.op is Op.SLICE else task.index
    return is_due(task.step, index, every)


COMPARE_EVERY = 100
"""Steps between two comparisons of all copies of the layers."""


def are_copies_due(step: int, save_every: int) -> bool:
    """Whether all copies of each layer are compared in this step, before it is committed.

    save_every: steps between two checkpoints; 0: there are none. A checkpoint is written in the
    step in which its version is compared, so the commit of that step verifies it.
    """
    is_saved = save_every > 0 and step % save_every == 0
    return step > 0 and (is_saved or step % COMPARE_EVERY == 0)


def newest_compared(committed: int, save_every: int) -> int:
    """The newest of the committed steps in which copies were compared; 0: there is none."""
    periods = (COMPARE_EVERY, save_every) if save_every > 0 else (COMPARE_EVERY,)
    return max(max(0, committed) // period * period for period in periods)
