"""How many activations memory allows in flight, and which variants are tried."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.placement.plan import Plan
from bamboo_core.protocol.messages import LayerCost
from bamboo_core.scheduling.costs import Costs
from bamboo_core.scheduling.device_memory import Need, Sizes, need
from bamboo_core.scheduling.inflight import Variant, shortest, tighter, variants
from bamboo_core.scheduling.schedule import Schedule

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


NONE, REPLICA, EAGER = RedundancyMode.NONE, RedundancyMode.REPLICA, RedundancyMode.EAGER


def ways(of, costs=COSTS, *, is_degraded, spare=8, is_measured=True, knows_memory=False):
    return variants(
        of,
        costs,
        Need(0, 0, spare=spare),
        is_measured=is_measured,
        knows_memory=knows_memory,
        is_degraded=is_degraded,
    )


def tried(spare=8, **options):
    found = ways(plan(), spare=spare, **options)
    return [(x.split, x.caps[A], x.caps[B]) for x in found]


def test_a_full_grid_keeps_the_cap_of_1f1b_unless_memory_is_known():
    assert tried(is_degraded=False) == [(False, 2, 1), (True, 2, 1)]
    found = tried(is_degraded=False, knows_memory=True)
    assert found == [(False, 2, 1), (True, 10, 9)]


def test_a_full_grid_without_measured_costs_is_not_split():
    found = tried(is_degraded=False, is_measured=False, costs=Costs.even(4))
    assert found == [(False, 2, 1)]


def test_with_empty_seats_both_variants_get_more_in_flight():
    assert tried(is_degraded=True) == [(False, 10, 9), (True, 10, 9)]
    assert tried(is_degraded=True, is_measured=False) == [(False, 10, 9), (True, 10, 9)]


def test_tighter_keeps_one_activation():
    found = tighter(Variant(True, {A: 5, B: 2, C: 1}, 1.03))
    assert found == Variant(True, {A: 3, B: 1, C: 1}, 1.03)


def test_one_layer_that_cannot_be_split_excludes_the_split():
    layers = (LAYER, replace(LAYER, can_split=False), LAYER, LAYER)
    costs = Costs.measured(layers)
    assert tried(is_degraded=True, costs=costs) == [(False, 10, 9)]
    assert tried(is_degraded=False, costs=costs) == [(False, 2, 1)]


def test_memory_limits_activations_in_flight():
    found = tried(3, is_degraded=True, knows_memory=True)
    assert found == [(False, 5, 4), (True, 5, 4)]


@pytest.mark.parametrize(
    ("mode", "before"),
    [
        # two layers of 6 x 100 bytes, two activations of 100, 16 boundary tensors
        (NONE, 1200 + 2 * 100 + 16),
        (REPLICA, 2400 + 2 * 100 + 16),
        # and a slice, and a forward ahead with its output
        (EAGER, 2400 + 2 * 100 + 16 + 100 + 101),
    ],
)
def test_what_the_mode_keeps_is_not_left_for_activations_in_flight(mode, before):
    sizes = Sizes.of(((0, 2), (2, 4)), (LAYER,) * 4, microbatches=8)

    def spare(more):
        memory = -(-(before + more) * 10 // 8)
        return need(sizes, mode, memory_bytes=memory, host_memory_bytes=0).spare

    assert [spare(x) for x in (-300, 0, 99, 100, 350, 799, 800, 5000)] == [0, 0, 0, 1, 3, 7, 8, 8]


def test_a_large_fleet_tries_one_variant():
    many = tuple(AgentId(f"a{i}") for i in range(66))
    grid = tuple((many[i], many[i + 1]) for i in range(0, 66, 2))
    large = replace(
        plan(),
        pipelines=grid,
        live=many,
        wants={a: ((0, 4),) for a in many},
    )
    assert [x.split for x in ways(large, is_degraded=True)] == [True]
    assert [x.split for x in ways(large, is_degraded=False)] == [False]
    fused = replace(COSTS, can_split=False)
    assert [x.split for x in ways(large, fused, is_degraded=True)] == [False]


def test_agents_without_a_seat_are_bounded_too():
    """One that leaves may still compute in the target step, at any stage."""
    of = replace(plan(), leaving=(C,))
    assert {x.caps[C] for x in ways(of, is_degraded=True)} == {2 + 8}
    assert {x.caps[C] for x in ways(of, is_degraded=True, knows_memory=True)} == {2}


def test_the_shortest_schedule_wins_and_a_price_counts_what_is_computed():
    dear, cheap = (1.1, made(10.0)), (1.0, made(10.5))
    assert shortest([dear, cheap]) is cheap[1]
    assert shortest([(1.0, dear[1]), cheap]) is dear[1]


@pytest.mark.parametrize(
    ("first", "price_of_split", "count"),
    [
        (dict(is_split=True, busiest=9.8), 1.0, 1),
        (dict(is_split=True, busiest=9.8), 1.02, 2),  # whole backwards may be shorter by so much
        (dict(is_split=True, busiest=9.7), 1.0, 2),
        (dict(is_split=False, busiest=10.0), 1.0, 2),
    ],
)
def test_no_schedule_is_made_after_one_that_none_can_undercut(first, price_of_split, count):
    tried = []

    def each():
        for found in (made(10.0, **first), made(9.9)):
            tried.append(found)
            yield 1.0, found

    found = shortest(each(), enough=1.03, price_of_split=price_of_split)
    assert len(tried) == count
    assert found is tried[-1]


def made(end, **known):
    return Schedule(dict, end, 0, end, **known)
