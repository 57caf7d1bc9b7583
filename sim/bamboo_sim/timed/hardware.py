"""Declared hardware of the benchmarks, and delays as measured elsewhere in this project."""

from __future__ import annotations

from dataclasses import replace

from bamboo_core.api.spec import RedundancyMode
from bamboo_sim.timed.declared import Delays, Device, Links, TimedJob
from bamboo_sim.timed.shapes import Shape

GIBIBYTE = 1 << 30
V100_SPEED = 8e12
"""Operations per second that a V100 sustains with 4-byte numbers: half of its peak of 15.7e12."""


def of_size(device: Device, gibibytes: float) -> Device:
    """The device with other memory."""
    return replace(device, memory_bytes=int(gibibytes * GIBIBYTE))


V100 = Device(memory_bytes=16 * GIBIBYTE, memory_bandwidth=700e9, host_bandwidth=12e9)
"""A V100 of 16 GiB on PCIe 3: four fifths of its 900 GB/s and of 15.8 GB/s."""

V100_32 = of_size(V100, 32)
"""The V100 of 32 GiB."""

A100_SPEED = 140e12
"""Operations per second that an A100 sustains with 2-byte numbers: 45 % of its peak."""

A100 = Device(memory_bytes=40 * GIBIBYTE, memory_bandwidth=1200e9, host_bandwidth=24e9)

DELAYS = Delays(
    detection_s=0.05, message_s=0.001, persist_s=0.02, decision_s=0.1, continuation_s=0.2
)
"""A closed socket is seen in 26 to 100 ms; benchmarks/planning.py times the planner."""


def ethernet(gigabits: float) -> Links:
    """An interface of so many Gb/s; 50 us to an agent in the zone, 0.5 ms to another zone."""
    return Links(bandwidth=gigabits * 1e9 / 8, latency_s=50e-6, zone_latency_s=450e-6)


def placed(
    shape: Shape,
    mode: RedundancyMode,
    *,
    gigabits: float,
    speed: float = V100_SPEED,
    device: Device = V100,
) -> TimedJob:
    """The shape on such devices, in three zones, ring neighbours in different ones."""
    return TimedJob(
        shape.pipelines,
        shape.stages,
        shape.microbatches,
        shape.layers(speed),
        mode,
        zones=3,
        links=ethernet(gigabits),
        device=device,
        delays=DELAYS,
    )
