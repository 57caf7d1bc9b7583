"""Steps with several empty seats: scaled from a small grid, and computed once."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from random import Random
from statistics import fmean

import pytest
from tests.core.protection.job import layers, spec

from bamboo_core.api.spec import RecoveryPolicy, RedundancyMode, TransportSpec
from bamboo_core.model.numerics import choose as choose_batch
from bamboo_core.planning.step_shape import StepShape
from bamboo_core.protection import loss_cost
from bamboo_core.protection.choice import choose
from bamboo_core.protection.facts import Seen, gather
from bamboo_core.protection.grids import Shape
from bamboo_core.protection.loss_cost import after_loss, with_empty
from bamboo_core.scheduling.costs import Costs

NONE, REPLICA, EAGER = RedundancyMode.NONE, RedundancyMode.REPLICA, RedundancyMode.EAGER
GRID = Shape(4, 6, 12, can_split=True)


def test_one_empty_seat_costs_what_a_loss_does() -> None:
    after = after_loss(GRID, NONE)
    assert after is not None
    assert with_empty(GRID, NONE, 4, 1) == pytest.approx(after.degraded)
    assert with_empty(GRID, NONE, 4, 0) == 1.0


@pytest.mark.parametrize("mode", [NONE, REPLICA])
@pytest.mark.parametrize("sums", [(), (1.5,) * 6])
def test_more_empty_seats_never_make_a_step_shorter(
    mode: RedundancyMode, sums: tuple[float, ...]
) -> None:
    shape = replace(GRID, sums=sums)
    for pipelines in (4, 3, 1):
        found = [with_empty(shape, mode, pipelines, empty) for empty in range(6)]
        assert all(a <= b + 1e-9 for a, b in pairwise(found))
        assert found[0] < found[-1]


def test_a_step_on_fewer_pipelines_has_their_micro_batches() -> None:
    """4 x 12 on two pipelines: 24 + 5 slots, and not 12 + 5."""
    assert with_empty(GRID, NONE, 2, 0) == pytest.approx(29 / 17, rel=0.06)


@pytest.mark.parametrize("empty", [1, 2])
def test_holes_cost_what_they_cost_in_planned_steps_of_the_whole_grid(empty: int) -> None:
    """Two of them are in one stage in some patterns only, and then two agents do the work of
    four. Else both are waited for at once."""
    batch = choose_batch(microbatches=48, pipelines_max=4)
    whole = StepShape(4, 6, batch, costs=Costs.even(6), mode=NONE, extra=8)
    seats = [(d, s) for d in range(4) for s in range(6)]
    patterns = list(combinations(seats, empty))[:: 7 * empty - 6]
    usual, *lengths = [
        x.dry_run(x.build().programs).end
        for x in (replace(whole, extra=0), *(replace(whole, lost=lost) for lost in patterns))
    ]
    found = with_empty(GRID, NONE, 4, empty)
    assert found == pytest.approx(fmean(lengths) / usual, rel=0.06)


def test_two_holes_cost_less_than_two_in_one_stage() -> None:
    """Mostly they are at different stages, and both are waited for at once. In one stage, two
    agents would do the work of four, each twelve slots more; with one hole, three do."""
    one, two = (with_empty(GRID, NONE, 4, n) - 1 for n in (1, 2))
    assert one < two < 12 / 17
    assert two < (3 * one + 12 / 17) / 2


@pytest.mark.parametrize("empty", [1, 2, 3])
def test_patterns_are_at_all_stages(empty: int) -> None:
    """One stage is not that of all the others: what its loss costs would count too much."""
    patterns = loss_cost._patterns(GRID, NONE, empty)
    stages = [{s for _, s in pattern} for pattern in patterns]
    assert {len(x) for x in patterns} == {empty}
    assert len(set.union(*stages)) >= 4
    if empty == 1:
        assert sorted(s for (_, s), *_ in patterns) == [0, 2, 3, 5]


def test_eager_is_as_replica() -> None:
    ahead = replace(GRID, slices=2, room=4)
    assert with_empty(ahead, EAGER, 4, 3) == with_empty(ahead, REPLICA, 4, 3)


def test_work_that_stays_together_is_as_dear_on_a_large_grid() -> None:
    shadow = replace(GRID, policy=RecoveryPolicy.SHADOW)
    large = replace(shadow, pipelines=16)
    assert with_empty(large, REPLICA, 16, 3) > 1 + 0.5 * (with_empty(shadow, REPLICA, 4, 3) - 1)
    shared = with_empty(replace(GRID, pipelines=16), NONE, 16, 3)
    assert shared - 1 < 0.4 * (with_empty(GRID, NONE, 4, 3) - 1)


def test_one_pipeline_without_copies_reads_what_it_does_not_hold() -> None:
    """After a restore an agent has two stages: 96 slots of work, in a step of 57 before."""
    assert with_empty(Shape(1, 4, 16), NONE, 1, 1) == pytest.approx(96 / 57, rel=0.05)


def test_the_scaled_steps_are_near_the_planned_ones() -> None:
    """3 of 16 seats of 4 x 4 are empty: four patterns stand for 60 of all 560."""
    shape = Shape(4, 4, 12, latency=1 / 64)
    batch = choose_batch(microbatches=48, pipelines_max=4)
    whole = StepShape(4, 4, batch, costs=Costs.even(4, latency=1 / 64), mode=NONE, extra=8)
    every = combinations([(d, s) for d in range(4) for s in range(4)], 3)
    patterns = Random(1).sample(list(every), 60)
    usual, *lengths = [
        x.dry_run(x.build().programs).end
        for x in (replace(whole, extra=0), *(replace(whole, lost=lost) for lost in patterns))
    ]
    assert with_empty(shape, NONE, 4, 3) == pytest.approx(fmean(lengths) / usual, rel=0.12)


def test_what_is_prepared_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    job = spec(3, 4, transport=TransportSpec(bandwidth_gbps=17.0))
    facts = gather(job, layers(parameter_bytes=17_000_000), Seen(0.05), pipelines=3)
    facts.steps.prepare(lambda: True)
    runs = []
    run = loss_cost._run
    monkeypatch.setattr(loss_cost, "_run", lambda *args: runs.append(args) or run(*args))
    often = [choose(replace(facts, empty_share=x / 10)) for x in range(9)]
    assert not runs
    assert [x.of(NONE).step for x in often] == sorted(x.of(NONE).step for x in often)


def test_nothing_is_prepared_that_nobody_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = gather(spec(2, 4), layers(), Seen(0.05), pipelines=2)

    def fail(*_args: object) -> float:
        raise AssertionError("it takes a second")

    monkeypatch.setattr("bamboo_core.protection.steps.with_empty", fail)
    facts.steps.prepare(lambda: False)
    with pytest.raises(AssertionError, match="a second"):
        facts.steps.prepare(lambda: True)
