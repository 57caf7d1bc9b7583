"""How many activations memory allows in flight, and which variants are tried."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.placement.plan import Plan
from bamboo_core.protocol.messages import LayerCost
from bamboo_core.scheduling.costs import Costs
from bamboo_core.scheduling.inflight import Profile, variants

A, B, C = AgentId("a"), AgentId("b"), AgentId("c")
LAYER = LayerCost(
    1.0,
    2.0,
    parameter_bytes=100,
    output_bytes=1,
    input_gradient_s=1.0,
    weight_gradient_s=1.0,
    can_split=True,
    activation_bytes=50,
)
COSTS = Costs.measured([LAYER] * 4)


def plan(wants=((0, 2), (2, 4))):
    return Plan(
        fence=Fence(0, 1, 1),
        target=0,
        last=9,
        pipelines=((A, B),),
        cut=((0, 2), (2, 4)),
        step_cut=((0, 2), (2, 4)),
        live=(A, B),
        leaving=(),
        short_notice=(),
        wants={A: (wants[0],), B: (wants[1],)},
        coordinator=A,
        batch=BatchShape(8, 1, 1),
        learners={},
    )


def tried(memory_bytes, *, is_degraded, layers=(LAYER,) * 4, costs=COSTS, of=None):
    profile = Profile(layers, memory_bytes)
    found = variants(of or plan(), costs, profile, is_degraded=is_degraded)
    return [(x.split, x.caps[A], x.caps[B]) for x in found]


def test_a_full_grid_keeps_the_cap_of_1f1b_unless_memory_is_known():
    assert tried(0, is_degraded=False) == [(False, 2, 1), (True, 2, 1)]
    assert tried(10_000, is_degraded=False) == [(False, 2, 1), (True, 10, 9)]


def test_a_full_grid_without_measured_costs_is_not_split():
    found = tried(0, is_degraded=False, layers=(), costs=Costs.even(4))
    assert found == [(False, 2, 1)]


def test_with_empty_seats_both_variants_get_more_in_flight():
    assert tried(0, is_degraded=True) == [(False, 10, 9), (True, 10, 9)]
    assert tried(10_000, is_degraded=True, layers=()) == [(False, 10, 9), (True, 10, 9)]


def test_one_layer_that_cannot_be_split_excludes_the_split():
    layers = (LAYER, replace(LAYER, can_split=False), LAYER, LAYER)
    costs = Costs.measured(layers)
    assert tried(0, is_degraded=True, layers=layers, costs=costs) == [(False, 10, 9)]
    assert tried(0, is_degraded=False, layers=layers, costs=costs) == [(False, 2, 1)]


@pytest.mark.parametrize(
    ("memory_bytes", "more"),
    [(1, 0), (1500, 0), (1750, 0), (1874, 0), (1875, 1), (2000, 2), (2500, 6), (2750, 8)],
)
def test_memory_limits_activations_in_flight(memory_bytes, more):
    """0.8 of memory holds two layers of 6 x 100 bytes, and 100 bytes per activation in flight."""
    found = tried(memory_bytes, is_degraded=True)
    assert [caps for _, caps, _ in found] == [2 + more] * 2
    assert found[0][2] == 1 + min(8, max(0, int((0.8 * memory_bytes - 1200) // 100) - 1))


def test_copies_take_memory_too():
    alone = tried(2400, is_degraded=True)
    both = tried(2400, is_degraded=True, of=plan(wants=((0, 4), (0, 4))))
    assert alone[0][1] > both[0][1] == 2


def test_a_large_fleet_tries_one_variant():
    many = tuple(AgentId(f"a{i}") for i in range(66))
    grid = tuple((many[i], many[i + 1]) for i in range(0, 66, 2))
    large = replace(
        plan(),
        pipelines=grid,
        live=many,
        wants={a: ((0, 4),) for a in many},
    )
    profile = Profile((LAYER,) * 4, 0)
    assert [x.split for x in variants(large, COSTS, profile, is_degraded=True)] == [True]
    assert [x.split for x in variants(large, COSTS, profile, is_degraded=False)] == [False]
    fused = replace(COSTS, can_split=False)
    assert [x.split for x in variants(large, fused, profile, is_degraded=True)] == [False]


def test_agents_without_a_seat_are_bounded_too():
    """One that leaves may still compute in the target step, at any stage."""
    of = replace(plan(), leaving=(C,))
    assert {x.caps[C] for x in variants(of, COSTS, Profile(), is_degraded=True)} == {2 + 8}
    known = Profile((LAYER,) * 4, 10_000)
    assert {x.caps[C] for x in variants(of, COSTS, known, is_degraded=True)} == {2}
