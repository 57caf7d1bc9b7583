"""Slow agents get less work; every leaf still has a holder; equal speeds change nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo_core.api.spec import RecoveryPolicy, RedundancyMode
from bamboo_core.model.ids import AgentId
from bamboo_core.model.numerics import BatchShape, choose
from bamboo_core.planning.step_shape import StepShape
from bamboo_core.scheduling import schedule
from bamboo_core.scheduling.candidates import likeliest
from bamboo_core.scheduling.sharing import orders
from bamboo_core.scheduling.sharing.step_work import StepWork, WorkMap

from .steps import name, step

SHADOW, PEERS, DIFFUSE = RecoveryPolicy.SHADOW, RecoveryPolicy.PEERS, RecoveryPolicy.DIFFUSE
POLICIES = st.sampled_from(list(RecoveryPolicy))
SPEEDS = st.sampled_from([0.1, 0.3, 0.5, 0.7, 1.0, 1.3, 2.0])
BATCH = BatchShape(32, 2, 2)  # 16 leaves


def work_of(shape: StepShape, **options: object) -> WorkMap:
    given = StepWork(shape.batch, shape.seats, shape.holders(), **options)  # type: ignore[arg-type]
    return likeliest(given, shape.policy).work


def top(work: WorkMap, speeds: Mapping[AgentId, float]) -> float:
    """Time of the busiest agent, in leaves at speed 1."""
    return max(n / speeds.get(a, 1.0) for a, n in Counter(work.values()).items())


@st.composite
def shapes(draw: st.DrawFn) -> StepShape:
    """Grids with some empty seats, and every stage with a holder."""
    pipelines, stages = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    batch = BatchShape(draw(st.integers(4, 20)), 1, 4)
    seats = st.tuples(st.integers(0, pipelines - 1), st.integers(0, stages - 1))
    lost = tuple(sorted(draw(st.sets(seats, max_size=2))))
    mode = draw(st.sampled_from(list(RedundancyMode)))
    shape = step(batch, pipelines, stages, lost, policy=draw(POLICIES), mode=mode)
    if len(lost) < pipelines * stages and all(shape.holders()):
        return shape
    return replace(shape, lost=())


@given(shapes(), SPEEDS)
@settings(max_examples=100, deadline=None)
def test_equal_speeds_give_the_map_without_speeds(shape: StepShape, speed: float) -> None:
    without = work_of(shape)
    assert work_of(shape, speeds=dict.fromkeys(shape.live, speed)) == without
    assert work_of(shape, speeds={AgentId("another"): speed}) == without


@given(shapes(), st.data())
@settings(max_examples=150, deadline=None)
def test_whatever_the_speeds_every_leaf_has_a_holder(shape: StepShape, data: st.DataObject) -> None:
    speeds = {a: data.draw(SPEEDS) for a in shape.live}
    holders, leaves = shape.holders(), shape.batch.leaves
    works = st.tuples(st.integers(0, shape.stages - 1), st.integers(0, leaves - 1))
    pinned = {w: data.draw(st.sampled_from(holders[w[0]])) for w in data.draw(st.sets(works))}
    work = work_of(shape, speeds=speeds, pinned=pinned)
    assert work == work_of(shape, speeds=dict(reversed(speeds.items())), pinned=pinned)
    assert set(work) == {(s, leaf) for s in range(shape.stages) for leaf in range(leaves)}
    assert all(a in holders[s] for (s, _), a in work.items())
    assert {w: work[w] for w in pinned} == pinned
    if not shape.policy.relieves_slow and not shape.lost and not pinned:
        assert work == work_of(shape)


@given(shapes(), st.data())
@settings(max_examples=100, deadline=None)
def test_without_an_empty_seat_no_step_gets_longer(shape: StepShape, data: st.DataObject) -> None:
    shape = replace(shape, lost=(), policy=DIFFUSE)
    speeds = {a: data.draw(SPEEDS) for a in shape.live}
    even: dict[AgentId, float] = {}
    plain, work = work_of(shape, base=even), work_of(shape, base=even, speeds=speeds)
    assert work == plain or top(work, speeds) <= 0.95 * top(plain, speeds) + 1e-9


@pytest.mark.parametrize(("speed", "share"), [(0.5, 1 / 3), (0.33, 1 / 4)])
def test_of_two_holders_the_slow_one_gets_its_share(speed: float, share: float) -> None:
    shape = step(BatchShape(48, 1, 2), 2, 1, mode=RedundancyMode.NONE)
    counts = Counter(work_of(shape, speeds={name(1, 0): speed}).values())
    assert abs(counts[name(1, 0)] - 48 * share) <= 1


def test_a_fast_agent_helps_only_where_a_step_waits_for_a_slow_one() -> None:
    shape = step(BATCH, 2, 2)
    assert work_of(shape, speeds={name(0, 0): 2.0}) == work_of(shape)


@pytest.mark.parametrize("policy", [PEERS, DIFFUSE])
def test_orphans_go_to_the_faster_agents(policy: RecoveryPolicy) -> None:
    shape = step(BatchShape(48, 2, 4), 3, 2, ((1, 1),), policy=policy, mode=RedundancyMode.NONE)
    work = work_of(shape, speeds={name(2, 1): 0.5})
    lost = shape.step_work.lost[1, 1]
    orphans = Counter(work[1, leaf] for leaf in lost)
    assert orphans == {name(0, 1): 8}


def test_nothing_moves_for_a_small_gain() -> None:
    """Both holders of stage 1 are slow, so relieving stage 0 would not shorten the step."""
    shape = step(BATCH, 2, 2, mode=RedundancyMode.NONE)
    slow = {name(0, 0): 0.5, name(0, 1): 0.5, name(1, 1): 0.5}
    assert work_of(shape, speeds=slow) == work_of(shape)
    del slow[name(1, 1)]
    assert work_of(shape, speeds=slow) != work_of(shape)


def test_a_slow_agent_keeps_a_leaf_to_be_measured_by() -> None:
    shape = step(BatchShape(8, 1, 2), 2, 2)
    assert Counter(work_of(shape, speeds={name(0, 0): 0.01}).values())[name(0, 0)] == 1


def test_leaves_away_from_their_seats_are_seen() -> None:
    shape = step(BATCH, 2, 2)
    work = work_of(shape)
    assert not shape.step_work.is_moved(work)
    work[1, 15] = name(0, 1)
    assert shape.step_work.is_moved(work)


@pytest.mark.parametrize("speed", [0.0, -1.0])
def test_a_speed_that_is_not_positive_is_refused(speed: float) -> None:
    with pytest.raises(ValueError, match=f"speed of 0-0 is {speed}; it must be positive"):
        work_of(step(BATCH, 2, 2), speeds={name(0, 0): speed})


def length(shape: StepShape, work: WorkMap, speeds: Mapping[AgentId, float]) -> float:
    """Simulated step with these speeds, in slots."""
    made = schedule.build(
        shape.graph(work),
        batch=shape.batch,
        costs=shape.timing,
        caps=schedule.caps(shape.seats, 8),
        order=orders.positions(shape.batch, work, shape.pipelines),
        speeds=speeds,
    )
    assert shape.dry_run(made.programs).ok
    return made.length


@given(st.integers(1, 4), st.integers(8, 32), st.booleans(), st.data())
@settings(max_examples=25, deadline=None)
def test_a_step_with_an_agent_three_times_slower_is_a_quarter_shorter(
    stages: int, microbatches: int, split: bool, data: st.DataObject
) -> None:
    batch = choose(microbatches=2 * microbatches, pipelines_max=2)
    shape = step(batch, 2, stages, split=split)
    slow = {data.draw(st.sampled_from(shape.live)): 1 / 3}
    plain = length(shape, shape.work(), slow)
    weighted = length(shape, replace(shape, speeds=slow).work(), slow)
    assert weighted <= 0.75 * plain


def test_an_agent_half_as_fast_doubles_the_simulated_step_of_its_stage() -> None:
    shape = step(BATCH, 1, 1, mode=RedundancyMode.NONE)
    assert length(shape, shape.work(), {name(0, 0): 0.5}) == 2 * length(shape, shape.work(), {})
