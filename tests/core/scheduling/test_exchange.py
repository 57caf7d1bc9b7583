"""The network in the simulation of a step: order of slices, and agents that pass them on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo_core.api.spec import RecoveryPolicy, RedundancyMode
from bamboo_core.graph import closure
from bamboo_core.graph.closure import Periodic
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Kind
from bamboo_core.model.numerics import BatchShape, choose
from bamboo_core.model.program import COMPUTE, Op
from bamboo_core.scheduling import schedule
from bamboo_core.scheduling.costs import Costs

from .steps import step


def sent(programs, span):
    """(source, target, slice) of every SEND of the stage's reduced gradient."""
    return [
        (agent, x.peer, x.item.part)
        for agent, program in programs.items()
        for x in program
        if x.op is Op.SEND and x.item.kind is Kind.RED and (x.item.lo, x.item.hi) == span
    ]


def reduced_by(program):
    """(stage's first layer, slice) of what the agent adds up."""
    return {(x.lo, x.index) for x in program if x.op is Op.REDUCE}


def passed_on(program):
    """Places in the program of SENDs of slices that the agent has not added up."""
    own = reduced_by(program)
    return [
        at
        for at, x in enumerate(program)
        if x.op is Op.SEND and x.item.kind is Kind.RED and (x.item.lo, x.item.part) not in own
    ]


@given(
    pipelines=st.integers(1, 5),
    stages=st.integers(1, 4),
    per_pipeline=st.integers(1, 4),
    split=st.booleans(),
    saves=st.booleans(),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_every_agent_gets_each_slice_once_and_programs_run(
    pipelines, stages, per_pipeline, split, saves, data
):
    seats = [(d, s) for d in range(pipelines) for s in range(stages)]
    lost = data.draw(st.lists(st.sampled_from(seats), max_size=pipelines - 1, unique=True))
    time = st.sampled_from((0.0, 0.1, 1.0, 7.0))
    transfer = data.draw(st.one_of(st.just(()), st.tuples(*[time] * stages)))
    latency = data.draw(st.sampled_from((0.0, 0.25)))
    batch = choose(microbatches=pipelines * per_pipeline, pipelines_max=pipelines)
    periodic = Periodic(evals=2, validate_every=3, saves=saves, save_every=5)
    shape = replace(
        step(batch, pipelines, stages, tuple(lost), split=split, periodic=periodic),
        transfer=transfer,
        costs=Costs.even(stages, latency=latency),
    )
    made = shape.build()
    assert made.forced == 0
    for is_due in (True, False):
        report = shape.dry_run(made.programs, periodic=is_due)
        assert report.ok, str(report)
    for stage, span in enumerate(shape.cut):
        received = [(target, part) for _, target, part in sent(made.programs, span)]
        assert len(received) == len({*received})
        adding = [a for a, p in made.programs.items() for lo, _ in reduced_by(p) if lo == stage]
        assert len(received) == len(adding) * (len(shape.holders()[stage]) - 1)
    for program in made.programs.values():  # nobody waits for a slice while it has work
        last = max((at for at, x in enumerate(program) if x.op in COMPUTE), default=-1)
        assert all(at > last for at in passed_on(program))


@given(
    pipelines=st.integers(2, 4),
    per_pipeline=st.integers(2, 4),
    transfer=st.lists(st.sampled_from((0.5, 3.0, 12.0)), min_size=2, max_size=4),
    lost=st.booleans(),
    policy=st.sampled_from(list(RecoveryPolicy)),
)
@settings(max_examples=60, deadline=None)
def test_the_simulation_ends_when_the_programs_do(pipelines, per_pipeline, transfer, lost, policy):
    """But for some slices of the longest gradient: two in the worst case found, and 9 % of a step
    as short as these. In the simulation a sender waits until the receiver's interface is free, and
    sends something else meanwhile. In the dry run, as in the agents, it does not wait, so its slice
    may take the interface before one for which others wait."""
    batch = choose(microbatches=4 * pipelines * per_pipeline, pipelines_max=pipelines)
    gone = ((1, len(transfer) - 1),) if lost else ()
    shape = replace(
        step(batch, pipelines, len(transfer), gone, split=True, policy=policy),
        transfer=tuple(transfer),
        extra=4,
    )
    made, time_of = shape.build(), shape.wire()
    assert time_of is not None
    sends = (x.item for program in made.programs.values() for x in program if x.op is Op.SEND)
    longest = max(time_of(item) for item in sends if item.kind in (Kind.PIECE, Kind.RED))
    end = shape.dry_run(made.programs).end
    assert abs(end - made.end) <= 3 * longest
    assert 0.88 * made.end <= end <= 1.15 * made.end


def test_whoever_has_nothing_to_compute_passes_slices_on():
    """With fused backwards the last stage ends first, and the first stage last. The agents of the
    last stage keep copies of the first."""
    shape = replace(step(BatchShape(32, 2, 4), 4, 4), transfer=(1.0,) * 4)
    programs = shape.build().programs
    passing = {a for a, p in programs.items() if passed_on(p)}
    assert {AgentId(f"{d}-3") for d in range(4)} <= passing


@pytest.mark.parametrize("transfer", [0.5, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("lost", [(), ((1, 1),), ((1, 1), (2, 3))])
def test_steps_end_no_later_than_if_nobody_passes_anything_on(transfer, lost):
    shape = replace(
        step(BatchShape(64, 1, 16), 4, 4, lost, split=True), transfer=(transfer,) * 4, extra=4
    )
    usual = replace(shape, relays=False).build()
    assert not any(passed_on(p) for p in usual.programs.values())
    assert shape.build().end <= usual.end + 1e-9


def test_slices_of_sums_go_first():
    """Each agent of a stage sends three slices of its sum, and then what it has added up."""
    shape = replace(step(BatchShape(16, 1, 4), 4, 1), transfer=(4.0,))
    made = shape.build()
    for program in made.programs.values():
        kinds = [x.item.kind for x in program if x.op is Op.SEND and x.item.kind < Kind.VOTE]
        assert kinds == [Kind.PIECE] * 3 + [Kind.RED] * 3
    assert made.end == made.length + 6 * 1.0  # no interface waits


@pytest.mark.parametrize("mode", list(RedundancyMode))
def test_nothing_is_passed_on_where_one_agent_needs_each_slice(mode):
    programs = step(BatchShape(16, 2, 4), 1, 4, mode=mode).build().programs
    assert not any(map(passed_on, programs.values()))


def test_a_learner_passes_nothing_on():
    """It may leave, or be slow."""
    shape = replace(step(BatchShape(32, 2, 4), 4, 4), transfer=(1.0,) * 4)
    new = AgentId("new")
    goals = replace(shape.goals(shape.work()), learners={new: ((0, 4),)})
    made = schedule.build(
        closure.steady(goals),
        batch=shape.batch,
        costs=shape.timing,
        caps=schedule.caps(shape.seats),
        sums=shape.sums,
    )
    assert any(x.op is Op.RECV and x.item.kind is Kind.RED for x in made.programs[new])
    assert not passed_on(made.programs[new])
    assert any(passed_on(p) for p in made.programs.values())
