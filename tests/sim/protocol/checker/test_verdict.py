"""The judge of commits: a validation is right, unless layers are wrong, and never left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.model.program import Op
from bamboo_sim.protocol.checker.verdict import check_commit
from bamboo_sim.protocol.exploration.time_budget import OLDER
from bamboo_sim.protocol.histories.history import apply
from bamboo_sim.protocol.parts.symbolic import Flip
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.running.simulation import Simulation

STEP = 1


@pytest.fixture
def world():
    """2 x 2, each version of which is validated, in its second step."""
    world = Simulation(OLDER, 1, "fifo")
    while world.newest < (0, STEP - 1):
        assert world.step()
    return world


def commit(world, **changes):
    """Let the checker judge a commit that differs from the right one."""
    durable = world.operators.durable
    right = world.job.expected(durable.batch, (0,) * world.job.steps)[1][STEP]
    check_commit(world, world.nodes["a00"], replace(right, **changes))


def test_a_validation_that_is_due_is_right(world):
    commit(world)
    with pytest.raises(Violation, match="a00 validates version 1 as 7"):
        commit(world, validation_loss=7)


@pytest.mark.parametrize("are_layers_wrong", [False, True])
def test_a_validation_that_is_due_is_not_left_out(world, are_layers_wrong):
    world.spoiled = (0, 0) if are_layers_wrong else None
    with pytest.raises(Violation, match="validates version 1 as None"):
        commit(world, validation_loss=None)


def test_a_device_that_is_wrong_in_a_step_is_no_excuse_for_a_wrong_validation(world):
    world.flips = {"a01": Flip(Op.F, lasts=True)}
    with pytest.raises(Violation, match="validates version 1 as 7"):
        commit(world, validation_loss=7)


def test_wrong_layers_are_an_excuse(world):
    apply(world, ("alter", "a01", 0))
    commit(world, validation_loss=7)
    world.altered, world.spoiled = {}, (0, 0)
    commit(world, validation_loss=7)
