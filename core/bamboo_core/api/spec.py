"""The job's spec as frozen types: a BambooJob with every default filled in.

:mod:`bamboo_core.validation.reading` makes one from a manifest. :func:`to_json` and
:func:`from_json` carry it to the agents, with the field names of the custom resource.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from bamboo_core.api import quantities, records
from bamboo_core.model import numerics as canonical

Json = Any
"""A JSON value (None, bool, int, float, str, list, dict)."""

AGENT_CONTAINER = "agent"
"""Name of the agent's container. A pod template may extend it and add other containers."""


class Numerics(StrEnum):
    """How gradients are summed: in leaves small enough to spread lost work, or each pipeline's
    share as a whole."""

    CANONICAL = "Canonical"
    FAST = "Fast"


class RedundancyMode(StrEnum):
    """What an agent keeps and computes of its ring successor's stage."""

    NONE = "None"
    REPLICA = "Replica"  # a copy of its weights and optimizer state
    EAGER = "Eager"  # also its forwards, computed while the agent waits
    AUTO = "Auto"  # one of the others, by a cost model; plans never have it

    @property
    def keeps_copies(self) -> bool:
        """Whether agents hold their successor's stage; in Auto they may."""
        return self is not RedundancyMode.NONE


class RecoveryPolicy(StrEnum):
    """How a lost agent's work is shared. Auto: in the way by which the step is the shortest."""

    AUTO = "Auto"
    SHADOW = "Shadow"
    PEERS = "Peers"
    DIFFUSE = "Diffuse"

    @property
    def relieves_slow(self) -> bool:
        """Whether slow agents give work to others although no seat is empty."""
        return self in (RecoveryPolicy.AUTO, RecoveryPolicy.DIFFUSE)


class Channel(StrEnum):
    """What carries large tensors between agents."""

    AUTO = "Auto"
    TCP = "Tcp"
    PROCESS_GROUP = "ProcessGroup"


class Encryption(StrEnum):
    """Whether agents encrypt what they send each other. AUTO: over tcp."""

    AUTO = "Auto"
    OFF = "Off"


class CorruptionMode(StrEnum):
    """What is done to find wrong bits that no error tells of."""

    OFF = "Off"
    DETECT = "Detect"


class Adjacency(StrEnum):
    """Placement of ring neighbours: never in one zone, or together where possible."""

    ALTERNATE = "Alternate"
    CLUSTER = "Cluster"


class NoticeSource(StrEnum):
    """Where an agent asks whether its node will go away."""

    AUTO = "Auto"  # those of the cloud whose metadata server answers
    NONE = "None"  # nowhere; there is still SIGTERM
    GCE = "Gce"
    AWS_SPOT = "AwsSpot"
    AWS_REBALANCE = "AwsRebalance"  # only a hint
    AZURE = "Azure"

    @property
    def stands_alone(self) -> bool:
        """Whether it cannot be combined with others."""
        return self in (NoticeSource.AUTO, NoticeSource.NONE)


@dataclass(frozen=True)
class FactorySpec:
    """``factory`` is "module:function", called with ``args`` as keyword arguments."""

    factory: str
    args: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class DataSpec:
    """``factory`` returns the training set, ``validation`` the validation set, if any."""

    factory: str
    args: dict[str, Json] = field(default_factory=dict)
    validation: FactorySpec | None = None


@dataclass(frozen=True)
class OnNonFinite:
    """What happens to steps whose gradient is not finite: they change no layer."""

    skip: int = 10  # in a row; one more fails the job


@dataclass(frozen=True)
class TrainingSpec:
    """Batch sizes are in samples."""

    steps: int
    global_batch_size: int
    micro_batch_size: int
    optimizer: FactorySpec
    clip_norm: float = 0.0  # 0: no clipping
    validate_every: int = 0  # steps; 0: never
    on_non_finite: OnNonFinite = OnNonFinite()

    @property
    def microbatches(self) -> int:
        """G: micro-batches in the global batch."""
        return self.global_batch_size // self.micro_batch_size


@dataclass(frozen=True)
class PipelinesSpec:
    """The grid."""

    count: int  # D wanted
    stages: int  # P
    min: int = 1  # with fewer pipelines the job waits
    max: int = 1  # count may rise to this

    def __post_init__(self) -> None:
        if self.max < self.count:
            object.__setattr__(self, "max", self.count)


@dataclass(frozen=True)
class PoolSpec:
    """Nodes with these labels in these zones; there may be none yet."""

    zones: tuple[str, ...]
    node_selector: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class OnDemandSpec:
    """When agents may use nodes that are not spot nodes; until then they use spot nodes only."""

    after_s: int = 600  # without a spot node for some agent
    max_share: float = 0.25  # of all agents, rounded down
    # Labels of these nodes; of those in the pod template they replace the ones of the same name.
    node_selector: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class PlacementSpec:
    """zones: usable ones in order of preference; empty: those of the pools, or else all."""

    adjacency: Adjacency = Adjacency.ALTERNATE
    zones: tuple[str, ...] = ()
    pools: tuple[PoolSpec, ...] = ()
    on_demand: OnDemandSpec | None = None  # None: any node will do

    @property
    def named_zones(self) -> tuple[str, ...]:
        """The only usable zones, in order of preference; empty: all."""
        return self.zones or tuple(zone for pool in self.pools for zone in pool.zones)

    def selector(self, zone: str, *, on_demand: bool = False) -> dict[str, Json]:
        """Labels that an agent's node must have in the zone, beside those of the pod template.

        on_demand: of an agent that need not be on a spot node, if the job prefers them.
        """
        if on_demand and self.on_demand is not None:
            return self.on_demand.node_selector
        return next((pool.node_selector for pool in self.pools if zone in pool.zones), {})


@dataclass(frozen=True)
class RedundancySpec:
    """host_memory: of one agent, for forwards computed ahead and for replicas; a quantity."""

    mode: RedundancyMode = RedundancyMode.NONE
    host_memory: str = "8Gi"

    @property
    def host_memory_bytes(self) -> int:
        """Bytes; ValueError if it is not a quantity."""
        return int(quantities.parse(self.host_memory))


@dataclass(frozen=True)
class TransportSpec:
    """How items travel between agents. bandwidth_gbps: of the network between two agents."""

    channel: Channel = Channel.AUTO
    encryption: Encryption = Encryption.AUTO
    bandwidth_gbps: float = 10.0

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth."""
        return self.bandwidth_gbps * 1e9 / 8


@dataclass(frozen=True)
class CorruptionSpec:
    """sample: share of the work that an agent computes twice."""

    mode: CorruptionMode = CorruptionMode.OFF
    sample: float = 0.01

    @property
    def check_every(self) -> int:
        """Steps between two checks of one layer or micro-batch; 0: there are none."""
        return round(1 / self.sample) if self.mode is CorruptionMode.DETECT else 0


@dataclass(frozen=True)
class CheckpointSpec:
    """Where and when checkpoints are written."""

    uri: str
    every_steps: int = 0  # 0: only at the end and on suspend
    keep: int = 2  # number of complete ones


@dataclass(frozen=True)
class RestoreSpec:
    """An order to go on from an older checkpoint. Each id is carried out once."""

    id: str
    from_step: int  # 0: the start


@dataclass(frozen=True)
class WorkerSpec:
    """The agent's pod. In ``pod_template`` null is as if the field were not there, as the API
    server sees it: null must not undo a default."""

    image: str
    resources: dict[str, Json] = field(default_factory=dict)
    env: tuple[dict[str, Json], ...] = ()
    grace_period_s: int = 15
    pod_template: dict[str, Json] = field(default_factory=dict)
    notices: tuple[NoticeSource, ...] = (NoticeSource.AUTO,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pod_template", records.without_nulls(self.pod_template))

    @property
    def asks(self) -> dict[str, Json]:
        """Resource -> quantity that one agent needs of a node, as the scheduler counts."""
        limits, requests = self.resources.get("limits"), self.resources.get("requests")
        return (limits or {}) | (requests or {})


@dataclass(frozen=True)
class RunPolicy:
    """Limits in seconds; 0: none."""

    ttl_s: int | None = None
    active_deadline_s: int = 0
    pending_deadline_s: int = 0
    start_deadline_s: int = 1800  # of one agent, from its first contact until it is ready
    last_write_deadline_s: int = 3600  # to write the last checkpoint, once all else is done; >= 1
    backoff_limit: int = 3  # failures tolerated that are not forgiven; losses do not count
    node_failure_limit: int = 2  # such failures on one node until it is avoided; 0: never
    forgive_after_steps: int = 100  # committed after a failure; 0: never


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
    redundancy: RedundancySpec = RedundancySpec()
    recovery: RecoveryPolicy = field(default=RecoveryPolicy.AUTO, metadata={"under": "policy"})
    placement: PlacementSpec = PlacementSpec()
    transport: TransportSpec = TransportSpec()
    corruption: CorruptionSpec = CorruptionSpec()
    run_policy: RunPolicy = RunPolicy()
    suspend: bool = False
    restore: RestoreSpec | None = None

    @property
    def least_zones(self) -> int:
        """In fewer zones, some ring neighbours would share one although they must not."""
        stages = self.pipelines.stages
        if self.placement.adjacency is Adjacency.CLUSTER or stages == 1:
            return 1
        return 3 if stages % 2 else 2


def to_json(spec: JobSpec) -> str:
    """Canonical: equal specs give equal texts."""
    return json.dumps(records.encode(spec), sort_keys=True, separators=(",", ":"))


def from_json(text: str) -> JobSpec:
    """Inverse of :func:`to_json`. ValueError names the field that is wrong."""
    found = records.decode(JobSpec, json.loads(text), path="spec")
    if isinstance(found, list):
        raise ValueError("; ".join(str(problem) for problem in found))
    return found


def identity(spec: JobSpec) -> str:
    """Text of the part that decides the bits of the result. It never changes in a job's life."""
    training = records.encode(spec.training)
    del training[records.name_of("on_non_finite")]  # says when to give up
    return json.dumps(
        {
            "spec.model": records.encode(spec.model),
            "spec.data": records.encode(spec.data),
            "spec.training": training,
            "spec.numerics": spec.numerics,
            "spec.seed": spec.seed,
        },
        sort_keys=True,
        separators=(",", ":"),
    )


def identity_hash(spec: JobSpec) -> str:
    """Hash of :func:`identity`."""
    return hashlib.sha256(identity(spec).encode()).hexdigest()[:32]


def batch_shape(spec: JobSpec) -> canonical.BatchShape:
    """L and C for a new job, which keeps them for ever. ValueError if it has fewer leaves than
    ``pipelines.max``.

    ``numerics`` makes no difference: fewer, larger leaves save nothing (ADR 50).
    """
    return canonical.choose(
        microbatches=spec.training.microbatches, pipelines_max=spec.pipelines.max
    )
