"""How leaf size and number of chunks are chosen, and what a leaf and a chunk contain."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo_core.model.numerics import (
    BatchShape,
    add_up,
    choose,
    fewest,
    middle,
    reduction,
    running,
)


@pytest.mark.parametrize(
    ("microbatches", "leaf_size", "chunks"),
    [
        (1, 1, 1),
        (2, 1, 2),
        (8, 1, 8),
        (12, 1, 8),
        (16, 1, 16),
        (25, 1, 16),
        (64, 1, 16),
        (128, 1, 32),
        (192, 1, 32),
        (255, 1, 32),  # nothing divides it
        (256, 2, 32),
        (1024, 8, 32),
        (8192, 8, 256),  # enough leaves for 1024 pipelines
    ],
)
def test_choice(microbatches, leaf_size, chunks):
    shape = choose(microbatches=microbatches, pipelines_max=1)
    assert (shape.leaf_size, shape.chunks) == (leaf_size, chunks)


@given(microbatches=st.integers(1, 2000), pipelines=st.integers(1, 300))
@settings(deadline=None)
def test_the_choice_does_not_depend_on_pipelines(microbatches, pipelines):
    alone = choose(microbatches=microbatches, pipelines_max=1)
    assert alone.leaves >= min(128, microbatches)
    larger = 2 * alone.leaf_size
    assert larger > 8 or microbatches % larger or microbatches // larger < 128
    if pipelines > alone.leaves:
        with pytest.raises(ValueError, match=f"{microbatches} micro-batches .*fewer than"):
            choose(microbatches=microbatches, pipelines_max=pipelines)
    else:
        assert choose(microbatches=microbatches, pipelines_max=pipelines) == alone


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


def tree(batch, run):
    """The additions of a run as text, from the definition."""
    first, end = run
    if end - first == 1:
        return f"{first}"
    chunk, last = batch.chunk_of(first), batch.chunk_of(end - 1)
    if chunk == last:
        return f"({tree(batch, (first, end - 1))}+{end - 1})"
    half = batch.leaves_of((chunk + last + 1) // 2).start
    return f"({tree(batch, (first, half))}+{tree(batch, (half, end))})"


SHAPES = st.builds(
    lambda leaves, power: BatchShape(leaves, 1, 1 << min(power, leaves.bit_length() - 1)),
    st.integers(1, 70),
    st.integers(0, 6),
)


@given(batch=SHAPES, data=st.data())
@settings(deadline=None)
def test_any_agents_add_up_the_same_sum(batch, data):
    """Each adds up what it can of its leaves, in whatever order; the rest follows the one order."""
    owners = data.draw(st.lists(st.integers(0, 4), min_size=batch.leaves, max_size=batch.leaves))
    found = []
    for owner in sorted(set(owners)):
        runs, held = running(batch, [x for x, agent in enumerate(owners) if agent == owner])
        found += runs
        assert len(runs) <= max(held)
    found.sort()
    total = add_up(batch, found, [tree(batch, run) for run in found], lambda a, b: f"({a}+{b})")
    assert total == tree(batch, (0, batch.leaves))


def has_sum(batch, run):
    try:
        return run[1] - run[0] == 1 or middle(batch, run) > run[0]
    except ValueError:
        return False


@given(batch=SHAPES, data=st.data())
@settings(deadline=None)
def test_no_runs_that_hold_the_same_leaves_are_fewer(batch, data):
    """Compared with the best of all ways to put them into runs that follow each other."""
    chosen = data.draw(st.sets(st.integers(0, batch.leaves - 1)))
    best = {0: 0}  # end -> number of runs before it
    for end in range(1, batch.leaves + 1):
        tails = (first for first in range(end) if chosen.issuperset(range(first, end)))
        ways = [best[x] + 1 for x in tails if has_sum(batch, (x, end))]
        best[end] = min(ways) if end - 1 in chosen else best[end - 1]
    found = fewest(batch, chosen)
    assert [x for lo, hi in found for x in range(lo, hi)] == sorted(chosen)
    assert len(found) == best[batch.leaves]


def test_a_prefix_of_a_chunk_is_one_sum_and_what_follows_a_gap_is_not():
    batch = BatchShape(16, 1, 4)
    assert fewest(batch, [0, 1, 3, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15]) == [
        (0, 2), (3, 4), (5, 6), (6, 7), (8, 16),
    ]  # fmt: skip
    assert fewest(batch, range(4, 12)) == [(4, 8), (8, 12)]  # not aligned


@pytest.mark.parametrize("runs", [[(0, 4)], [(0, 4), (3, 8)], [(0, 5), (4, 8)], [(4, 8), (0, 4)]])
def test_runs_that_overlap_or_lack_a_leaf_are_refused(runs):
    with pytest.raises(ValueError, match="are not the 8 leaves"):
        reduction(BatchShape(8, 1, 4), runs)


def test_a_run_without_a_sum_is_refused():
    with pytest.raises(ValueError, match="leaves 0 to 2 have no sum"):
        middle(BatchShape(8, 1, 8), (0, 3))
    with pytest.raises(ValueError, match="no sum of their own"):
        reduction(BatchShape(8, 1, 4), [(0, 1), (1, 3), (3, 8)])


@pytest.mark.parametrize(
    ("pipelines", "most"),
    [(1, 7), (2, 6), (4, 5), (8, 4)],  # of 128 leaves in 32 chunks, as the note says
)
def test_an_agent_holds_few_sums_at_once(pipelines, most):
    batch = choose(microbatches=128, pipelines_max=8)
    share = 128 // pipelines
    for first in range(0, 128, share):
        runs, held = running(batch, range(first, first + share))
        assert runs == [(first, first + share)]
        assert max(held) == held[-1] == most
        assert held[:8] == [1, 2, 2, 2, 2, 3, 3, 3]  # chunks of four leaves
