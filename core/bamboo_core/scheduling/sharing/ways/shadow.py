"""Shadow: the ring predecessor, which holds the replica, does all of a lost agent's work."""

from __future__ import annotations

from bamboo_core.scheduling.sharing.assignment import Assignment
from bamboo_core.scheduling.sharing.step_work import StepWork, WorkMap


def shadow(step: StepWork) -> WorkMap | None:
    """Every orphan goes to the agent of the stage before it; if that is lost, to any holder. None:
    no such agent holds anything."""
    shadows = {
        (stage, d): found
        for stage, d in step.lost
        if (found := step.seats[d][(stage - 1) % len(step.holders)]) in step.able[stage]
    }
    if not shadows:
        return None
    task = Assignment(step)
    for stage, leaf in step.orphans:
        found = shadows.get((stage, step.pipelines[leaf]))
        task.give((stage, leaf), [found] if found is not None else [])
    return task.map
