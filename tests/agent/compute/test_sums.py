"""Sums kept in autograd's tensors have the bits of sums from zero in flat buffers."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo_agent.compute.sums import Layout, add_tree, flatten, grow, merge, parameter_views
from bamboo_agent.device.buffer_pool import Pool
from bamboo_agent.payloads.kinds import Sum
from bamboo_core.model.numerics import BatchShape, add_up, middle, running

SHAPES = [torch.empty(3, 2), torch.empty(5)]
NEGATIVE_ZERO = -0.0


@pytest.fixture
def pool():
    return Pool(torch.device("cpu"))


def leaf(*values, losses=None):
    parts = [torch.full((3, 2), values[0]), torch.full((5,), values[1])]
    return Sum(losses or {}, parts=parts)


def flat(*values):
    return torch.cat([torch.full((6,), values[0]), torch.full((5,), values[1])])


def bits(tensor):
    return tensor.view(torch.int32).tolist()


def test_flattening_takes_the_parts(pool):
    total = leaf(1.0, 2.0)
    buffer = flatten(pool, total, SHAPES)
    assert bits(buffer.tensor) == bits(flat(1.0, 2.0))
    assert total.buffer is buffer
    assert total.parts is None
    assert flatten(pool, total, SHAPES) is buffer


def test_a_parameter_that_nothing_has_used_is_zero(pool):
    pool.take(11).tensor.fill_(7)
    total = Sum(parts=[None, torch.ones(5)])
    assert torch.equal(flatten(pool, total, SHAPES).tensor, flat(0.0, 1.0))


@pytest.mark.parametrize("is_flat", [(False, False), (True, False), (False, True), (True, True)])
def test_both_sums_are_added_up_in_memory_of_one(pool, is_flat):
    both = leaf(0.3, 0.1, losses={0: 1.0}), leaf(0.7, 0.2, losses={1: 2.0})
    for one, is_one_flat in zip(both, is_flat, strict=True):
        if is_one_flat:
            flatten(pool, one, SHAPES)
    before = pool.allocated_bytes
    total = merge(pool, *both, SHAPES)
    assert bits(total.buffer.tensor) == bits(flat(0.3, 0.1) + flat(0.7, 0.2))
    assert total.losses == {0: 1.0, 1: 2.0}
    assert pool.allocated_bytes == (before if any(is_flat) else 11 * 4)


def test_what_nothing_has_used_is_skipped(pool):
    unused = Sum(parts=[None, torch.ones(5)])
    total = merge(pool, leaf(1.0, 2.0), unused, SHAPES)
    assert torch.equal(total.buffer.tensor, flat(1.0, 3.0))
    unused = Sum(parts=[None, torch.ones(5)])
    assert torch.equal(merge(pool, unused, leaf(1.0, 2.0), SHAPES).buffer.tensor, flat(1.0, 3.0))


VALUES = [0.0, NEGATIVE_ZERO, 1.0, -1.0, 3e-39, None]
"""Zeros of both signs, values that may add up to zero, a subnormal one, and no gradient at all."""


@given(seed=st.integers(0, 1 << 30), leaves=st.integers(1, 9), power=st.integers(0, 3))
@settings(deadline=None, max_examples=200)
def test_the_bits_are_those_of_sums_from_zero(seed, leaves, power):
    """Whoever adds up which leaves, and whether a sum was flat before."""
    rng, pool = Random(seed), Pool(torch.device("cpu"))
    batch = BatchShape(leaves, 1, 1 << min(power, leaves.bit_length() - 1))
    gradients = [[rng.choice(VALUES) for _ in SHAPES] for _ in range(leaves)]
    sums, owners = {}, [rng.randrange(3) for _ in range(leaves)]
    for owner in range(3):
        mine = [x for x in range(leaves) if owners[x] == owner]
        for run in running(batch, mine)[0]:
            sums[run] = added_up(rng, pool, batch, gradients, run)
    runs = sorted(sums)
    out = torch.empty(11)
    add_tree(batch, runs, [flatten(pool, sums[run], SHAPES).tensor for run in runs], out=out)
    zero = [torch.zeros(11) + flat(*(x or 0.0 for x in found)) for found in gradients]
    every = [(x, x + 1) for x in range(leaves)]
    assert bits(out) == bits(add_up(batch, every, zero, torch.add))


def added_up(rng, pool, batch, gradients, run):
    first, end = run
    if end - first == 1:
        shapes = zip(gradients[first], SHAPES, strict=True)
        total = Sum(parts=[None if x is None else torch.full(s.shape, x) for x, s in shapes])
        if rng.random() < 0.3:
            flatten(pool, total, SHAPES)
        return total
    cut = middle(batch, run)
    parts = (added_up(rng, pool, batch, gradients, x) for x in ((first, cut), (cut, end)))
    return merge(pool, *parts, SHAPES)


def test_memory_comes_back_when_the_last_holder_lets_go(pool):
    buffer = pool.take(11)
    address, held = buffer.tensor.data_ptr(), buffer
    del buffer
    other = pool.take(11)
    assert other.tensor.data_ptr() != address
    del held
    assert pool.take(11).tensor.data_ptr() == address
    assert pool.allocated_bytes == 2 * 11 * 4


def test_gradients_of_half_precision_are_summed_in_full_precision(pool):
    parameters = [torch.empty(6, dtype=torch.bfloat16), torch.empty(5)]
    small = torch.full((6,), 1e-3, dtype=torch.bfloat16)
    total = Sum(parts=[])
    grow(pool, total, [torch.ones(6, dtype=torch.bfloat16), torch.ones(5)], parameters)
    for _ in range(3):
        grow(pool, total, [small, None], parameters)
    expected = torch.ones(6) + small.float() + small.float() + small.float()
    assert torch.equal(total.buffer.tensor[:6], expected)
    assert total.buffer.tensor[6:].tolist() == [1.0] * 5


def test_the_tree_leaves_its_leaves_alone():
    leaves, batch = [torch.full((2,), float(2**i)) for i in range(4)], BatchShape(4, 1, 4)
    out = torch.empty(2)
    add_tree(batch, [(x, x + 1) for x in range(4)], leaves, out=out)
    assert out.tolist() == [15.0, 15.0]
    assert [x[0].item() for x in leaves] == [1.0, 2.0, 4.0, 8.0]
    add_tree(batch, [(0, 4)], leaves[:1], out=out)
    assert out.tolist() == [1.0, 1.0]


def test_slices_cover_a_layout():
    layout = Layout([4, 3, 0, 6], 1, 4)
    assert layout.layers == {1: slice(0, 3), 2: slice(3, 3), 3: slice(3, 9)}
    pieces = [layout.slice_of(z, 4) for z in range(4)]
    assert [x for p in pieces for x in range(p.start, p.stop)] == list(range(9))


def test_views_have_the_parameters_shapes(pool):
    views = parameter_views(pool.take(11), SHAPES)
    assert [v.shape for v in views] == [s.shape for s in SHAPES]
