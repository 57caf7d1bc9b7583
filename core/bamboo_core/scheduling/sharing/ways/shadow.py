"""Shadow: the ring predecessor, which holds the replica, does all of a lost agent's work."""

from __future__ import annotations

from bamboo_core.scheduling.sharing.assignment import Assignment
from bamboo_core.scheduling.sharing.step_work import StepWork, WorkMap


def shadow(step: StepWork) -> WorkMap:
    """Every orphan goes to the agent of the stage before it; if that is lost, to any holder."""
    task = Assignment(step)
    for stage, leaf in step.orphans:
        found = step.seats[step.pipelines[leaf]][(stage - 1) % len(step.holders)]
        task.give((stage, leaf), [found] if found is not None and found in step.able[stage] else [])
    return task.map
