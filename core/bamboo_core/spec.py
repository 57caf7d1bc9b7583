"""The job's specification as frozen types: what a BambooJob says, with every default filled in.

`from_manifest` reads a manifest (after the API server's own validation) and returns either a
JobSpec or the list of its problems; `to_json`/`from_json` carry the frozen spec to the agents.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Json = Any
"""A JSON value (None, bool, int, float, str, list, dict)."""


class Numerics(StrEnum):
    """How gradients are summed (DESIGN section 5)."""

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
    redundancy: RedundancyMode = RedundancyMode.NONE
    recovery: RecoveryPolicy = RecoveryPolicy.DIFFUSE
    placement: PlacementSpec = PlacementSpec()
    run_policy: RunPolicy = RunPolicy()
    suspend: bool = False
