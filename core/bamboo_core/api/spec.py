"""The job's specification as frozen types: what a BambooJob says, with every default filled in.

`from_manifest` reads a manifest (after the API server's own validation) and returns either a
JobSpec or the list of its problems; `to_json`/`from_json` carry the frozen spec to the agents.
Both use the field names of the custom resource.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from bamboo_core.api import pod_template as podtemplate
from bamboo_core.api import records
from bamboo_core.api.records import Problem
from bamboo_core.model import numerics as canonical

Json = Any
"""A JSON value (None, bool, int, float, str, list, dict)."""


class Numerics(StrEnum):
    """How gradients are summed: in leaves so small that lost work can be spread,
    or each pipeline's share as one.
    """

    CANONICAL = "Canonical"
    FAST = "Fast"


class RedundancyMode(StrEnum):
    """Which copies of a stage are kept beside its home."""

    NONE = "None"
    REPLICA = "Replica"


class RecoveryPolicy(StrEnum):
    """How far a lost agent's work is spread."""

    SHADOW = "Shadow"
    PEERS = "Peers"
    DIFFUSE = "Diffuse"


class Adjacency(StrEnum):
    """Placement of ring neighbours: never in one zone, or all together."""

    ALTERNATE = "Alternate"
    CLUSTER = "Cluster"


@dataclass(frozen=True)
class FactorySpec:
    """``factory`` = "module:function"; called with ``args`` as keyword arguments."""

    factory: str
    args: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class DataSpec:
    """``factory`` gives the training set; ``validation`` the validation set, if any."""

    factory: str
    args: dict[str, Json] = field(default_factory=dict)
    validation: FactorySpec | None = None


@dataclass(frozen=True)
class TrainingSpec:
    """steps: number of optimizer updates; batch sizes in samples; clip_norm 0: no clipping."""

    steps: int
    global_batch_size: int
    micro_batch_size: int
    optimizer: FactorySpec
    clip_norm: float = 0.0
    validate_every: int = 0

    @property
    def microbatches(self) -> int:
        """G: micro-batches in the global batch."""
        return self.global_batch_size // self.micro_batch_size


@dataclass(frozen=True)
class PipelinesSpec:
    """count: D wanted; min, max: bounds of D; stages: P."""

    count: int
    stages: int
    min: int = 1
    max: int = 1

    def __post_init__(self) -> None:
        if self.max < self.count:
            object.__setattr__(self, "max", self.count)


@dataclass(frozen=True)
class PlacementSpec:
    """zones: those that may be used, in order of preference; empty: all."""

    adjacency: Adjacency = Adjacency.ALTERNATE
    zones: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckpointSpec:
    """uri: where; every_steps 0: only at the end and on suspend; keep: how many stay."""

    uri: str
    every_steps: int = 0
    keep: int = 2


@dataclass(frozen=True)
class WorkerSpec:
    """The agent's pod."""

    image: str
    resources: dict[str, Json] = field(default_factory=dict)
    env: tuple[dict[str, Json], ...] = ()
    grace_period_s: int = 15
    pod_template: dict[str, Json] = field(default_factory=dict)

    @property
    def asks(self) -> dict[str, Json]:
        """What one agent asks of a node, as the scheduler counts it: resource -> quantity."""
        limits, requests = self.resources.get("limits"), self.resources.get("requests")
        return (limits or {}) | (requests or {})


@dataclass(frozen=True)
class RunPolicy:
    """Seconds; 0: none. backoff_limit: failures of the user's code (not losses) that are borne."""

    ttl_s: int | None = None
    active_deadline_s: int = 0
    pending_deadline_s: int = 0
    backoff_limit: int = 3


@dataclass(frozen=True)
class JobSpec:
    """One BambooJob."""

    model: FactorySpec
    data: DataSpec
    training: TrainingSpec
    pipelines: PipelinesSpec
    worker: WorkerSpec
    checkpoint: CheckpointSpec | None = None
    numerics: Numerics = Numerics.CANONICAL
    seed: int = 0
    redundancy: RedundancyMode = field(default=RedundancyMode.NONE, metadata={"under": "mode"})
    recovery: RecoveryPolicy = field(default=RecoveryPolicy.DIFFUSE, metadata={"under": "policy"})
    placement: PlacementSpec = PlacementSpec()
    run_policy: RunPolicy = RunPolicy()
    suspend: bool = False


def from_manifest(manifest: Json) -> JobSpec | list[Problem]:
    """The spec of a BambooJob, or what is wrong with it (never an empty list).

    Checks what the API server's schema and CEL rules cannot see; a manifest that has not passed
    them is refused as well, with less friendly words.
    """
    spec = manifest.get("spec")
    if spec is None:
        return [Problem("spec", "is required; set it")]
    found = records.decode(JobSpec, spec, path="spec")
    if isinstance(found, list):
        return found
    return _problems(found) or found


def to_json(spec: JobSpec) -> str:
    """Canonical text: equal specs have equal texts."""
    return json.dumps(records.encode(spec), sort_keys=True, separators=(",", ":"))


def from_json(text: str) -> JobSpec:
    """Inverse of :func:`to_json`. ValueError names the field that is wrong."""
    found = records.decode(JobSpec, json.loads(text), path="spec")
    if isinstance(found, list):
        raise ValueError("; ".join(str(problem) for problem in found))
    return found


def identity(spec: JobSpec) -> str:
    """Text of the part that decides the result's bits: it must never change in a job's life."""
    training = spec.training
    return json.dumps(
        {
            "spec.model": records.encode(spec.model),
            "spec.data": records.encode(spec.data),
            "spec.training": records.encode(training),
            "spec.numerics": spec.numerics,
            "spec.seed": spec.seed,
        },
        sort_keys=True,
        separators=(",", ":"),
    )


def batch_shape(spec: JobSpec) -> canonical.BatchShape:
    """L and C for a job that starts; they belong to it for ever. ValueError if G < pipelines.max"""
    g, pipelines = spec.training.microbatches, spec.pipelines
    if spec.numerics is Numerics.FAST:
        return canonical.choose_fast(
            microbatches=g, pipelines=pipelines.count, pipelines_max=pipelines.max
        )
    return canonical.choose(
        microbatches=g,
        pipelines=pipelines.count,
        stages=pipelines.stages,
        pipelines_max=pipelines.max,
    )


def _problems(spec: JobSpec) -> list[Problem]:
    return [
        *(_count_problems(spec) or _batch_problems(spec)),
        *_resource_problems(spec),
        *_args_problems(spec),
        *podtemplate.problems(spec.worker.pod_template, path="spec.worker.podTemplate"),
    ]


def _count_problems(spec: JobSpec) -> list[Problem]:
    training, pipelines = spec.training, spec.pipelines
    counts = {
        "spec.training.steps": training.steps,
        "spec.training.globalBatchSize": training.global_batch_size,
        "spec.training.microBatchSize": training.micro_batch_size,
        "spec.pipelines.count": pipelines.count,
        "spec.pipelines.stages": pipelines.stages,
        "spec.pipelines.min": pipelines.min,
    }
    return [
        Problem(path, f"is {value}; it must be at least 1")
        for path, value in counts.items()
        if value < 1
    ]


def _resource_problems(spec: JobSpec) -> list[Problem]:
    return [
        Problem(f"spec.worker.resources.{key}", f"is {value!r}; it must be an object")
        for key in ("limits", "requests")
        if not isinstance(value := spec.worker.resources.get(key) or {}, dict)
    ]


def _batch_problems(spec: JobSpec) -> list[Problem]:
    training = spec.training
    if training.global_batch_size % training.micro_batch_size:
        text = (
            f"{training.global_batch_size} is no multiple of microBatchSize"
            f" {training.micro_batch_size}; choose a multiple"
        )
        return [Problem("spec.training.globalBatchSize", text)]
    try:
        batch_shape(spec)
    except ValueError as error:
        text = f"{error}; raise it, or lower microBatchSize or pipelines.max"
        return [Problem("spec.training.globalBatchSize", text)]
    return []


def _args_problems(spec: JobSpec) -> list[Problem]:
    factories = {
        "spec.model.args": spec.model.args,
        "spec.data.args": spec.data.args,
        "spec.training.optimizer.args": spec.training.optimizer.args,
    }
    if spec.data.validation is not None:
        factories["spec.data.validation.args"] = spec.data.validation.args
    return [
        Problem(path, f"{key!r} is no Python identifier; args are passed as keyword arguments")
        for path, args in factories.items()
        for key in args
        if not key.isidentifier()
    ]
