"""A small job: equal layers, whose steps are computed in milliseconds."""

from __future__ import annotations

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.protocol.messages import LayerCost
from bamboo_sim.market.step_times.dry import Job
from bamboo_sim.market.step_times.models import ModelProfile
from bamboo_sim.market.step_times.networks import Network

LAYER = LayerCost(
    0.010, 0.020, parameter_bytes=20_000_000, output_bytes=1_000_000, input_gradient_s=0.011,
    weight_gradient_s=0.011, can_split=True, activation_bytes=1_000_000,
)  # fmt: skip


def model(
    *,
    layers: int = 4,
    microbatches: int = 12,
    pipelines: int = 3,
    memory_bytes: int = 0,
    stage_s: float = 0.0,
) -> ModelProfile:
    return ModelProfile(
        "small", (LAYER,) * layers, microbatches, 2, pipelines, memory_bytes, stage_s=stage_s
    )


def job(
    *,
    mode: RedundancyMode = RedundancyMode.REPLICA,
    gbps: float = 10.0,
    latency_s: float = 0.0,
    profile: ModelProfile | None = None,
) -> Job:
    return Job(profile or model(), mode, Network(gbps, latency_s))
