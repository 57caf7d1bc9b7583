"""What is left of a step, in time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from bamboo_core.graph.closure import Holdings
from bamboo_core.graph.holdings import HoldingsIndex
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol.messages import LayerCost
from bamboo_core.scheduling.costs import Costs
from bamboo_core.scheduling.remaining import remaining, stage_weights

WHOLE = LayerCost(1.0, 2.0, 0, 0)
HALVES = LayerCost(1.0, 2.0, 0, 0, input_gradient_s=1.0, weight_gradient_s=1.0, can_split=True)
BATCH, CUT = BatchShape(2, 1, 1), ((0, 1), (1, 2))
A = AgentId("a")


def weights(layer: LayerCost, *items: Item) -> dict[tuple[int, int], float]:
    """Time that the leaves of two stages cost an agent that holds these items."""
    held = {A: Holdings({0: 0, 1: 0}, frozenset(items), frozenset({-1}), -1)}
    index = HoldingsIndex(held, batch=BATCH, target=0, short_notice=frozenset())
    costs = Costs.measured([layer] * 2)
    return remaining(index, batch=BATCH, cut=CUT, holders=[[A], [A]], costs=costs).weight


@pytest.mark.parametrize("layer", [WHOLE, HALVES])
def test_a_leaf_that_has_not_begun_takes_a_forward_and_a_backward(layer: LayerCost) -> None:
    costs = Costs.measured([layer] * 2)
    fresh = dict.fromkeys([(s, x) for s in range(2) for x in range(2)], 3.0)
    assert stage_weights(batch=BATCH, cut=CUT, costs=costs) == fresh
    assert weights(layer) == fresh


def test_equal_loads_are_equal_in_whatever_order_they_are_added() -> None:
    """Else the last digit decides who shares lost work."""
    layer = LayerCost(0.018, 0.036, 0, 0)
    costs = Costs.measured([layer, replace(layer, forward_s=0.007, backward_s=0.011)] * 2)
    weight = stage_weights(batch=BATCH, cut=((0, 2), (2, 4)), costs=costs)
    assert len(set(weight.values())) == 1
    (load,) = set(weight.values())
    assert load == pytest.approx(0.072, rel=1e-9)
    parts = [*costs.rounded().forward, *costs.rounded().fused] * 999
    assert sum(parts) == sum(sorted(parts)) == math.fsum(parts)


def test_costs_of_nothing_stay() -> None:
    assert Costs.even(3, unit=0.0).rounded() == replace(Costs.even(3, unit=0.0))


@pytest.mark.parametrize(("layer", "expected"), [(WHOLE, 3.0), (HALVES, 2.0)])
def test_where_others_have_the_input_gradient_only_that_of_the_weights_is_left(
    layer: LayerCost, expected: float
) -> None:
    """Without it, the whole backward runs once more if it cannot be split."""
    assert weights(layer, Item.ingrad(0, 1, 0))[1, 0] == expected
    assert weights(layer, Item.ingrad(0, 1, 0))[1, 1] == 3.0
