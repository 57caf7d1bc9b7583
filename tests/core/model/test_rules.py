"""What instructions do to items: the parts of a rule, and what they are made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import COMPUTE, Instruction, Op
from bamboo_core.model.rules import consumes, makes, needs, rule

LAYERS = 6
BATCH = BatchShape(microbatches=16, leaf_size=2, chunks=4)
RANGE = st.integers(0, LAYERS - 1).flatmap(
    lambda lo: st.tuples(st.just(lo), st.integers(lo + 1, LAYERS))
)


@st.composite
def instructions(draw: st.DrawFn) -> Instruction:
    op, (lo, hi), step = draw(st.sampled_from(Op)), draw(RANGE), draw(st.integers(-1, 9))
    count = {Op.FOLD: BATCH.leaves, Op.REDUCE: 3}.get(op, BATCH.microbatches)
    ranges: tuple[tuple[int, int], ...] = ()
    if op is Op.R or (op is Op.F and draw(st.booleans())):
        begin = draw(st.integers(lo, hi - 1))
        ranges = ((begin, draw(st.integers(begin + 1, hi)) if op is Op.R else hi),)
    elif op is Op.VOTE:
        ranges = ((lo, hi), (lo, hi), (0, 3))
    elif op is Op.UPDATE:
        ranges = ((lo, hi), (0, 3))
    elif op is Op.SLICE:
        ranges = ((2, 4), (0, 3))
    elif op is Op.REDUCE:
        ranges = ((0, 3), (0, 4), (4, 8))
    item = Item.out(step, lo, 0) if op in (Op.SEND, Op.RECV, Op.EXIT) else None
    agents = (AgentId("a"), AgentId("b")) if op is Op.COMMIT else ()
    m = draw(st.integers(0, count - 1))
    if op is Op.FOLD:
        m, ranges = 2, ((0, 4),)
    return Instruction(op, step, lo, hi, m, item, ranges=ranges, agents=agents)


@given(instructions())
def test_the_parts_of_a_rule_fit_each_other(x: Instruction) -> None:
    needed, consumed, released, made = found = rule(x, BATCH, LAYERS)
    assert needs(x, BATCH, LAYERS) == needed
    assert consumes(x, BATCH, LAYERS) == consumed
    assert makes(x, BATCH, LAYERS) == made
    assert all(len(set(part)) == len(part) for part in found)
    assert set(consumed) <= set(needed)
    assert not set(consumed) & set(made)
    if x.op is not Op.F or not x.ranges:  # else its input may be here, too
        assert set(released) <= set(needed)
    steps = {item.step for part in found for item in part}
    assert steps <= {x.step, x.step + 1}
    assert x.op is Op.UPDATE or steps <= {x.step}


@pytest.mark.parametrize(
    ("x", "consumed", "made"),
    [
        (Instruction(Op.F, 0, 2, 4, 3), "", "act[2:4] m3, out[4] m3"),
        (Instruction(Op.F, 0, 2, 6, 3), "", "act[2:6] m3"),
        (Instruction(Op.F, 0, 2, 4, 3, ranges=((3, 4),)), "prefix[2:4] m3 #1",
         "act[2:4] m3, out[4] m3"),
        (Instruction(Op.R, 0, 2, 4, 3, ranges=((2, 3),)), "", "prefix[2:4] m3 #1"),
        (Instruction(Op.R, 0, 2, 4, 3, ranges=((3, 4),)), "prefix[2:4] m3 #1",
         "prefix[2:4] m3 #2, out[4] m3"),
        (Instruction(Op.I, 0, 2, 4, 3), "", "ingrad[2] m3"),
        (Instruction(Op.W, 0, 2, 4, 2), "act[2:4] m2", "part[2:4] m1 #1"),
        (Instruction(Op.B, 0, 2, 4, 3), "act[2:4] m3, part[2:4] m1 #1",
         "ingrad[2] m3, sum[2:4] 1:2"),
        (Instruction(Op.FOLD, 0, 2, 4, 5, ranges=((4, 6),)), "sum[2:4] 4:5, sum[2:4] 5:6",
         "sum[2:4] 4:6"),
        (Instruction(Op.SLICE, 0, 2, 4, ranges=((4, 6), (0, 2))), "sum[2:4] 4:6",
         "piece[2:4] 4:6 0/2, piece[2:4] 4:6 1/2"),
        (Instruction(Op.REDUCE, 0, 2, 4, 1, ranges=((0, 2), (0, 8))), "", "red[2:4] 1/2"),
        (Instruction(Op.V, 0, 4, 6, 3), "", "score m3"),
        (Instruction(Op.UPDATE, 0, 2, 3, ranges=((2, 4), (0, 2))), "ver[2:3]", "ver[2:3] @1"),
        (Instruction(Op.COMMIT, 0), "", ""),
    ],
    ids=str,
)  # fmt: skip
def test_rules(x: Instruction, consumed: str, made: str) -> None:
    found = rule(x, BATCH, LAYERS)
    assert ", ".join(map(str, found.consumes)) == consumed
    assert ", ".join(map(str, found.makes)) == made


def test_what_computes_needs_weights_except_a_weight_gradient() -> None:
    for op in COMPUTE:
        x = Instruction(op, 0, 2, 4, 3, ranges=((2, 4),) if op is Op.R else ())
        kinds = {item.kind for item in rule(x, BATCH, LAYERS).needs}
        assert (Kind.VER in kinds) == (op is not Op.W)
