"""Programs of full and degraded grids pass the dry run, fused and split, and round-trip."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo_core.api.spec import RecoveryPolicy, RedundancyMode
from bamboo_core.graph.closure import Periodic
from bamboo_core.model.items import Kind
from bamboo_core.model.numerics import BatchShape, choose
from bamboo_core.model.program import Op, parse, to_text
from bamboo_core.scheduling.costs import Costs

from .steps import step


def batch_of(pipelines, stages, per_pipeline):
    return choose(
        microbatches=pipelines * per_pipeline,
        pipelines_max=pipelines,
    )


@given(
    pipelines=st.integers(1, 4),
    stages=st.integers(1, 8),
    per_pipeline=st.integers(1, 16),
    split=st.booleans(),
    extra=st.integers(0, 8),
    latency=st.sampled_from([0.0, 0.25]),
)
@settings(max_examples=60, deadline=None)
def test_every_program_set_passes_the_dry_run(
    pipelines, stages, per_pipeline, split, extra, latency
):
    shape = step(
        batch_of(pipelines, stages, per_pipeline),
        pipelines,
        stages,
        split=split,
        extra=extra,
        costs=Costs.even(stages, latency=latency),
    )
    made = shape.build()
    report = shape.dry_run(made.programs)
    assert report.ok, str(report)
    assert made.forced == 0
    assert report.length == made.length
    for program in made.programs.values():
        assert parse(to_text(program)) == program


@given(
    pipelines=st.integers(2, 4),
    stages=st.integers(2, 6),
    per_pipeline=st.integers(1, 8),
    split=st.booleans(),
    extra=st.integers(0, 8),
    policy=st.sampled_from(list(RecoveryPolicy)),
    mode=st.sampled_from(list(RedundancyMode)),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_degraded_steps_pass_the_dry_run_and_keep_the_cap(
    pipelines, stages, per_pipeline, split, extra, policy, mode, data
):
    seats = [(d, s) for d in range(pipelines) for s in range(stages)]
    lost = tuple(data.draw(st.lists(st.sampled_from(seats), max_size=pipelines - 1, unique=True)))
    batch = batch_of(pipelines, stages, per_pipeline)
    shape = step(batch, pipelines, stages, lost, split=split, policy=policy, mode=mode, extra=extra)
    made = shape.build()
    report = shape.dry_run(made.programs)
    assert report.ok, str(report)
    assert made.forced == 0
    reserved = 1
    for d, pipeline in enumerate(shape.seats):
        for s, agent in enumerate(pipeline):
            if agent is not None:
                assert report.activations[agent] <= stages - s + extra + reserved, (d, s)


def test_all_small_grids_pass_the_dry_run():
    for pipelines in range(1, 5):
        for stages in range(1, 9):
            for split in (False, True):
                shape = step(batch_of(pipelines, stages, 5), pipelines, stages, split=split)
                report = shape.dry_run(shape.build().programs)
                assert report.ok, (pipelines, stages, split, str(report))


@pytest.mark.parametrize("stages", range(1, 9))
@pytest.mark.parametrize("microbatches", [1, 2, 3, 5, 8, 16])
def test_a_fused_step_has_the_bubbles_of_1f1b(stages, microbatches):
    shape = step(BatchShape(2 * microbatches, 1, 2), 2, stages)
    made = shape.build()
    report = shape.dry_run(made.programs)
    assert report.bubbles == 2 * stages * (stages - 1) * (1 + 2)
    assert made.length == (microbatches + stages - 1) * 3


@pytest.mark.parametrize("mode", [RedundancyMode.NONE, RedundancyMode.REPLICA])
@pytest.mark.parametrize(("pipelines", "stages"), [(2, 2), (4, 2), (4, 4)])
def test_no_two_agents_of_a_stage_send_to_one_agent_at_a_time(pipelines, stages, mode):
    """An interface receives one item after the other. Agents of the stage get it first, then other
    copies. So large grids do it, where no simulation puts slices in order."""
    shape = step(batch_of(pipelines, stages, 2), pipelines, stages, mode=mode, relays=False)
    programs = shape.build().programs
    for stage in range(stages):
        owners = [row[stage] for row in shape.seats]
        for kind, copies in ((Kind.PIECE, 0), (Kind.RED, pipelines)):
            targets = [_targets(programs[owner], kind, shape.cut[stage]) for owner in owners]
            copies = copies if mode is RedundancyMode.REPLICA and stages > 1 else 0
            assert {len(found) for found in targets} == {pipelines - 1 + copies}
            for found in targets:
                assert {*found[: pipelines - 1]} < {*owners}
            for at_a_time in zip(*targets, strict=True):
                assert len({*at_a_time}) == pipelines, (stage, kind, targets)


def _targets(program, kind, span):
    """Where the program sends pieces of a stage's gradient, in order."""
    sends = (x for x in program if x.op is Op.SEND and x.item.kind is kind)
    return [x.peer for x in sends if (x.item.lo, x.item.hi) == span]


@pytest.mark.parametrize("periodic", [True, False])
def test_validation_and_checkpoints_run_or_are_skipped(periodic):
    both = Periodic(evals=3, validate_every=2, saves=True, save_every=3)
    shape = step(BatchShape(8, 2, 2), 2, 4, lost=((1, 2),), split=True, periodic=both)
    programs = shape.build().programs
    report = shape.dry_run(programs, periodic=periodic)
    assert report.ok, str(report)
    for program in programs.values():
        assert parse(to_text(program)) == program


def test_records_of_files_are_sent_after_all_other_tasks_of_the_step():
    checkpoints = Periodic(saves=True, save_every=3)
    shape = step(BatchShape(8, 2, 2), 2, 2, periodic=checkpoints)
    text = to_text(shape.build().programs[shape.live[1]])
    lines = text.splitlines()
    saved = [i for i, x in enumerate(lines) if x.startswith("SEND (file")]
    assert saved
    assert max(i for i, x in enumerate(lines) if x.startswith(("B", "UPDATE"))) < min(saved)
    assert lines[-1] == "END"
