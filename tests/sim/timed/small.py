"""Small timed jobs: layers whose forward takes 1 s."""

from __future__ import annotations

from bamboo_core.api.spec import RedundancyMode, batch_shape
from bamboo_core.placement import partition
from bamboo_core.protocol.messages import LayerCost
from bamboo_core.scheduling.device_memory import USABLE, Sizes, need
from bamboo_core.scheduling.sharing.orders import sums_at_once
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


def taken_bytes(job: TimedJob) -> int:
    """Bytes that an agent has on its device after a loss by the planner's estimate, besides
    forwards that it has computed ahead."""
    cut = partition.split([x.forward_s + x.backward_s for x in job.layers], job.stages)
    sums = sums_at_once(batch_shape(job.spec), job.pipelines)
    sizes = Sizes.of(cut, job.layers, microbatches=job.microbatches, sums=sums)
    mode = RedundancyMode.REPLICA if job.mode.keeps_copies else job.mode
    return need(sizes, mode, memory_bytes=0, host_memory_bytes=0).after_loss_bytes


def just_fits(taken: int) -> Device:
    """The smallest device on which so many bytes can be used."""
    return Device(memory_bytes=int(taken / USABLE) + 1)
