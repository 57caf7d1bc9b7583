"""Ways to share lost work are compared in the second part of a plan, over the job's network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import pytest
from tests.core.planning.test_planner import A1, GRID, HALVES, proceed, whole
from tests.core.planning.test_preview import job
from tests.core.planning.test_single_ways import LAYER

from bamboo_core.api.spec import RecoveryPolicy, RedundancyMode, RedundancySpec
from bamboo_core.model.ids import AgentId
from bamboo_core.model.program import Op, Program
from bamboo_core.planning import comparison, planner, requests
from bamboo_core.planning.displays import preview
from bamboo_core.planning.requests import Bound, Comparison, StepTime
from bamboo_core.scheduling import candidates
from bamboo_core.scheduling.candidates import Candidate
from bamboo_core.scheduling.schedule import Schedule
from bamboo_core.scheduling.sharing.estimates import Estimate

AUTO = RecoveryPolicy.AUTO
LARGE = 10**11  # bytes of a layer, which takes 80 s over 10 Gb/s


def lossy(
    *lost: AgentId, policy: RecoveryPolicy = AUTO, parameter_bytes: int = 1
) -> requests.PlanRequest:
    """2 x 2 without some agents; layers take 3 s for each of 16 micro-batches."""
    made = whole(*lost)
    job = replace(made.spec, recovery=policy)
    costs = (replace(HALVES, parameter_bytes=parameter_bytes),) * 4
    return replace(made, spec=job, costs=costs)


def compared(request: requests.PlanRequest) -> Comparison:
    found = proceed(request).sharing
    assert found is not None
    return found


def forwards(programs: Mapping[AgentId, Program]) -> Counter[AgentId]:
    return Counter(a for a, p in programs.items() for x in p if x.op is Op.F)


@pytest.mark.parametrize("parameter_bytes", [1, 10**9, LARGE])
def test_the_taken_way_is_the_shortest_and_its_programs_are_the_plan(parameter_bytes: int) -> None:
    request = lossy(A1, parameter_bytes=parameter_bytes)
    found = compared(request)
    assert all(found.taken.step_s <= x.step_s for x in found.others)
    assert found.taken.bound is Bound.NONE
    names = [found.taken.way, *(x.way for x in found.others)]
    assert len(set(names)) == len(names)
    assert set(names) <= set(candidates.WAYS)
    assert compared(request) == found


def test_the_policy_restricts_the_ways() -> None:
    for policy in RecoveryPolicy:
        found = compared(lossy(A1, policy=policy))
        ways = {found.taken.way, *(x.way for x in found.others)}
        assert ways <= set(candidates.ALLOWED[policy]) or policy is RecoveryPolicy.SHADOW


def test_a_full_grid_compares_nothing() -> None:
    assert proceed(lossy()).sharing is None


def test_the_first_part_waits_for_no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ArithmeticError("compared")

    request = lossy(A1)
    monkeypatch.setattr(planner.comparison, "shortest", refuse)
    results = planner.compute(request)
    decision = next(results)
    assert isinstance(decision, requests.Decision)
    assert forwards({a: d.resume for a, d in decision.directives.items()})
    with pytest.raises(ArithmeticError, match="compared"):
        next(results)


def test_every_micro_batch_is_computed_once_in_each_stage() -> None:
    steady = {a: c.steady for a, c in proceed(lossy(A1, parameter_bytes=LARGE)).directives.items()}
    tasks = Counter((x.lo, x.index) for p in steady.values() for x in p if x.op is Op.F)
    assert set(tasks.values()) == {1}
    assert len(tasks) == 2 * lossy().batch.microbatches
    assert steady.keys() == {a for p in GRID for a in p} - {A1}


def test_one_loss_is_compared_with_a_step_without_a_loss() -> None:
    spec = replace(whole().spec, redundancy=RedundancySpec(RedundancyMode.REPLICA))
    found = preview.one_loss(spec, (replace(HALVES, parameter_bytes=10**9),) * 4)
    assert found is not None
    assert found.seat == (1, 1)
    assert found.usual_s < found.ways.taken.step_s
    assert preview.one_loss(spec, (replace(HALVES, parameter_bytes=0),) * 4) is None  # no sizes
    alone = replace(
        spec,
        pipelines=replace(spec.pipelines, count=1, max=1),
        redundancy=RedundancySpec(RedundancyMode.NONE),
    )
    assert preview.one_loss(alone, (HALVES,) * 4) is None  # fatal


def test_one_loss_of_pipelines_with_one_stage_leaves_fewer_pipelines() -> None:
    asked = whole().spec
    spec = replace(asked, pipelines=replace(asked.pipelines, count=4, max=4, stages=1))
    found = preview.one_loss(spec, (replace(HALVES, parameter_bytes=10**6),) * 4)
    assert found is not None
    assert (found.ways.taken.way, found.ways.others) == ("FewerPipelines", ())
    most = -(-asked.training.microbatches // 3) / (asked.training.microbatches // 4)
    assert found.ways.taken.step_s / found.usual_s == pytest.approx(most, rel=0.01)


def test_a_way_that_cannot_win_is_not_scheduled() -> None:
    found = compared(lossy(A1))
    assert any(x.bound is Bound.LEAST for x in found.others) or len(found.others) < 2
    assert found.others == tuple(sorted(found.others, key=lambda x: (x.step_s, x.way)))
    assert isinstance(found.taken, StepTime)


def test_ways_that_come_near_are_tried_in_the_other_variant_and_run_dry() -> None:
    """The second way is the shortest in its other variant, by its dry run. The third is too far for
    its other variant, and takes at most so long; the fourth is not scheduled at all."""
    ends = {"first": 10.0, "second": 12.9, "third": 13.1, "fourth": 9.0}
    others = {"second": Schedule(dict, 1.0, 0, 10.7, True), "third": Schedule(dict, 1.0, 0, 9.0)}
    ways = [
        Candidate(way, {}, Estimate(1.0, 0.0, bound, 0.0), 1)
        for way, bound in zip(ends, (1.0, 1.0, 1.0, 11.0), strict=True)
    ]
    asked: list[float] = []

    def again(shared: Candidate) -> Callable[[], Schedule] | None:
        return (lambda: others[shared.way]) if shared.way in others else None

    def length(made: Schedule) -> float:
        asked.append(made.end)
        return {10.0: 10.0, 10.7: 9.9}[made.end]

    best = comparison.shortest(
        ways,
        lambda x: Schedule(dict, 1.0, 0, ends[x.way]),
        again,
        length,
    )
    assert (best.shared.way, best.made.is_split) == ("second", True)
    assert asked == [10.0, 10.7]
    assert best.comparison == Comparison(
        StepTime("second", 9.9),
        (
            StepTime("first", 10.0),
            StepTime("fourth", 11.0, Bound.LEAST),
            StepTime("third", 13.1, Bound.MOST),
        ),
    )


class Backwards(NamedTuple):
    split: bool


@pytest.mark.parametrize(("split", "far"), [((True, False), Bound.MOST), ((True,), Bound.NONE)])
def test_at_most_is_said_where_a_variant_was_left_out(split: tuple[bool, ...], far: Bound) -> None:
    """The first way is tried in all variants, however far it is from the best; the last one in the
    first way's variant only, though its other one would be shorter."""
    ends = {
        "first": {True: 20.0, False: 21.0},
        "best": {True: 10.0, False: 11.0},
        "last": {True: 15.0, False: 12.0},
    }
    best = comparison.in_variants(
        [Candidate(way, {}, Estimate(1.0, 0.0, 1.0, 0.0), 1) for way in ends],
        [Backwards(x) for x in split],
        lambda shared, tried: min(
            (Schedule(dict, 1.0, 0, ends[shared.way][x.split], x.split) for x in tried),
            key=lambda x: x.end,
        ),
    )
    assert best.comparison == Comparison(
        StepTime("best", 10.0), (StepTime("last", 15.0, far), StepTime("first", 20.0))
    )


def test_a_policy_shows_that_a_way_takes_less_than_at_most() -> None:
    """With Auto, Diffuse is far from the best in the variant that is tried; alone, it is tried in
    both."""
    spec = replace(job(2, 2, 4), redundancy=RedundancySpec(RedundancyMode.REPLICA))
    auto = preview.one_loss(spec, (LAYER,) * 2)
    alone = preview.one_loss(replace(spec, recovery=RecoveryPolicy.DIFFUSE), (LAYER,) * 2)
    assert auto is not None
    assert alone is not None
    said, length = (
        next(x for x in (found.taken, *found.others) if x.way == "Diffuse")
        for found in (auto.ways, alone.ways)
    )
    assert (said.bound, length.bound) == (Bound.MOST, Bound.NONE)
    assert length.step_s < 0.9 * said.step_s
