"""The rule for the number of pipelines agrees with the scheduler."""

from __future__ import annotations

import statistics
from itertools import combinations, product

import pytest

from bamboo_core.model.numerics import choose
from bamboo_core.placement.capacity import pipelines_for
from bamboo_core.planning.step_shape import StepShape


def slots(pipelines, stages, batch, lost=()):
    shapes = (StepShape(pipelines, stages, batch, lost=lost, extra=extra) for extra in (0, 8))
    return min(shape.dry_run(shape.build().programs).length for shape in shapes)


@pytest.mark.parametrize(("pipelines", "stages"), [(2, 2), (2, 3), (3, 2)])
def test_the_larger_grid_is_kept_where_it_is_faster(pipelines, stages):
    batch = choose(microbatches=12, pipelines_max=pipelines)
    less = slots(pipelines - 1, stages, batch)
    for empty in range(1, stages):
        agents = pipelines * stages - empty
        assert pipelines_for(agents, stages=stages, wanted=pipelines) == pipelines
        seats = combinations(product(range(pipelines), range(stages)), empty)
        assert statistics.mean(slots(pipelines, stages, batch, lost) for lost in seats) < less
    fewer = pipelines_for((pipelines - 1) * stages, stages=stages, wanted=pipelines)
    assert fewer == pipelines - 1
