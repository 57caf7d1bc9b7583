"""Which layers a plan sends to host memory, and what is left there for forwards ahead."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.arbiter.fleet import spec
from tests.core.planning.test_planner import decide, request_of

from bamboo_core.api.spec import RedundancyMode, RedundancySpec
from bamboo_core.model.ids import Range
from bamboo_core.placement.plan import Plan, layers_of
from bamboo_core.planning import hosting
from bamboo_core.planning.requests import Decision
from bamboo_core.protocol.messages import LayerCost

REPLICA, EAGER = RedundancyMode.REPLICA, RedundancyMode.EAGER
COSTS = (LayerCost(1.0, 2.0, 1000, 10, activation_bytes=100),) * 4
SHORT = 10_000  # of the device: less than 14 times the parameters of a stage of two layers


def decided(
    mode: RedundancyMode = REPLICA,
    memory_bytes: int = SHORT,
    host_memory: str = "8Gi",
    costs: tuple[LayerCost, ...] = COSTS,
    **more: object,
) -> Decision:
    job = replace(
        spec(pipelines=1, stages=2, steps=6), redundancy=RedundancySpec(mode, host_memory)
    )
    return decide(replace(request_of(job, **more), costs=costs, memory_bytes=memory_bytes))  # type: ignore[arg-type]


def hosted(found: Decision) -> dict[str, tuple[Range, ...]]:
    return {agent: order.hosted for agent, order in found.directives.items() if order.hosted}


def own(plan: Plan, agent: str) -> Range:
    return next(plan.cut[seat.stage] for name, seat in plan.seats.items() if name == agent)


@pytest.mark.parametrize("mode", [REPLICA, EAGER])
def test_agents_keep_their_replicas_in_host_memory_and_their_own_layers_on_the_device(
    mode: RedundancyMode,
) -> None:
    found = decided(mode)
    kept = hosted(found)
    assert kept.keys() == found.plan.seats.keys()
    for agent, ranges in kept.items():
        wanted = set(layers_of(found.plan.wants[agent]))  # type: ignore[index]
        assert set(layers_of(ranges)) == wanted - set(range(*own(found.plan, agent)))


@pytest.mark.parametrize(
    "options",
    [
        {"memory_bytes": 0},
        {"memory_bytes": 1 << 30},
        {"host_memory": "5999"},
        {"costs": ()},
        {"mode": RedundancyMode.NONE},
    ],
)
def test_replicas_stay_on_a_device_that_is_not_known_to_be_short(
    options: dict[str, object],
) -> None:
    assert not hosted(decided(**options))  # type: ignore[arg-type]
    assert hosted(decided(host_memory="6000"))


TAKEN = 28_000 + 3 * 200 + 2 * 4 * 10
"""Of the device after a loss in Eager, without what is computed ahead: 200 bytes for each forward,
and 10 for its output. With replicas in host memory it is 6,000 less 2,000 of one layer."""


@pytest.mark.parametrize(
    ("left", "host_memory", "limit", "hosts_ahead", "hosts_replicas"),
    [
        (8 * 200 + 4 * 210, "0", 4, False, False),
        (210, "0", 1, False, False),
        (40, "800", 4, True, False),
        (40, "400", 2, True, False),
        (9, "6400", 1, False, True),
        (40 - 4000 + 2000, "6400", 2, True, True),
        (9, "100", 0, False, False),  # it does not fit: nothing is computed ahead
    ],
)
def test_all_agents_learn_what_to_keep_in_host_memory(
    left: int, host_memory: str, limit: int, *, hosts_ahead: bool, hosts_replicas: bool
) -> None:
    memory_bytes = -(-(TAKEN + left) * 10 // 8)
    for order in decided(EAGER, memory_bytes, host_memory).directives.values():
        assert (order.lane_limit, order.hosts_ahead) == (limit, hosts_ahead)
        assert bool(order.hosted) is hosts_replicas
        assert bool(order.lane) <= (limit > 0)


def test_an_agent_that_takes_over_still_counts_the_layers_as_replicas() -> None:
    """Its own seat is another one. Weights come to the device with the first forward."""
    found = decided(kill="a1", after=60)
    assert found.plan.holes == 1
    (agent,) = hosted(found)
    assert set(layers_of(hosting.replicas(found.plan)[agent])) == (  # type: ignore[index]
        set(range(4)) - set(range(*own(found.plan, agent)))
    )
