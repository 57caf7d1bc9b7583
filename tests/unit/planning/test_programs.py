"""Programs of normal steps pass the dry run, with fused and with split backward."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo_core import schedule, verify, workmap
from bamboo_core.numerics import BatchShape, choose
from bamboo_core.program import parse, to_text
from bamboo_core.schedule import Costs
from bamboo_core.spec import RecoveryPolicy

from .steps import Step, holdings, replica_holders, seats


def plan(*, pipelines, stages, batch: BatchShape, split, extra, lost=(), latency=0.0):
    grid = seats(pipelines, stages, lost)
    work = workmap.assign(
        batch=batch, seats=grid, holders=replica_holders(grid), policy=RecoveryPolicy.DIFFUSE
    )
    step = Step(batch=batch, work=work, stages=stages, split=split)
    costs = Costs.even(stages, latency=latency)
    made = schedule.build(
        step.graph,
        batch=batch,
        costs=costs,
        caps=schedule.caps(grid, extra),
        pipelines=pipelines,
    )
    report = verify.dry_run(
        made.programs, batch=batch, layers=stages, holdings=holdings(work), costs=costs
    )
    return made, report


@given(
    pipelines=st.integers(1, 4),
    stages=st.integers(1, 8),
    per_pipeline=st.integers(1, 16),
    split=st.booleans(),
    extra=st.integers(0, 8),
)
def test_every_program_set_passes_the_dry_run(pipelines, stages, per_pipeline, split, extra):
    batch = choose(
        microbatches=pipelines * per_pipeline,
        pipelines=pipelines,
        stages=stages,
        pipelines_max=pipelines,
    )
    made, report = plan(pipelines=pipelines, stages=stages, batch=batch, split=split, extra=extra)
    assert report.ok, str(report)
    assert made.forced == 0
    assert report.length == made.length
    for program in made.programs.values():
        assert parse(to_text(program)) == program


@pytest.mark.parametrize("stages", range(1, 9))
@pytest.mark.parametrize("microbatches", [1, 2, 3, 5, 8, 16])
def test_bubbles_of_a_fused_step_are_those_of_1f1b(stages, microbatches):
    made, report = plan(
        pipelines=2,
        stages=stages,
        batch=BatchShape(2 * microbatches, 1, 2),
        split=False,
        extra=0,
    )
    assert report.bubbles == 2 * stages * (stages - 1) * (1 + 2)
    assert made.length == (microbatches + stages - 1) * 3
