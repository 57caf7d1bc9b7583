"""The write of the state before code of the user's is tried again that has ended a process.

Whoever computes the same may end, too, and with it the last copy of its layers. So the next plan
writes the state with all members, and computes nothing. It has one chance: if that cannot be
written, training goes on all the same.
"""

from __future__ import annotations

from bamboo_core.api import texts
from bamboo_core.arbiter import last_write
from bamboo_core.arbiter_state.state import State
from bamboo_core.model.ids import Fence


def ask(state: State, why: str) -> None:
    """Code of the user's has ended a member's process: the state is to be written."""
    durable, spec = state.durable, state.job.spec
    is_planned = durable.plan.attempt == durable.attempt and durable.plan != Fence()
    if spec.checkpoint is None or not is_planned or durable.failing or durable.last_write:
        return
    state.out.save(saving=texts.cut(why, last_write.MOST_BYTES))


def settle(state: State, now: float) -> None:
    """All members have reported: whether the state is still to be written."""
    if state.durable.saving and is_over(state, last_write.newest_version(state), now):
        state.out.save(saving="")


def is_over(state: State, step: int, now: float) -> bool:
    """Whether the state of this step is written, or cannot be."""
    assert state.desired is not None
    in_force = state.in_force
    most_s = min(last_write.SUSPENDED_S, state.desired.last_write_s)
    is_late = (
        in_force is not None
        and in_force.plan.target == in_force.plan.last == step
        and now >= in_force.begun_at + most_s
    )
    return is_late or last_write.is_written(state, step)


def rewritten(state: State) -> int:
    """The step that the next plan only writes; -1: it trains."""
    known = state.durable.last_write
    if known is not None:
        return known.step
    return last_write.newest_version(state) if state.durable.saving else -1
