"""What a job will look like and cost in each mode of redundancy, without a cluster.

The grid, the cut and the verdict come from the core's own functions, which the operator calls, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

from bamboo_cli.errors import CommandError
from bamboo_cli.estimate import gpus
from bamboo_cli.estimate.manifest import read_manifest
from bamboo_cli.estimate.profile import check, read_profile
from bamboo_core.api import quantities
from bamboo_core.api.limits import LIMITS
from bamboo_core.api.spec import JobSpec, RedundancyMode
from bamboo_core.model.counts import counted
from bamboo_core.planning.displays import preview
from bamboo_core.planning.displays.preview import OneLoss
from bamboo_core.planning.requests import Bound
from bamboo_core.protection import facts, shapes
from bamboo_core.protection.choice import Estimate, Recovery, Verdict, choose
from bamboo_core.protection.facts import Assumptions, Seen
from bamboo_core.protocol.messages import LayerCost

_LEAST, _MOST = 1e-9, 1e9
_BANDWIDTH = LIMITS["spec.transport.bandwidthGbps"]  # no job may have another
"""Of an option that is not 0. Times and sizes that follow from such numbers stay finite."""
_LEAST_BYTES = 1 << 20  # of a device
_MOST_TASKS = 1 << 13  # micro-batches of all agents; more would take minutes to plan


@dataclass(frozen=True)
class Costs:
    """Costs of the layers, and where they are from."""

    layers: tuple[LayerCost, ...]
    source: str
    memory_bytes: int = 0  # of the device; 0: unknown
    device: str = ""  # what says how much that is; empty: nothing does


@dataclass(frozen=True)
class JobPlan:
    """The answer."""

    name: str
    spec: JobSpec
    costs: Costs
    cut: tuple[tuple[int, int], ...]
    verdict: Verdict

    @cached_property
    def one_loss(self) -> OneLoss | None:
        """The cost of one loss in each later step; None: it is fatal, or not known."""
        if not self.is_small:
            return None
        return preview.one_loss(
            self.planned_spec, self.costs.layers, memory_bytes=self.costs.memory_bytes
        )

    @property
    def why_no_loss(self) -> str:
        """Why there is no cost of one loss; empty: there is one."""
        spec, found = self.planned_spec, self.verdict.facts
        if spec.pipelines.count == 1 and not spec.redundancy.mode.keeps_copies:
            return (
                f"one lost agent ends the attempt: in {spec.redundancy.mode.value} nobody else has"
                " its layers, so training goes on from the newest checkpoint"
            )
        if self.one_loss is not None:
            return ""
        if not any(x.parameter_bytes for x in self.costs.layers):
            return "what one loss costs is not shown: the sizes of the layers are not known"
        return (
            "what one loss costs is not shown: of"
            f" {counted(found.agents, 'agent')} with {found.microbatches} micro-batches each, the"
            " ways to share its work take too long to compare"
        )

    @property
    def is_small(self) -> bool:
        """Whether its steps are soon planned."""
        return self.verdict.facts.agents * self.verdict.facts.microbatches <= _MOST_TASKS

    @cached_property
    def step_s(self) -> float:
        """A step without a loss: as --step says; else by a dry run of the planner's programs over
        the network, in which outputs of stages cost nothing; of a large grid, as Auto estimates."""
        found = self.verdict.facts
        if "step_s" in found.measured or not self.is_small:
            return found.step_s
        if self.one_loss is not None:
            return self.one_loss.usual_s
        return preview.usual_s(
            self.planned_spec, self.costs.layers, memory_bytes=self.costs.memory_bytes
        )

    @property
    def planned_spec(self) -> JobSpec:
        """The spec in the mode that the job will have."""
        spec = self.spec
        if spec.redundancy.mode is not RedundancyMode.AUTO:
            return spec
        return replace(spec, redundancy=replace(spec.redundancy, mode=self.verdict.mode))

    @property
    def shortage(self) -> str:
        """Why the device does not suffice for the mode that the job will have; empty: it does."""
        mode = self.spec.redundancy.mode
        taken = self.verdict.mode if mode is RedundancyMode.AUTO else mode
        why = self.verdict.of(taken).excluded
        return why and f"{self.name} does not fit: spec.redundancy.mode is {mode.value}" + (
            f", and in {taken.value} {why}" if taken is not mode else f", and {why}"
        )

    @property
    def unknown_device(self) -> str:
        """How to name the device, so that modes that do not fit are found; empty: it is known."""
        if self.costs.memory_bytes or not gpus.wants(self.spec):
            return ""
        text = "the device's memory is not known, so nothing says whether a mode fits: "
        if not gpus.wants_nvidia(self.spec):
            return f"{text}give --memory"
        return (
            f"{text}name the GPU in spec.worker.podTemplate.spec.nodeSelector, by a label such as"
            " node.kubernetes.io/instance-type, or give --memory"
        )

    def layers_of(self, stage: int) -> Sequence[LayerCost]:
        """Costs of a stage's layers."""
        lo, hi = self.cut[stage]
        return self.costs.layers[lo:hi]


def plan_of(
    *,
    file: Path,
    profile: Path | None,
    shape: str | None,
    tflops: float,
    hazard: float,
    gbits: float | None,
    memory: str | None,
    restart_s: float,
    refill_s: float,
    stop_s: float,
    step_s: float | None,
) -> JobPlan:
    """The answer to a command line. CommandError names the field or option that is wrong."""
    numbers = {
        "--tflops": tflops,
        "--hazard": hazard,
        "--bandwidth": gbits or 0.0,
        "--restart": restart_s,
        "--refill": refill_s,
        "--stop": stop_s,
        "--step": step_s or 0.0,
    }
    for option, value in numbers.items():
        if not isfinite(value):
            raise CommandError(f"{option} is {value}; give a finite number.")
        least, most = _BANDWIDTH if option == "--bandwidth" else (_LEAST, _MOST)
        if value and not least <= value <= most:
            raise CommandError(f"{option} is {value}; give a number from {least:g} to {most:g}.")
    name, spec = read_manifest(file)
    if profile is None:
        costs = built_in(spec, shape, tflops=tflops)
    elif shape is not None:
        raise CommandError("--profile and --shape both say what layers cost; give one of them.")
    else:
        costs = measured(spec, profile)
    costs = on_device(costs, spec, memory)
    if gbits is not None:
        spec = replace(spec, transport=replace(spec.transport, bandwidth_gbps=gbits))
    seen = Seen(
        hazard,
        are_costs_measured=profile is not None,
        memory_bytes=costs.memory_bytes,
        step_s=step_s or 0.0,
    )
    assumptions = Assumptions(stop_s=stop_s, restart_s=restart_s, refill_s=refill_s)
    return make_plan(name, spec, costs, seen, assumptions)


def on_device(costs: Costs, spec: JobSpec, memory: str | None) -> Costs:
    """With the memory of the device: as the option says, else the smaller one of the profile's and
    that of the GPU that the manifest asks for."""
    if memory is not None:
        return replace(costs, memory_bytes=_bytes(memory), device=f"--memory {memory}")
    found = gpus.asked(spec)
    if found is None or 0 < costs.memory_bytes <= found.gpu.memory_bytes:
        return costs
    device = f"{found.gpu.name} with {found.gpu.gigabytes:g} GB, by {found.field}"
    return replace(costs, memory_bytes=found.gpu.memory_bytes, device=device)


def _bytes(memory: str) -> int:
    try:
        found = int(quantities.parse(memory))
    except ValueError as error:
        text = f"--memory {memory!r} is not a quantity; give bytes, as in 80Gi."
        raise CommandError(text) from error
    if found < _LEAST_BYTES:  # 0 would mean that the memory is not known
        text = f"--memory {memory!r} is less than a mebibyte; is its unit missing? Write 80Gi."
        raise CommandError(text)
    return found


def measured(spec: JobSpec, path: Path) -> Costs:
    """Costs of a file that ``bamboo profile`` has written for this job."""
    found = read_profile(path)
    check(found, spec, path)
    own = _own_shape(spec)
    if own is not None and own.layer_count != len(found.layers):
        raise CommandError(
            f"{path} has {counted(len(found.layers), 'layer')}, and the model of spec.model.args"
            f" has {own.layer_count}; run `bamboo profile` again."
        )
    device = f"{found.device}, by {path.name}" if found.memory_bytes else ""
    source = f"measured on {found.device} ({path.name})"
    return Costs(found.layers, source, found.memory_bytes, device)


def _own_shape(spec: JobSpec) -> shapes.Transformer | None:
    """The shape of the model that comes with Bamboo; None for any other model.

    CommandError names an argument that the model refuses.
    """
    try:
        return shapes.shape_of(spec)
    except ValueError as error:
        raise CommandError(f"{error}.") from error


def built_in(spec: JobSpec, shape: str | None, *, tflops: float) -> Costs:
    """Costs by arithmetic: of a named shape, else of the model that comes with Bamboo.

    CommandError: the model has another factory, whose costs must be measured, or refuses an
    argument.
    """
    if shape is not None and shape not in shapes.NAMED:
        raise CommandError(f"--shape {shape} is not known; give one of {', '.join(shapes.NAMED)}.")
    own = _own_shape(spec)
    found = shapes.NAMED[shape] if shape is not None else own
    if found is None:
        raise CommandError(
            f"nobody knows what the layers of spec.model.factory {spec.model.factory} cost: measure"
            " them with `bamboo profile` and give --profile, or give --shape, one of"
            f" {', '.join(shapes.NAMED)}."
        )
    layers = shapes.costs(found, samples=spec.training.micro_batch_size, speed=tflops * 1e12)
    kind = shape or spec.model.factory
    source = f"by arithmetic, shape {kind} at {tflops:g} TFLOP/s"
    return Costs(layers, source)


def make_plan(
    name: str,
    spec: JobSpec,
    costs: Costs,
    seen: Seen,
    assumptions: Assumptions,
) -> JobPlan:
    """The plan that the planner and Auto would make. CommandError names the field that is wrong."""
    try:
        cut = facts.cut_of(spec, costs.layers)
        found = facts.gather(
            spec, costs.layers, seen, pipelines=spec.pipelines.count, assumptions=assumptions
        )
        return JobPlan(name, spec, costs, cut, choose(found))
    except ValueError as error:
        raise CommandError(f"spec.pipelines.stages: {error}.") from error


def as_json(plan: JobPlan) -> dict[str, Any]:
    """The whole answer; times in seconds, sizes in bytes, null for what is unknown or endless."""
    found = plan.verdict.facts
    return {
        "job": plan.name,
        "grid": {
            "pipelines": found.pipelines,
            "stages": found.stages,
            "agents": found.agents,
            "microBatches": found.microbatches,
        },
        "costs": plan.costs.source,
        "device": plan.costs.device or None,
        "cut": [_stage(plan, s) for s in range(len(plan.cut))],
        "facts": {
            **{x.name: _plain(getattr(found, x.name)) for x in fields(found) if x.name != "steps"},
            "empty_share": found.share,
        },
        "stepSeconds": plan.step_s,
        "oneLoss": _one_loss(plan.one_loss),
        "modes": [_mode(e) for e in plan.verdict.estimates],
        "shortage": plan.shortage or None,
        "requested": plan.spec.redundancy.mode.value,
        "auto": {"mode": plan.verdict.mode.value, "reason": plan.verdict.reason},
    }


def _stage(plan: JobPlan, stage: int) -> dict[str, Any]:
    layers = plan.layers_of(stage)
    return {
        "layers": list(plan.cut[stage]),
        "forwardSeconds": sum(x.forward_s for x in layers),
        "backwardSeconds": sum(x.backward_s for x in layers),
        "parameterBytes": sum(x.parameter_bytes for x in layers),
        "activationBytes": sum(x.activation_bytes for x in layers),
    }


def _one_loss(found: OneLoss | None) -> dict[str, Any] | None:
    if found is None:
        return None
    ways = (found.ways.taken, *found.ways.others)
    return {
        "seat": list(found.seat),
        "usualSeconds": found.usual_s,
        "taken": found.ways.taken.way,
        "ways": [
            {
                "way": x.way,
                "stepSeconds": x.step_s,
                "atLeast": x.bound is Bound.LEAST,
                "atMost": x.bound is Bound.MOST,
            }
            for x in ways
        ],
    }


def _mode(estimate: Estimate) -> Mapping[str, Any]:
    return {
        "mode": estimate.mode.value,
        "excluded": estimate.excluded or None,
        "overhead": _plain(estimate.overhead),
        "expectedStep": _plain(estimate.step),
        "pauseSeconds": _plain(estimate.pause_s),
        "fatalPerHour": _plain(estimate.fatal_per_hour),
        "lostSecondsPerHour": _plain(estimate.lost_s),
        "deviceBytes": estimate.device_bytes,
        "hostBytes": estimate.host_bytes,
        "replicaHostBytes": estimate.replica_host_bytes,
        "aheadHostBytes": estimate.ahead_host_bytes,
        "aheadShare": estimate.ahead,
    }


def _plain(value: Any) -> Any:
    """JSON knows no infinity and no classes."""
    if isinstance(value, Recovery):
        return asdict(value)
    return None if isinstance(value, float) and not isfinite(value) else value
