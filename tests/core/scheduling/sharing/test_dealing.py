"""Leaves are dealt in few sums, evenly, and always in the same way."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo_core.model.numerics import BatchShape
from bamboo_core.scheduling.sharing.dealing import cover, deal, pipelines_of


def by_size(microbatches: int) -> BatchShape:
    """L and C from the number of micro-batches alone: at least 128 leaves, and chunks of four."""
    leaf = 1
    while not microbatches % (2 * leaf) and microbatches // (2 * leaf) >= 128:
        leaf *= 2
    leaves, chunks = microbatches // leaf, 1
    while 2 * chunks <= max(leaves / 4, min(leaves, 16)):
        chunks *= 2
    return BatchShape(microbatches, leaf, chunks)


def loads(table: tuple[int, ...], pipelines: int) -> list[int]:
    count = Counter(table)
    return [count[d] for d in range(pipelines)]


def sums(batch: BatchShape, table: tuple[int, ...], pipelines: int) -> list[int]:
    return [
        len(cover(batch, [leaf for leaf, owner in enumerate(table) if owner == d]))
        for d in range(pipelines)
    ]


UNEVEN = {3: 4, 5: 4, 6: 6}
"""D -> sums at most where chunks of the batch are too coarse for three."""


@pytest.mark.parametrize("pipelines", range(1, 9))
def test_every_batch_is_dealt_evenly_and_in_few_sums(pipelines: int) -> None:
    """All M from 8 to 128. A batch is too small for 5 % where one leaf more exceeds them."""
    many = 0
    for microbatches in range(8, 129):
        batch = by_size(microbatches)
        table = pipelines_of(batch, pipelines)
        found, mean = loads(table, pipelines), batch.leaves / pipelines
        assert max(found) <= max(1.05 * mean, -(-batch.leaves // pipelines))
        assert min(found) > 0
        most = max(sums(batch, table, pipelines))
        assert most <= max(3, UNEVEN.get(pipelines, 3)), microbatches
        many += most > 3
    assert many <= {3: 15, 5: 8, 6: 49}.get(pipelines, 0)


@pytest.mark.parametrize("microbatches", [64, 128])
@pytest.mark.parametrize("pipelines", [1, 2, 3, 4, 6, 7, 8])
def test_usual_batches_have_three_sums_and_five_percent(microbatches: int, pipelines: int) -> None:
    batch = by_size(microbatches)
    table = pipelines_of(batch, pipelines)
    assert max(sums(batch, table, pipelines)) <= (1 if pipelines in (1, 2, 4, 8) else 3)
    top = -(-batch.leaves // pipelines)
    assert max(loads(table, pipelines)) <= max(1.05 * batch.leaves / pipelines, top)


@given(
    leaves=st.integers(1, 70),
    chunks=st.sampled_from([1, 2, 4, 8, 16]),
    shares=st.integers(1, 9),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_any_leaves_are_dealt_once_in_runs_that_are_sums(leaves, chunks, shares, data):
    batch = BatchShape(leaves, 1, min(chunks, 1 << (leaves.bit_length() - 1)))
    chosen = sorted(data.draw(st.sets(st.integers(0, leaves - 1))))
    runs = deal(batch, chosen, shares)
    assert sorted(leaf for run in runs for leaf in run.leaves) == chosen
    assert all(0 <= run.share < shares for run in runs)
    assert runs == deal(batch, chosen, shares)
    for run in runs:
        assert cover(batch, run.leaves) == [(run.lo, run.hi)]
    if chosen:
        size = max(Counter(x.share for run in runs for x in [run] * (run.hi - run.lo)).values())
        assert size <= max(1.05 * len(chosen) / shares, -(-len(chosen) // shares))


@given(leaves=st.integers(1, 70), chunks=st.sampled_from([1, 2, 4, 8, 16]), data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_cover_holds_exactly_the_leaves(leaves, chunks, data):
    batch = BatchShape(leaves, 1, min(chunks, 1 << (leaves.bit_length() - 1)))
    chosen = data.draw(st.sets(st.integers(0, leaves - 1)))
    found = cover(batch, chosen)
    assert [x for lo, hi in found for x in range(lo, hi)] == sorted(chosen)
    assert cover(batch, range(leaves)) == [(0, leaves)]


def test_a_prefix_of_a_chunk_is_one_sum_and_what_follows_a_gap_is_not():
    batch = BatchShape(16, 1, 4)
    assert cover(batch, [0, 1, 3, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15]) == [
        (0, 2), (3, 4), (5, 6), (6, 7), (8, 16),
    ]  # fmt: skip
    assert cover(batch, range(4, 12)) == [(4, 8), (8, 12)]  # not aligned
