"""OnePeer: one agent of the same stage does all of a lost agent's work, and adds it up with its
own: no more sums are sent than before."""

from __future__ import annotations

from bamboo_core.scheduling.sharing.assignment import Assignment
from bamboo_core.scheduling.sharing.step_work import StepWork, WorkMap


def one_peer(step: StepWork) -> WorkMap:
    """The orphans of each seat go to one agent with a seat in the stage; without any, to one
    holder."""
    task = Assignment(step)
    for stage, pipeline in step.lost:
        able = step.peers(stage) or sorted(step.able[stage])
        task.share(stage, pipeline, [task.first(able, stage, pipeline)])
    return task.map
