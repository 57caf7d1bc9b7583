"""Slices of reduced gradients that agents which only copy a stage pass on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo_core.api.spec import RecoveryPolicy, RedundancyMode
from bamboo_core.graph.closure import Periodic
from bamboo_core.model.items import Kind
from bamboo_core.model.numerics import BatchShape, choose
from bamboo_core.model.program import Op
from bamboo_core.scheduling import relays, schedule
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


def relaying(programs, span):
    """Agents that send a slice of the stage but add none up."""
    adding = {a for a, p in programs.items() for x in p if x.op is Op.REDUCE and x[2:4] == span}
    return {source for source, _, _ in sent(programs, span)} - adding


def without_relays(monkeypatch, shape):
    """The programs of the step if nothing is passed on."""

    class Nothing:
        remain = False

        def __init__(self, graph):
            pass

        def settle(self, *_args):
            pass

    with monkeypatch.context() as patch:
        patch.setattr(schedule, "Relays", Nothing)
        return shape.build().programs


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
    time = st.sampled_from((0.1, 1.0, 7.0))
    transfer = data.draw(st.one_of(st.just(()), st.tuples(*[time] * stages)))
    batch = choose(
        microbatches=pipelines * per_pipeline,
        pipelines_max=pipelines,
    )
    periodic = Periodic(evals=2, validate_every=3, saves=saves, save_every=5)
    shape = replace(
        step(batch, pipelines, stages, tuple(lost), split=split, periodic=periodic),
        transfer=transfer,
    )
    programs = shape.build().programs
    for is_due in (True, False):
        report = shape.dry_run(programs, periodic=is_due)
        assert report.ok, str(report)
    for stage, span in enumerate(shape.cut):
        received = [(target, part) for _, target, part in sent(programs, span)]
        assert len(received) == len({*received})
        adding = [a for a, p in programs.items() for x in p if (x.op, *x[2:4]) == ("REDUCE", *span)]
        assert len(received) == len(adding) * (len(shape.holders()[stage]) - 1)


def test_the_last_stage_passes_the_first_ones_gradient_on():
    """It has ended its own backwards when the first stage ends its last one."""
    shape = step(BatchShape(32, 2, 4), 4, 4)
    programs = shape.build().programs
    first, last = ({a for a in shape.live if a.endswith(f"-{s}")} for s in (0, 3))
    assert relaying(programs, (0, 1)) == last
    slices = sent(programs, (0, 1))
    assert all(len([x for x in slices if x[0] == a]) == 4 for a in first)  # three peers, one relay
    assert all(len([x for x in slices if x[0] == a]) == 3 for a in last)


def test_a_stage_whose_copies_are_computing_still_sends_directly():
    programs = step(BatchShape(32, 2, 4), 4, 4).build().programs
    assert not any(relaying(programs, (s, s + 1)) for s in (1, 2, 3))


def test_the_relay_sends_its_own_sums_first():
    """Other agents wait for these."""
    shape = step(BatchShape(32, 2, 4), 4, 4)
    for agent in (a for a in shape.live if a.endswith("-3")):
        program = shape.build().programs[agent]
        own = [i for i, x in enumerate(program) if x.op is Op.REDUCE]
        passed = [
            i
            for i, x in enumerate(program)
            if x.op is Op.SEND and x.item.kind is Kind.RED and x.item.lo == 0
        ]
        assert passed
        assert max(own) < min(passed)


@pytest.mark.parametrize(
    ("transfer", "relayed"),
    [
        ((1.0, 1.0, 1.0, 1.0), {0}),
        ((1.0, 1.0, 1.0, 40.0), {3}),  # as full layers after convolutions
        ((1.0, 1.0, 1.0, 0.0), {0}),
        ((1.0, 40.0, 1.0, 1.0), {0, 1}),
    ],
)
def test_a_gradient_is_passed_on_if_it_takes_longer_than_what_keeps_the_others_busy(
    transfer, relayed
):
    shape = replace(step(BatchShape(32, 2, 4), 4, 4), transfer=transfer)
    programs = shape.build().programs
    assert {s for s in range(4) if relaying(programs, (s, s + 1))} == relayed


@pytest.mark.parametrize("stage", [0, 3])
def test_the_slowest_stage_is_relayed_if_others_have_ended(stage):
    """With separate weight gradients all stages end at about the same time, but for slow ones."""
    one = tuple(2.0 if s == stage else 1.0 for s in range(4))
    costs = Costs(one, tuple(2 * x for x in one), one, one)
    shape = replace(
        step(BatchShape(32, 2, 4), 4, 4, split=True), costs=costs, transfer=(0.5,) * 4, extra=4
    )
    assert relaying(shape.build().programs, (stage, stage + 1))


@pytest.mark.parametrize("transfer", [0.5, 1.0, 1.5])
def test_steps_of_equal_stages_end_no_later_than_without_relays(monkeypatch, transfer):
    shape = replace(step(BatchShape(32, 2, 4), 4, 4), transfer=(transfer,) * 4)
    programs = shape.build().programs
    usual = shape.dry_run(without_relays(monkeypatch, shape)).end
    assert shape.dry_run(programs).end < usual


@given(
    pipelines=st.integers(2, 5),
    per_pipeline=st.integers(1, 4),
    stages=st.lists(
        st.tuples(st.sampled_from((0.5, 1.0, 2.0)), st.sampled_from((0.0, 1.0, 7.0, 40.0))),
        min_size=2,
        max_size=4,
    ),
    split=st.booleans(),
    is_one_lost=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_no_step_ends_later_than_without_relays(
    pipelines, per_pipeline, stages, split, is_one_lost
):
    """Whatever the stages cost, and however long their gradients take."""
    forward, transfer = zip(*stages, strict=True)
    batch = choose(
        microbatches=pipelines * per_pipeline,
        pipelines_max=pipelines,
    )
    lost = ((1, 0),) if is_one_lost else ()
    shape = replace(
        step(batch, pipelines, len(stages), lost, split=split, policy=RecoveryPolicy.DIFFUSE),
        costs=Costs(forward, tuple(2 * x for x in forward), forward, forward),
        transfer=transfer,
    )
    usual = shape.dry_run(without_relays(pytest.MonkeyPatch, shape)).end
    assert shape.dry_run(shape.build().programs).end <= usual * (1 + 1e-9)


@pytest.mark.parametrize("mode", list(RedundancyMode))
@pytest.mark.parametrize(("pipelines", "stages"), [(1, 4), (4, 1)])
def test_nothing_is_passed_on_where_at_most_one_agent_copies(mode, pipelines, stages):
    shape = step(BatchShape(16, 2, 4), pipelines, stages, mode=mode)
    programs = shape.build().programs
    assert not any(relaying(programs, span) for span in shape.cut)


def test_programs_are_as_if_there_were_no_relays_if_none_pays(monkeypatch):
    shape = step(BatchShape(32, 2, 4), 4, 4, split=True)
    usual = without_relays(monkeypatch, shape)
    monkeypatch.setattr(relays._Load, "pays", lambda *_args: False)
    programs = shape.build().programs
    assert not any(relaying(programs, span) for span in shape.cut)
    for agent, program in programs.items():
        assert sorted(map(str, program)) == sorted(map(str, usual[agent]))
        sends = [x for x in program if x.op is Op.SEND]
        assert sends == [x for x in usual[agent] if x.op is Op.SEND]
