"""How much longer a step is because of those that copy a stage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.protection.figures import figures
from bamboo_core.protection.grids import Shape

EQUAL = Shape(4, 4, 8, loads=(1.0,) * 4, sums=(0.5,) * 4, leaf_size=2)


def copying(shape: Shape) -> float:
    return figures(shape, RedundancyMode.REPLICA).copying


def test_without_a_next_stage_or_a_slow_network_copies_take_no_time() -> None:
    assert copying(replace(EQUAL, stages=1, loads=(1.0,), sums=(1.0,))) == 0
    assert copying(replace(EQUAL, sums=())) == 0
    assert copying(replace(EQUAL, sums=(0.0,) * 4)) == 0


def test_one_pipeline_sends_each_gradient_once() -> None:
    """The last one to end is the first stage, whose gradient then goes to one agent."""
    alone = replace(EQUAL, pipelines=1, leaf_size=8, sums=(0.7, 0.1, 0.1, 0.1))
    assert copying(alone) == pytest.approx(0.7)


def test_what_is_passed_on_costs_a_share_of_a_gradient() -> None:
    """The first stage ends last. It sends each of its four slices once more."""
    assert copying(EQUAL) == pytest.approx(0.5 / 4)


def test_without_copies_nothing_is_sent() -> None:
    assert figures(EQUAL, RedundancyMode.NONE).copying == 0


def test_gradients_take_as_long_as_those_of_the_job_however_large_it_is() -> None:
    large = replace(EQUAL, pipelines=32, microbatches=64, leaf_size=16)
    assert copying(large) == pytest.approx(copying(EQUAL), rel=0.01)
