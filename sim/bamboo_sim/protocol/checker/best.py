"""The best checkpoint is never deleted, and those that the job knows are there."""

from __future__ import annotations

from bamboo_core.arbiter_state import durable as facts
from bamboo_core.model import pruning
from bamboo_core.model.pruning import Mark
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.world.state import World


def check_kept(world: World, deleted: Mark) -> None:
    """The best of all checkpoints from which the present weights come is not deleted."""
    how, known = world.job.best, world.operators.durable
    if how is None:
        return
    values = {mark: world.sealed.scores.get(mark) for mark in world.sealed}
    forks = [(fork.attempt, fork.step) for fork in known.forks]
    if pruning.best(values, forks, is_max=how.is_max) == deleted:
        raise Violation(f"checkpoint {deleted} is deleted, and it is the best one")


def check_shown(world: World) -> None:
    """The checkpoint that a job shows as its best one is there."""
    shown = facts.best(world.operators.durable, world.job.best)
    if shown is not None and (shown.attempt, shown.step) not in world.sealed:
        raise Violation(f"the best checkpoint, of step {shown.step}, is not there")
