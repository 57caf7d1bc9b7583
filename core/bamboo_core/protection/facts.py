"""The facts of a job for the cost model: from its spec, its layers' costs, the planner's figures.

The arbiter and ``bamboo plan`` ask the same function, so they give the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bamboo_core.api.spec import JobSpec, RedundancyMode
from bamboo_core.model.ids import Range
from bamboo_core.placement import partition
from bamboo_core.protection.choice import Facts, Recovery
from bamboo_core.protection.figures import AfterLoss, Shape, figures
from bamboo_core.protocol.messages import LayerCost
from bamboo_core.scheduling.device_memory import Sizes, need

_GRAIN = 0.25  # of B over F, so that jobs with nearly equal costs share one dry run
_LEAST, _MOST = 0.5, 4.0
_MOST_COPIED = 16.0  # times a forward
_LEAST_LATENCY = 1 / 64  # of a forward
_LEAST_S = 1e-9  # of a step
_UNKNOWN_S = 0.1  # a forward of a stage whose costs are not measured


@dataclass(frozen=True)
class Assumptions:
    """What nobody measures before a job runs; times in seconds."""

    host_bytes_per_s: float = 12e9  # four fifths of PCIe 3
    stop_s: float = 1.0
    restart_s: float = 60.0
    refill_s: float = 180.0  # a pod on a new spot node, and its copies


@dataclass(frozen=True)
class Seen:
    """What was measured in the job, or is assumed about it. 0: unknown."""

    hazard_per_agent_hour: float
    is_hazard_measured: bool = False  # or is it that of a job without a record?
    are_costs_measured: bool = False  # of the layers
    memory_bytes: int = 0  # of the smallest device
    step_s: float = 0.0  # of the last step with an agent in every seat
    step_pipelines: int = 0  # then; 0: as many as are asked about
    stop_s: float = 0.0  # these three: as in Assumptions, and they count more
    restart_s: float = 0.0
    refill_s: float = 0.0
    current: RedundancyMode | None = None  # mode in force


def even_costs(layers: int) -> tuple[LayerCost, ...]:
    """In the place of costs that are not measured: equal layers without bytes."""
    return (LayerCost(_UNKNOWN_S, 2 * _UNKNOWN_S, 0, 0),) * layers


def cut_of(spec: JobSpec, costs: Sequence[LayerCost]) -> tuple[Range, ...]:
    """The cut as the planner makes it. ValueError: fewer layers than stages."""
    return partition.split([c.forward_s + c.backward_s for c in costs], spec.pipelines.stages)


def gather(
    spec: JobSpec,
    costs: Sequence[LayerCost],
    seen: Seen,
    *,
    pipelines: int,
    assumptions: Assumptions = Assumptions(),
) -> Facts:
    """Facts of a job with so many pipelines. costs: one per layer. ValueError as in cut_of.

    The step takes as long as measured, else as long as the planner's schedule of its costliest
    stage and the reduction. A stage is one of the cut; sizes are the largest of any stage. Slices
    of the lane take longer if what they keep goes to host memory. What ``seen`` does not know is
    assumed.
    """
    cut = cut_of(spec, costs)
    stages = [costs[lo:hi] for lo, hi in cut]
    slowest = max(stages, key=lambda s: sum(c.forward_s + c.backward_s for c in s))
    forward_s = sum(c.forward_s for c in slowest)
    backward_s = sum(c.backward_s for c in slowest)
    microbatches = _microbatches(spec, pipelines)
    bytes_per_s = spec.transport.bytes_per_s
    sizes = Sizes.of(cut, costs, microbatches=microbatches)
    eager = need(
        sizes,
        RedundancyMode.EAGER,
        memory_bytes=seen.memory_bytes,
        host_memory_bytes=spec.redundancy.host_memory_bytes,
    )
    copied_s = eager.ahead_bytes and sizes.activation_bytes / assumptions.host_bytes_per_s
    is_split = bool(seen.memory_bytes) and all(c.can_split for c in costs)
    shape = Shape(
        pipelines,
        len(cut),
        microbatches,
        _ratio(forward_s, backward_s),
        latency=_latency(sizes.boundary_bytes / bytes_per_s, forward_s),
        slices=_slices(slowest, forward_s),
        copied=_copied(copied_s, forward_s),
        split=is_split,
        policy=spec.recovery,
    )
    found = figures(shape)
    # of the reduction, an agent sends 2 (D - 1) / D times its stage (direct exchange)
    reduced_bytes = 2 * (pipelines - 1) / pipelines * sizes.parameter_bytes
    estimated_s = found.length * forward_s + reduced_bytes / bytes_per_s
    step_s = _measured_s(spec, seen, microbatches) or max(estimated_s, _LEAST_S)
    checkpoint = spec.checkpoint.every_steps if spec.checkpoint is not None else 0
    return Facts(
        hazard_per_agent_hour=seen.hazard_per_agent_hour,
        pipelines=pipelines,
        stages=len(cut),
        microbatches=microbatches,
        step_s=step_s,
        forward_s=forward_s,
        backward_s=backward_s,
        idle_s=found.idle * forward_s,
        ahead_s=found.ahead * forward_s,
        delay_s=found.delay * forward_s,
        bare=_recovery(found.bare, forward_s),
        copied=_recovery(found.copied, forward_s),
        parameter_bytes=sizes.parameter_bytes,
        activation_bytes=sizes.activation_bytes,
        boundary_bytes=sizes.boundary_bytes,
        layer_bytes=sizes.layer_bytes,
        memory_bytes=seen.memory_bytes,
        host_memory_bytes=spec.redundancy.host_memory_bytes,
        bytes_per_s=bytes_per_s,
        host_bytes_per_s=assumptions.host_bytes_per_s,
        stop_s=seen.stop_s or assumptions.stop_s,
        restart_s=seen.restart_s or assumptions.restart_s,
        refill_s=seen.refill_s or assumptions.refill_s,
        checkpoint_s=(checkpoint or spec.training.steps) * step_s,
        current=seen.current,
        measured=_measured(seen),
    )


def _measured(seen: Seen) -> tuple[str, ...]:
    """Names of facts, and not of assumptions."""
    known = [
        name
        for name in ("memory_bytes", "step_s", "stop_s", "restart_s", "refill_s")
        if getattr(seen, name)
    ]
    if seen.is_hazard_measured:
        known.append("hazard_per_agent_hour")
    if seen.are_costs_measured:
        known += ["forward_s", "backward_s", "parameter_bytes", "activation_bytes"]
    return tuple(sorted(known))


def _microbatches(spec: JobSpec, pipelines: int) -> int:
    """M of one pipeline."""
    return max(1, -(-spec.training.microbatches // pipelines))


def _measured_s(spec: JobSpec, seen: Seen, microbatches: int) -> float:
    """The step; from a grid with more or fewer pipelines it is scaled. In 1F1B a step takes
    M + P - 1 slots."""
    ramp = spec.pipelines.stages - 1
    then = _microbatches(spec, seen.step_pipelines) if seen.step_pipelines else microbatches
    return seen.step_s * (microbatches + ramp) / (then + ramp)


def _ratio(forward_s: float, backward_s: float) -> float:
    """B over F in grains."""
    ratio = backward_s / forward_s if forward_s > 0 else 2.0
    return min(_MOST, max(_LEAST, round(ratio / _GRAIN) * _GRAIN))


def _copied(copied_s: float, forward_s: float) -> float:
    """What a forward keeps on its way to host memory, in forwards, in grains."""
    ratio = copied_s / forward_s if forward_s > 0 else 0.0
    return min(_MOST_COPIED, round(ratio / _GRAIN) * _GRAIN)


def _latency(transfer_s: float, forward_s: float) -> float:
    """Of a boundary tensor, in forwards, as a power of two from 1/64 to 1. Never 0: then each
    message would come just when a slice ends, and lanes would delay nobody."""
    latency = _LEAST_LATENCY
    while latency < 1 and forward_s > 0 and latency * forward_s < transfer_s:
        latency *= 2
    return latency


def _slices(stage: Sequence[LayerCost], forward_s: float) -> int:
    """Into how many slices of equal length the forward is cut, by its longest layer."""
    longest_s = max(c.forward_s for c in stage)
    return max(1, int(forward_s / longest_s)) if longest_s > 0 else len(stage)


def _recovery(after: AfterLoss | None, forward_s: float) -> Recovery | None:
    return None if after is None else Recovery(after.degraded, after.redone * forward_s)
