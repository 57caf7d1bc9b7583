"""A job is as fast in whatever order its pods have come. Ties among those that take over lost work
are broken by their names, which moves a step by less than 2 %."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.core.planning.test_preview import job

from bamboo_core.api.spec import RedundancyMode, RedundancySpec, TransportSpec
from bamboo_core.model.ids import AgentId
from bamboo_core.planning import planner
from bamboo_core.planning.displays import between_steps
from bamboo_core.protocol.messages import LayerCost

PIPELINES, STAGES = 4, 8
LAYER = LayerCost(
    0.018, 0.036, 750_000_000, 0, input_gradient_s=0.018, weight_gradient_s=0.018, can_split=True
)

NAMES: dict[str, Callable[[int, int], str]] = {
    "by pipeline": lambda d, s: f"a{d * STAGES + s}",
    "by stage": lambda d, s: f"a{s * PIPELINES + d}",
    "by stage, backwards": lambda d, s: f"a{(s + 1) * PIPELINES - d}",
}


def step_s(names: Callable[[int, int], str], gbps: float, lost: tuple[int, int] | None) -> float:
    spec = replace(
        job(PIPELINES, STAGES, 8),
        redundancy=RedundancySpec(RedundancyMode.REPLICA),
        transport=TransportSpec(bandwidth_gbps=gbps),
    )
    spec = replace(spec, training=replace(spec.training, steps=9))
    seats = tuple(
        tuple(None if (d, s) == lost else AgentId(names(d, s)) for s in range(STAGES))
        for d in range(PIPELINES)
    )
    cut = tuple((s, s + 1) for s in range(STAGES))
    asked = between_steps.request(spec, (LAYER,) * STAGES, cut, seats, memory_bytes=80 * 10**9)
    answer = between_steps.later(planner.compute(asked))
    assert answer is not None
    return between_steps.length(asked, answer)


@pytest.mark.parametrize("lost", [None, (1, 3)])
@pytest.mark.parametrize("gbps", [10.0, 25.0])
@pytest.mark.parametrize("order", ["by stage", "by stage, backwards"])
def test_a_step_takes_as_long_with_other_names(
    order: str, gbps: float, lost: tuple[int, int] | None
) -> None:
    expected = step_s(NAMES["by pipeline"], gbps, lost)
    assert step_s(NAMES[order], gbps, lost) == pytest.approx(
        expected, rel=1e-9 if lost is None else 0.02
    )
