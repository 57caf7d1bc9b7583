"""The facts of a job for the cost model: from its spec, its layers' costs, the planner's figures.

The arbiter and ``bamboo plan`` ask the same function, so they give the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from bamboo_core.api.spec import Adjacency, JobSpec, RedundancyMode, batch_shape
from bamboo_core.model.ids import Range
from bamboo_core.model.numerics import BatchShape
from bamboo_core.placement import partition
from bamboo_core.protection.choice import MODES, Facts, Recovery
from bamboo_core.protection.hazard import empty_share
from bamboo_core.protection.loss_cost import AfterLoss
from bamboo_core.protection.measured import EmptySeats
from bamboo_core.protection.steps import Load, SeveralEmpty, microbatches_of, planned
from bamboo_core.protocol.messages import LayerCost

_LEAST_S = 1e-9  # of a step
_UNKNOWN_S = 0.1  # a forward of a stage whose costs are not measured


@dataclass(frozen=True)
class Assumptions:
    """Figures that nobody measures before a job runs; times in seconds."""

    host_bytes_per_s: float = 12e9  # four fifths of PCIe 3
    stop_s: float = 1.0
    restart_s: float = 60.0
    refill_s: float = 180.0  # a pod on a new spot node, and its copies; a prior of what is measured


@dataclass(frozen=True)
class Seen:
    """Figures that were measured in the job, or are assumed about it. 0: unknown."""

    hazard_per_agent_hour: float
    is_hazard_measured: bool = False  # or is it that of a job without a record?
    are_costs_measured: bool = False  # of the layers
    memory_bytes: int = 0  # of the smallest device
    step_s: float = 0.0  # of the last step with an agent in every seat
    step_pipelines: int = 0  # then; 0: as many as are asked about
    stop_s: float = 0.0  # these two: as in Assumptions, and they count more
    restart_s: float = 0.0
    empty: EmptySeats = EmptySeats()  # noqa: RUF009 - frozen
    goodput: float = inf  # bytes per second between two agents; inf: not measured
    current: RedundancyMode | None = None  # mode in force


@dataclass(frozen=True)
class OpenMode:
    """Facts on which the mode of a plan depends, besides the request to the planner."""

    seen: Seen
    pipelines: int  # that the job asks for


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
    batch: BatchShape | None = None,
) -> Facts:
    """Facts of a job that asks for so many pipelines. costs: one per layer; batch: of a job that
    has had a plan, which keeps it for ever; None: of a new job. ValueError as in cut_of.

    The step takes as long as measured, else as long as an estimate: the planner's schedule of equal
    stages as long as the costliest one, and the reduction. Sizes are the largest of any stage. What
    ``seen`` does not know is assumed.
    """
    is_network_measured = seen.goodput < spec.transport.bytes_per_s
    spec = _with_network(spec, seen)
    cut = cut_of(spec, costs)
    device = seen.memory_bytes, assumptions.host_bytes_per_s
    load = Load(spec, costs, cut, pipelines, *device, batch or batch_shape(spec))
    forward_s, sizes, bytes_per_s = load.forward_s, load.sizes, spec.transport.bytes_per_s
    plans = planned(load)
    none, replica, eager = (plans[mode].figures for mode in MODES)
    # of the reduction, an agent sends 2 (D - 1) / D times its stage (direct exchange)
    reduced_bytes = 2 * (pipelines - 1) / pipelines * sizes.parameter_bytes
    estimated_s = none.length * forward_s + reduced_bytes / bytes_per_s
    step_s = _measured_s(spec, seen, load.microbatches) or max(estimated_s, _LEAST_S)
    empty, hazard = seen.empty, seen.hazard_per_agent_hour
    # the prior of the share: what the hazard of the pool does if seats are empty as assumed
    prior = empty_share(hazard, assumptions.refill_s)
    return Facts(
        hazard_per_agent_hour=hazard,
        pipelines=pipelines,
        stages=len(cut),
        microbatches=load.microbatches,
        step_s=step_s,
        forward_s=forward_s,
        backward_s=load.backward_s,
        idle_s=none.idle * forward_s,
        ahead_s=eager.ahead * forward_s,
        delay_s=max(0.0, eager.length - none.length) * forward_s,
        tight_s=max(0.0, replica.length - none.length) * forward_s,
        copying_s=replica.copying * forward_s,
        bare=_recovery(none.after, forward_s),
        copied=_recovery(replica.after, forward_s),
        eager=_recovery(eager.after, forward_s),
        parameter_bytes=sizes.parameter_bytes,
        activation_bytes=sizes.activation_bytes,
        boundary_bytes=sizes.boundary_bytes,
        layer_bytes=sizes.layer_bytes,
        sums=sizes.sums,
        device_bytes=tuple(plans[mode].device_bytes for mode in MODES),
        memory_bytes=seen.memory_bytes,
        host_memory_bytes=spec.redundancy.host_memory_bytes,
        bytes_per_s=bytes_per_s,
        host_bytes_per_s=assumptions.host_bytes_per_s,
        stop_s=seen.stop_s or assumptions.stop_s,
        restart_s=seen.restart_s or assumptions.restart_s,
        refill_s=empty.length_s(assumptions.refill_s),
        empty_share=empty.share(prior) if empty.seat_s else None,
        empty_together=empty.together(prior) if empty.seat_s else 0.0,
        steps=SeveralEmpty(load),
        checkpoint_s=(spec.save_every or spec.training.steps) * step_s,
        is_clustered=spec.placement.adjacency is Adjacency.CLUSTER,
        current=seen.current,
        measured=_measured(seen, is_network_measured=is_network_measured),
    )


def _with_network(spec: JobSpec, seen: Seen) -> JobSpec:
    """The spec is the upper bound of what is measured."""
    if seen.goodput >= spec.transport.bytes_per_s:
        return spec
    gbps = seen.goodput * 8 / 1e9
    return replace(spec, transport=replace(spec.transport, bandwidth_gbps=gbps))


def _measured(seen: Seen, *, is_network_measured: bool) -> tuple[str, ...]:
    """Names of facts, and not of assumptions."""
    known = [
        name for name in ("memory_bytes", "step_s", "stop_s", "restart_s") if getattr(seen, name)
    ]
    if is_network_measured:
        known.append("bytes_per_s")
    if seen.empty.is_measured:
        known += ["refill_s", "empty_share", "empty_together"]
    if seen.is_hazard_measured:
        known.append("hazard_per_agent_hour")
    if seen.are_costs_measured:
        known += ["forward_s", "backward_s", "parameter_bytes", "activation_bytes"]
    return tuple(sorted(known))


def _measured_s(spec: JobSpec, seen: Seen, microbatches: int) -> float:
    """The step; from a grid with more or fewer pipelines it is scaled. In 1F1B a step takes
    M + P - 1 slots."""
    ramp = spec.pipelines.stages - 1
    then = microbatches_of(spec, seen.step_pipelines) if seen.step_pipelines else microbatches
    return seen.step_s * (microbatches + ramp) / (then + ramp)


def _recovery(after: AfterLoss | None, forward_s: float) -> Recovery | None:
    return None if after is None else Recovery(after.degraded, after.redone * forward_s)
