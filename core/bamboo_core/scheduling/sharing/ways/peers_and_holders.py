"""PeersAndHolders: agents of the same stage and those with a replica of it share the work."""

from __future__ import annotations

from bamboo_core.scheduling.sharing.assignment import Assignment
from bamboo_core.scheduling.sharing.step_work import StepWork, WorkMap


def peers_and_holders(step: StepWork) -> WorkMap | None:
    """The orphans of each seat go to the least loaded holders in equal aligned shares: to 2, 4, 8,
    ... of them, since halves of a node have one sum each. None: only peers hold anything."""
    if all(set(step.peers(s)) >= step.able[s] for s, _ in step.lost):
        return None
    task = Assignment(step)
    for stage, pipeline in step.lost:
        able = task.in_turn(step.able[stage], stage, pipeline)
        task.share(stage, pipeline, able[: 1 << (len(able).bit_length() - 1)])
    return task.map
