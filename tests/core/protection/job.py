"""Facts of a usual job, for tests of the cost model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bamboo_core.api.spec import (
    CheckpointSpec,
    DataSpec,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    PipelinesSpec,
    RedundancyMode,
    RedundancySpec,
    TrainingSpec,
    WorkerSpec,
)
from bamboo_core.protection.choice import Facts, Recovery
from bamboo_core.protocol.messages import LayerCost


@dataclass(frozen=True)
class EachMore:
    """Each empty seat makes a step longer by the same share of an undisturbed one, and the
    micro-batches of a pipeline that is not there are those of the others. It is left out if that
    is faster."""

    bare: float = 0.6
    copied: float = 0.1
    asked: int = 2  # pipelines

    def slower(self, mode: RedundancyMode, pipelines: int, empty: int) -> float:
        more = empty * (self.copied if mode.keeps_copies else self.bare)
        shared, fewer = (1 + more) / pipelines, 1 / max(1, pipelines - 1)
        return self.asked * (min(shared, fewer) if pipelines > 1 else shared)

    def prepare(self, is_wanted: Callable[[], bool]) -> None:
        raise AssertionError("there is nothing to prepare")


USUAL = Facts(
    hazard_per_agent_hour=0.05,
    pipelines=2,
    stages=4,
    microbatches=8,
    step_s=3.3,
    forward_s=0.1,
    backward_s=0.2,
    idle_s=0.5,
    ahead_s=0.6,
    delay_s=0.1,
    copying_s=0.08,
    bare=Recovery(1.6, 2.0),
    copied=Recovery(1.1, 0.8),
    eager=Recovery(1.1, 0.6),
    parameter_bytes=100_000_000,
    activation_bytes=10_000_000,
    boundary_bytes=1_000_000,
    layer_bytes=25_000_000,
    steps=EachMore(),
    device_bytes=(656_000_000, 1_056_000_000, 1_154_000_000),
    host_memory_bytes=8 << 30,
    checkpoint_s=600.0,
)


def usual(**changes: Any) -> Facts:
    steps = EachMore(asked=changes.get("pipelines", 2))
    return replace(USUAL, **{"steps": steps, **changes})


def spec(pipelines: int = 2, stages: int = 4, **changes: Any) -> JobSpec:
    job = JobSpec(
        model=ModelSpec("zoo:gpt"),
        data=DataSpec("zoo:text"),
        training=TrainingSpec(1000, 8 * pipelines, 1, OptimizerSpec("torch.optim:AdamW")),
        pipelines=PipelinesSpec(pipelines, stages),
        worker=WorkerSpec("image"),
        checkpoint=CheckpointSpec("file:///tmp/x", every_steps=100),
        redundancy=RedundancySpec(),
    )
    return replace(job, **changes)


def layers(count: int = 8, **changes: Any) -> tuple[LayerCost, ...]:
    cost = LayerCost(
        forward_s=0.05,
        backward_s=0.1,
        parameter_bytes=50_000_000,
        output_bytes=1_000_000,
        input_gradient_s=0.05,
        weight_gradient_s=0.05,
        can_split=True,
        activation_bytes=5_000_000,
    )
    return (replace(cost, **changes),) * count
