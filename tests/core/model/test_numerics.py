"""How leaf size and number of chunks are chosen, and what a leaf and a chunk contain."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo_core.model.numerics import BatchShape, choose, choose_fast, tree_order


@pytest.mark.parametrize(
    ("microbatches", "pipelines", "stages", "leaf_size", "chunks"),
    [
        (128, 4, 8, 2, 4),  # the case of the design
        (192, 4, 12, 4, 4),
        (16, 1, 2, 1, 1),  # fewer than three agents
        (25, 4, 8, 1, 4),  # D does not divide G
        (3, 3, 4, 1, 2),  # C is halved while it exceeds G
    ],
)
def test_choice(microbatches, pipelines, stages, leaf_size, chunks):
    shape = choose(
        microbatches=microbatches,
        pipelines_max=pipelines,
    )
    assert (shape.leaf_size, shape.chunks) == (leaf_size, chunks)


@pytest.mark.parametrize(
    ("microbatches", "pipelines", "most", "leaf_size", "chunks"),
    [
        (128, 4, 4, 32, 4),  # one leaf per pipeline
        (24, 3, 3, 8, 2),  # C is halved while it exceeds the leaves
        (24, 4, 6, 3, 4),  # eight leaves: enough for six pipelines, and four share them equally
        (25, 4, 8, 1, 4),  # D does not divide G
        (16, 1, 1, 16, 1),
    ],
)
def test_fast_choice(microbatches, pipelines, most, leaf_size, chunks):
    shape = choose_fast(microbatches=microbatches, pipelines=pipelines, pipelines_max=most)
    assert (shape.leaf_size, shape.chunks) == (leaf_size, chunks)


def test_fast_choice_needs_a_micro_batch_for_every_pipeline():
    with pytest.raises(ValueError, match=r"3 micro-batches .* fewer than 4 pipelines"):
        choose_fast(microbatches=3, pipelines=2, pipelines_max=4)


@given(
    pipelines=st.integers(1, 8),
    stages=st.integers(1, 12),
    per=st.integers(1, 64),
    more=st.integers(0, 8),
)
@settings(deadline=None)
def test_choice_is_the_largest_leaf_that_the_rule_allows(pipelines, stages, per, more):
    g, most = pipelines * per, pipelines + more
    if g < most:
        with pytest.raises(ValueError, match="fewer than"):
            choose(microbatches=g, pipelines_max=most)
        return
    shape = choose(microbatches=g, pipelines_max=most)
    agents = pipelines * stages

    def allowed(size):
        if size == 1:
            return True
        if agents < 3 or (g // pipelines) % size or g // size < max(shape.chunks, most):
            return False
        best = -(-g * stages // (agents - 1))
        return 100 * -(-g * stages // (size * (agents - 1))) * size <= 104 * best

    sizes = [2**i for i in range(8)]
    assert shape.leaf_size == max(s for s in sizes if allowed(s))
    assert shape.chunks >= min(pipelines, shape.chunks)
    assert shape.chunks <= shape.leaves


@given(leaves=st.integers(1, 40), size=st.integers(1, 4), power=st.integers(0, 5))
@settings(deadline=None)
def test_leaves_and_chunks_partition_the_batch(leaves, size, power):
    if 2**power > leaves:
        with pytest.raises(ValueError, match="must be a power of two of at most"):
            BatchShape(leaves * size, size, 2**power)
        return
    shape = BatchShape(leaves * size, size, 2**power)
    assert [m for x in range(shape.leaves) for m in shape.microbatches_of(x)] == list(
        range(leaves * size)
    )
    assert all(shape.leaf_of(m) == x for x in range(leaves) for m in shape.microbatches_of(x))
    assert [x for c in range(shape.chunks) for x in shape.leaves_of(c)] == list(range(leaves))
    assert all(shape.chunk_of(x) == c for c in range(shape.chunks) for x in shape.leaves_of(c))
    assert all(shape.leaves_of(c) for c in range(shape.chunks))


def test_a_leaf_that_does_not_divide_the_batch_is_refused():
    with pytest.raises(ValueError, match="leaf_size 3 does not divide 8 micro-batches"):
        BatchShape(8, 3, 1)


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_the_tree_is_balanced_and_adds_every_summand_once(width):
    sums = [f"{i}" for i in range(width)]
    for into, other in tree_order(width):
        sums[into] = f"({sums[into]}+{sums[other]})"
    assert sums[0].count("+") == width - 1
    assert sums[0].replace("(", "").replace(")", "").split("+") == [str(i) for i in range(width)]
    if width == 4:
        assert sums[0] == "((0+1)+(2+3))"
