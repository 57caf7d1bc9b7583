"""The small grid in the place of a job's: communication weighs as much in it as in the whole grid.

Each grid is too large to be computed by the cost model. Here it is: its programs run dry with the
job's network, in each way to share lost work. A sum of a stage's gradient takes 3, 13 or 33
forwards where 0.75 GB go over 100, 25 or 10 Gb/s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import pytest

from bamboo_core.api.spec import RecoveryPolicy, RedundancyMode
from bamboo_core.model.numerics import choose
from bamboo_core.planning import comparison
from bamboo_core.planning.step_shape import StepShape
from bamboo_core.protection import grids, interrupted
from bamboo_core.protection.grids import Shape, alike, fewer
from bamboo_core.protection.loss_cost import after_loss, usual, with_empty
from bamboo_core.scheduling.candidates import Candidate, candidates
from bamboo_core.scheduling.costs import Costs
from bamboo_core.scheduling.schedule import Schedule

NONE, REPLICA = RedundancyMode.NONE, RedundancyMode.REPLICA
EXTRA = 8  # activations in flight beyond P - s


def shape(pipelines: int, stages: int, microbatches: int, sums: float) -> Shape:
    """microbatches: of one pipeline."""
    size = choose(microbatches=pipelines * microbatches, pipelines_max=pipelines).leaf_size
    return Shape(
        pipelines,
        stages,
        microbatches,
        can_split=True,
        spare=EXTRA,
        loads=(1.0,) * stages,
        sums=(sums,) * stages,
        leaf_size=size,
    )


def whole(found: Shape, mode: RedundancyMode, lost: tuple[tuple[int, int], ...] = ()) -> StepShape:
    """The job's own grid."""
    one, two = (1.0,) * found.stages, (2.0,) * found.stages
    return StepShape(
        found.pipelines,
        found.stages,
        choose(microbatches=found.total, pipelines_max=found.pipelines),
        lost=lost,
        split=True,
        mode=mode,
        extra=EXTRA,
        costs=Costs(one, two, one, one),
        transfer=found.sums,
    )


def undisturbed(found: Shape, mode: RedundancyMode) -> float:
    step = whole(found, mode)
    return step.dry_run(step.build().programs).end


def degraded(found: Shape, mode: RedundancyMode) -> float:
    """Without an agent of the first, the middle or the last stage, over an undisturbed step."""
    lengths = [shortest(found, mode, s) for s in (0, found.stages // 2, found.stages - 1)]
    return fmean(lengths) / undisturbed(found, mode)


def shortest(found: Shape, mode: RedundancyMode, stage: int) -> float:
    """The step without an agent of the stage, as the planner chooses it."""
    split = whole(found, mode, ((0, stage),))

    def made(shared: Candidate, tried: Sequence[StepShape]) -> Schedule:
        return min((x.build(shared=shared) for x in tried), key=lambda x: x.end)

    return comparison.in_variants(
        candidates(split.step_work, RecoveryPolicy.AUTO),
        [replace(split, split=False), split],
        made,
        lambda x: split.dry_run(x.programs).end,
    ).comparison.taken.step_s


@pytest.mark.parametrize(
    ("pipelines", "stages", "microbatches", "sums"),
    [(4, 8, 32, 13.3), (4, 8, 32, 33.0), (2, 12, 48, 3.3), (3, 8, 32, 13.3), (4, 4, 128, 33.0)],
)
@pytest.mark.parametrize("mode", [NONE, REPLICA])
def test_undisturbed_steps_are_as_long_as_those_of_the_whole_grid(
    pipelines: int, stages: int, microbatches: int, sums: float, mode: RedundancyMode
) -> None:
    found = shape(pipelines, stages, microbatches, sums)
    small = alike(found)
    assert small.stages * small.microbatches < stages * microbatches
    assert usual(found, mode) == pytest.approx(undisturbed(found, mode), rel=0.03)


@pytest.mark.parametrize("sums", [0.0, 3.3, 13.3, 33.0])
def test_fewer_pipelines_are_slower_or_faster_as_in_the_whole_grid(sums: float) -> None:
    """A pipeline less has more to compute, and its sums are as long as before."""
    found = shape(4, 8, 32, sums)
    for pipelines in (3, 1):
        part = fewer(found, pipelines)
        ratio = undisturbed(part, NONE) / undisturbed(found, NONE)
        assert with_empty(found, NONE, pipelines, 0) == pytest.approx(ratio, rel=0.04)


def test_fewer_pipelines_may_be_faster() -> None:
    """Two pipelines send each other gradients of 560 forwards; one has twice the 11 slots to
    compute, and sends nothing."""
    found = shape(2, 4, 8, 560.0)
    ratio = undisturbed(fewer(found, 1), NONE) / undisturbed(found, NONE)
    assert ratio < 0.2
    assert with_empty(found, NONE, 1, 0) == pytest.approx(ratio, rel=0.03)


@pytest.mark.parametrize(
    ("pipelines", "stages", "microbatches", "sums", "mode"),
    [
        (4, 8, 32, 0.0, REPLICA),
        (4, 8, 32, 3.3, NONE),
        (4, 8, 32, 3.3, REPLICA),
        (4, 8, 32, 13.3, REPLICA),
        (4, 8, 32, 33.0, REPLICA),
        (2, 8, 40, 13.3, NONE),
        (8, 8, 16, 13.3, REPLICA),
    ],
)
def test_a_loss_costs_what_it_costs_in_the_whole_grid(
    pipelines: int, stages: int, microbatches: int, sums: float, mode: RedundancyMode
) -> None:
    found = shape(pipelines, stages, microbatches, sums)
    estimate = after_loss(found, mode)
    assert estimate is not None
    assert estimate.degraded == pytest.approx(degraded(found, mode), rel=0.06)


def test_a_loss_is_no_cheaper_where_a_micro_batch_stands_for_several_ones() -> None:
    """512 micro-batches are 128 leaves. Eight activations more are as many micro-batches in flight,
    and not as many leaves: agents that compute for others wait longer."""
    found = shape(4, 4, 128, 3.3)
    assert alike(found).stands == 4
    estimate = after_loss(found, REPLICA)
    assert estimate is not None
    assert estimate.degraded == pytest.approx(degraded(found, REPLICA), rel=0.03)


@pytest.mark.parametrize("sums", [13.0, 33.0])
def test_a_loss_while_gradients_are_sent_is_as_likely_as_one_while_agents_compute(
    sums: float,
) -> None:
    """Half of this step is sums of gradients, or two thirds. Those that went to the lost agent, and
    those that it had, are sent once more. The mean of eight moments and of all stages."""
    found = shape(2, 4, 8, sums)
    step = whole(found, REPLICA)
    made = step.build()
    end = step.dry_run(made.programs).end
    assert made.length < 0.55 * end
    longer = []
    for stage in range(4):
        split = whole(found, REPLICA, ((0, stage),))
        for moment in range(8):
            stopped = interrupted.stop(step, at=(moment + 0.5) / 8 * end)
            variants = replace(split, split=False), split
            longer.append(interrupted.resumed(stopped, *variants) - end)
    estimate = after_loss(found, REPLICA)
    assert estimate is not None
    expected = (estimate.degraded - 1) / 2 * end + estimate.redone
    assert expected == pytest.approx(fmean(longer), rel=0.1)


def test_the_costliest_stage_is_in_the_small_grid() -> None:
    """The others wait for it, and have time for what is lost."""
    loads = (0.5,) * 5 + (1.0,) + (0.5,) * 6
    found = replace(shape(4, 12, 32, 3.3), loads=loads)
    assert alike(found).loads == (0.5, 1.0, 0.5, 0.5)
    estimate = after_loss(found, REPLICA)
    assert estimate is not None
    assert estimate.degraded < 1.01


def test_a_grid_that_loses_an_agent_in_a_step_has_more_stages() -> None:
    found = shape(4, 12, 32, 12.0)
    assert grids.interrupted(found).stages == 12
    assert grids.interrupted(shape(4, 40, 32, 12.0)).stages == 12
    large = shape(32, 12, 8, 12.0)  # as many agents as the planner compares ways for
    assert grids.interrupted(large) == replace(alike(large), stands=1.0)


def test_ways_for_whose_sums_there_is_no_memory_are_not_taken() -> None:
    found = shape(1, 4, 16, 3.3)
    short = replace(found, most_sums=2)
    roomy, tight = (after_loss(x, REPLICA) for x in (found, short))
    assert roomy is not None
    assert tight is not None
    assert tight.degraded > roomy.degraded
    assert after_loss(replace(found, most_sums=40), REPLICA) == roomy


def test_a_small_grid_has_the_pipelines_and_leaves_of_the_job() -> None:
    found = shape(4, 12, 32, 12.0)
    small = alike(found)
    assert (small.pipelines, small.stages, small.microbatches) == (4, 4, 32)
    assert small.sums == (12.0,) * 4


def test_a_micro_batch_may_stand_for_several_ones() -> None:
    """512 micro-batches are 128 leaves of four: a gradient takes a quarter of the time."""
    found = shape(4, 8, 128, 12.0)
    small = alike(found)
    assert (small.pipelines, small.stages, small.microbatches) == (4, 4, 32)
    assert small.sums == (3.0,) * 4
    fine = alike(replace(shape(4, 8, 128, 12.0), leaf_size=1))  # too many leaves
    assert (fine.microbatches, fine.sums) == (32, (3.0,) * 4)
    assert alike(fewer(found, 3)).total == 128


def test_a_grid_that_is_small_is_computed_itself() -> None:
    found = shape(2, 12, 16, 5.0)
    assert alike(found) == replace(found, room=16, batch=32)
