"""Leaves are dealt in few sums, evenly, and always in the same way."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo_core.model.numerics import BatchShape, choose, fewest
from bamboo_core.scheduling.sharing.dealing import deal, pipelines_of


def loads(table: tuple[int, ...], pipelines: int) -> list[int]:
    count = Counter(table)
    return [count[d] for d in range(pipelines)]


def sums(batch: BatchShape, table: tuple[int, ...], pipelines: int) -> list[int]:
    return [
        len(fewest(batch, [leaf for leaf, owner in enumerate(table) if owner == d]))
        for d in range(pipelines)
    ]


UNEVEN = {3: 4, 5: 4, 6: 6}
"""D -> sums at most where chunks of the batch are too coarse for three."""


@pytest.mark.parametrize("pipelines", range(1, 9))
def test_every_batch_is_dealt_evenly_and_in_few_sums(pipelines: int) -> None:
    """All M from 8 to 128. A batch is too small for 5 % where one leaf more exceeds them."""
    many = 0
    for microbatches in range(8, 129):
        batch = choose(microbatches=microbatches, pipelines_max=1)
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
    batch = choose(microbatches=microbatches, pipelines_max=1)
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
        assert fewest(batch, run.leaves) == [(run.lo, run.hi)]
    if chosen:
        size = max(Counter(x.share for run in runs for x in [run] * (run.hi - run.lo)).values())
        assert size <= max(1.05 * len(chosen) / shares, -(-len(chosen) // shares))
