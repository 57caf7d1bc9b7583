"""Peers: the agents of the same stage share a lost agent's work equally."""

from __future__ import annotations

from bamboo_core.scheduling.sharing.assignment import Assignment
from bamboo_core.scheduling.sharing.step_work import StepWork, WorkMap


def peers(step: StepWork) -> WorkMap:
    """The orphans of each seat go to all agents with a seat in the stage, in aligned shares;
    without any, to all holders."""
    task = Assignment(step)
    for stage, pipeline in step.lost:
        task.share(stage, pipeline, step.peers(stage) or sorted(step.able[stage]))
    return task.map
