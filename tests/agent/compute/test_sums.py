"""Sums kept in autograd's tensors have the bits of sums from zero in flat buffers."""

from __future__ import annotations

import pytest
import torch

from bamboo_agent.compute.sums import Layout, add_tree, flatten, fold, grow, parameter_views
from bamboo_agent.device.buffer_pool import Pool
from bamboo_agent.payloads.kinds import Sum

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


def test_flattening_begins_from_zero(pool):
    total = leaf(NEGATIVE_ZERO, 2.0)
    buffer = flatten(pool, total, SHAPES)
    assert bits(buffer.tensor) == bits(flat(0.0, 2.0))
    assert total.buffer is buffer
    assert total.parts is None
    assert flatten(pool, total, SHAPES) is buffer


def test_a_parameter_that_nothing_has_used_is_zero(pool):
    pool.take(11).tensor.fill_(7)
    total = Sum(parts=[None, torch.ones(5)])
    assert torch.equal(flatten(pool, total, SHAPES).tensor, flat(0.0, 1.0))


@pytest.mark.parametrize("is_flat", [False, True])
def test_folding_a_leaf_equals_the_sum_from_zero(pool, is_flat):
    into, added = leaf(NEGATIVE_ZERO, 0.1, losses={0: 1.0}), leaf(NEGATIVE_ZERO, 0.2)
    added.losses[1] = 2.0
    flatten(pool, into, SHAPES)
    if is_flat:
        flatten(pool, added, SHAPES)
    total = fold(pool, into, added, SHAPES)
    assert bits(total.buffer.tensor) == bits(flat(0.0, 0.1) + flat(0.0, 0.2))
    assert total.losses == {0: 1.0, 1: 2.0}
    assert total.buffer is into.buffer


def test_folding_leaves_alone_what_is_being_sent(pool):
    into = leaf(1.0, 2.0)
    flatten(pool, into, SHAPES).lent += 1
    total = fold(pool, into, leaf(1.0, 1.0), SHAPES)
    assert torch.equal(into.buffer.tensor, flat(1.0, 2.0))
    assert torch.equal(total.buffer.tensor, flat(2.0, 3.0))


def test_folding_skips_what_nothing_has_used(pool):
    into = leaf(1.0, 2.0)
    flatten(pool, into, SHAPES)
    total = fold(pool, into, Sum(parts=[None, torch.ones(5)]), SHAPES)
    assert torch.equal(total.buffer.tensor, flat(1.0, 3.0))


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
    leaves = [torch.full((2,), float(2**i)) for i in range(4)]
    out = torch.empty(2)
    add_tree(leaves, out=out)
    assert out.tolist() == [15.0, 15.0]
    assert [x[0].item() for x in leaves] == [1.0, 2.0, 4.0, 8.0]
    add_tree(leaves[:1], out=out)
    assert out.tolist() == [1.0, 1.0]


def test_slices_cover_a_layout():
    layout = Layout([4, 3, 0, 6], 1, 4)
    assert layout.layers == {1: slice(0, 3), 2: slice(3, 3), 3: slice(3, 9)}
    pieces = [layout.slice_of(z, 4) for z in range(4)]
    assert [x for p in pieces for x in range(p.start, p.stop)] == list(range(9))


def test_views_have_the_parameters_shapes(pool):
    views = parameter_views(pool.take(11), SHAPES)
    assert [v.shape for v in views] == [s.shape for s in SHAPES]
