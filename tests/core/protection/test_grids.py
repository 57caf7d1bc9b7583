"""Whole grids are scheduled as the planner would."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.protection import grids
from bamboo_core.protection.grids import Shape
from bamboo_core.scheduling import inflight

NONE, REPLICA = RedundancyMode.NONE, RedundancyMode.REPLICA
UNEVEN = (0.5, 1.0, 0.75, 1.0)


@pytest.mark.parametrize("mode", [NONE, REPLICA])
@pytest.mark.parametrize(
    "shape",
    [
        Shape(4, 4, 8, can_split=True),
        Shape(4, 4, 4, can_split=True, spare=3),
        Shape(3, 4, 6, can_split=True, spare=8, batch=20),
        Shape(2, 4, 16, backward=1.0, halves=1.5, can_split=True),
        Shape(2, 4, 12, can_split=True, loads=UNEVEN, sums=(40.0,) * 4, spare=2, slices=4),
        Shape(1, 4, 300, can_split=True, latency=0.25),
    ],
)
def test_a_full_grid_is_split_if_that_is_shorter_by_more_than_the_error_of_costs(
    shape: Shape, mode: RedundancyMode
) -> None:
    """Gradients that are sent count, too."""
    found = grids.whole(shape, mode)
    fused = replace(found.step, split=False, extra=0).build()
    split = replace(found.step, split=True, extra=shape.spare or 0).build()
    price = (inflight.WORTH - 1) * split.length
    assert found.made.is_split == (split.end + price < fused.end)


def test_what_counts_only_after_a_loss_makes_no_other_grid() -> None:
    shape = Shape(2, 4, 8, can_split=True)
    found = grids.whole(shape, NONE)
    assert grids.whole(replace(shape, room=3, leaf_size=4, most_sums=5.0), NONE) is found
