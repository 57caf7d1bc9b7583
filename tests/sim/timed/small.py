"""Small timed jobs: layers whose forward takes 1 s."""

from __future__ import annotations

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.protocol.messages import LayerCost
from bamboo_sim.timed.declared import Delays, Device, Links, TimedJob

LAYER = LayerCost(
    1.0, 2.0, parameter_bytes=1200, output_bytes=100, input_gradient_s=1.1,
    weight_gradient_s=1.1, can_split=True, activation_bytes=1000,
)  # fmt: skip


def job(
    pipelines: int,
    stages: int,
    microbatches: int,
    *,
    mode: RedundancyMode = RedundancyMode.NONE,
    layers_each: int = 1,
    links: Links | None = None,
    device: Device | None = None,
    delays: Delays | None = None,
    zones: int = 1,
) -> TimedJob:
    return TimedJob(
        pipelines,
        stages,
        microbatches,
        (LAYER,) * (layers_each * stages),
        mode,
        zones=zones,
        links=links or Links(),
        device=device or Device(),
        delays=delays or Delays(),
    )
