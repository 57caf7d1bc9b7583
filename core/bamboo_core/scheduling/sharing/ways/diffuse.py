"""Diffuse: chains of stages share the work leaf by leaf, so that all agents have as much to do."""

from __future__ import annotations

from bamboo_core.scheduling.sharing.assignment import Assignment
from bamboo_core.scheduling.sharing.rebalancing import Rebalancing, spread
from bamboo_core.scheduling.sharing.step_work import StepWork, WorkMap


def diffuse(step: StepWork) -> WorkMap:
    """Orphans go to the least loaded holders, which give leaves of their own to others."""
    task = Assignment(step)
    for work in step.orphans:
        task.give(work, ())
    Rebalancing(task).run()
    return spread(task)
