"""A step that stops anywhere continues with what survives, and the remaining programs run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo_core.api.spec import RecoveryPolicy
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import COMPUTE, Op
from bamboo_core.protection import interrupted

from .steps import name, step

BATCH = BatchShape(16, 2, 2)


def stopped_at(shape, time):
    """The holdings of all agents when the step stops at a given time."""
    return interrupted.stop(shape, at=time)[0]


def left_of(shape, holdings):
    return interrupted.rest(shape, holdings).left


@given(
    until=st.integers(0, 40),
    lost=st.sets(st.tuples(st.integers(0, 1), st.integers(0, 3)), max_size=2),
    split=st.booleans(),
    extra=st.integers(0, 8),
    policy=st.sampled_from(list(RecoveryPolicy)),
)
@settings(max_examples=60, deadline=None)
def test_a_step_continues_wherever_it_was_stopped(until, lost, split, extra, policy):
    whole = step(BATCH, 2, 4, split=split, extra=extra)
    after = replace(whole, lost=tuple(sorted(lost)), policy=policy)
    if not all(after.holders()):
        return
    stopped = stopped_at(whole, min(until, whole.build().length - 0.5))
    made, report, _ = interrupted.rest(after, {a: stopped[a] for a in after.live})
    assert report.ok, str(report)
    assert made.forced == 0


def test_without_a_loss_nothing_is_computed_twice():
    whole = step(BATCH, 2, 4, split=True, extra=4)
    stopped = stopped_at(whole, 12)
    done = sum(x.op in COMPUTE for program in whole.build().programs.values() for x in program)
    made, _, _ = interrupted.rest(whole, stopped)
    rest = sum(x.op in COMPUTE for program in made.programs.values() for x in program)
    assert rest < done <= rest + 8 * 12  # each agent has done at most one task per slot
    begun = {i for h in stopped.values() for i in h.items if i.kind is Kind.OUT}
    again = {
        Item.out(1, x.hi, x.index)
        for program in made.programs.values()
        for x in program
        if x.op is Op.F
    }
    assert not begun & again


def test_a_step_goes_on_in_its_shorter_variant():
    whole = step(BATCH, 2, 4, extra=4)
    fused = replace(whole, lost=((0, 2),))
    split = replace(fused, split=True)
    stopped = interrupted.stop(whole, at=8)
    alone = [interrupted.resumed(stopped, x) for x in (fused, split)]
    assert alone[0] != alone[1]
    assert interrupted.resumed(stopped, fused, split) == min(alone)


def test_what_a_leaf_still_costs():
    whole = step(BATCH, 1, 2, split=True, extra=8)
    left = left_of(whole, stopped_at(whole, 0))
    assert set(left.weight.values()) == {2 * 3.0}
    assert not left.pinned
    assert not left.is_begun
    left = left_of(whole, stopped_at(whole, 5))
    assert left.is_begun
    assert left.pinned[0, 0] == name(0, 0)
    # stage 1 has done F0 I0 F1 I1 by then, but not the sum of leaf 0
    assert left.weight[1, 0] == 2.0
    assert left.weight[1, 7] == 6.0
    left = left_of(whole, stopped_at(whole, whole.build().length - 0.5))
    assert left.weight[1, 0] == 0.0


SPAN = (0, 1)
SENT = [Item.piece(1, SPAN, (0, 4), z, 2) for z in range(2)]
REDUCED = [Item.red(1, SPAN, z, 2) for z in range(2)]


@pytest.mark.parametrize(
    ("items", "weight"),
    [
        ([Item.sum(1, SPAN, (0, 1))], 0.0),
        (SENT, 0.0),
        (REDUCED, 0.0),
        ([SENT[0], REDUCED[1]], 0.0),
        (SENT[:1], 6.0),
        (REDUCED[:1], 6.0),
    ],
    ids=str,
)
def test_a_leaf_costs_nothing_if_each_slice_of_a_sum_with_it_exists(items, weight):
    whole = step(BATCH, 1, 2)
    stopped = stopped_at(whole, 0)
    agent = whole.live[0]
    stopped[agent] = replace(stopped[agent], items=frozenset(items))
    left = left_of(whole, stopped)
    assert left.weight[0, 0] == weight
    assert left.weight[1, 0] == 6.0


def test_a_leaf_in_an_unfinished_chunk_costs_nothing():
    whole = step(BATCH, 1, 2)
    stopped = stopped_at(whole, 0)
    agent = whole.live[0]
    folded = Item.sum(1, (0, 1), (0, 3))
    stopped[agent] = replace(stopped[agent], items=frozenset({folded}))
    left = left_of(whole, stopped)
    assert [left.weight[0, x] for x in range(5)] == [0.0, 0.0, 0.0, 6.0, 6.0]
