"""The cut is optimal: no other has a cheaper costliest stage."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo_core.placement.partition import split


def costliest(costs, cut):
    return max(sum(costs[lo:hi]) for lo, hi in cut)


@given(costs=st.lists(st.integers(0, 20), min_size=1, max_size=9), stages=st.integers(1, 9))
@settings(deadline=None)
def test_no_cut_has_a_cheaper_costliest_stage(costs, stages):
    if stages > len(costs):
        with pytest.raises(ValueError, match=r"set pipelines\.stages to 1\.\."):
            split(costs, stages)
        return
    cut = split(costs, stages)
    assert len(cut) == stages
    assert cut[0][0] == 0
    assert cut[-1][1] == len(costs)
    assert all(lo < hi for lo, hi in cut)
    assert all(a[1] == b[0] for a, b in pairwise(cut))
    best = min(
        costliest(costs, list(pairwise((0, *inner, len(costs)))))
        for inner in combinations(range(1, len(costs)), stages - 1)
    )
    assert costliest(costs, cut) == best


def test_equal_layers_are_cut_evenly():
    assert split([1.0] * 8, 4) == ((0, 2), (2, 4), (4, 6), (6, 8))


def test_more_stages_than_layers_are_rejected_with_a_remedy():
    with pytest.raises(ValueError, match="3 layers cannot be cut into 4 stages"):
        split([1.0, 1.0, 1.0], 4)


def test_a_thousand_layers_are_fast():
    assert len(split([float(1 + i % 7) for i in range(1000)], 64)) == 64
