"""The job's spec as frozen types: a BambooJob with every default filled in.

:mod:`bamboo_core.validation.reading` makes one from a manifest. :func:`to_json` and
:func:`from_json` carry it to the agents, with the field names of the custom resource.
"""

from __future__ import annotations

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


class Precision(StrEnum):
    """In what layers compute. Weights, sums of gradients and optimizers are in fp32 (unless a model
    brings others)."""

    FLOAT32 = "Float32"
    TF32 = "TF32"  # fp32, but products on a GPU round their factors to TF32
    BFLOAT16 = "BFloat16"  # by torch's autocast


class Clipping(StrEnum):
    """Of which norm ``clip_norm`` is the limit: that of the whole gradient, or that of each group
    of parameters, over all layers."""

    WHOLE = "Whole"
    PER_GROUP = "PerGroup"


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
class ModelSpec(FactorySpec):
    """``factory`` returns the model. initial_from: address of the files with its first weights;
    None: they come from the seed."""

    initial_from: str | None = None


@dataclass(frozen=True)
class DataSpec:
    """``factory`` returns the training set, ``validation`` the validation set, if any. workers:
    processes of each agent that read samples ahead; 0: the agent reads them when it needs them."""

    factory: str
    args: dict[str, Json] = field(default_factory=dict)
    validation: FactorySpec | None = None
    workers: int = 0


@dataclass(frozen=True)
class ParameterGroup:
    """parameters: patterns (as of files) of names within a layer. args: of the optimizer's factory,
    for these parameters instead of its own."""

    parameters: tuple[str, ...]
    args: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class OptimizerSpec(FactorySpec):
    """groups: the first one that matches a parameter decides. schedule: its factory returns a
    function of the step, by which each group's own rate is multiplied."""

    groups: tuple[ParameterGroup, ...] = ()
    schedule: FactorySpec | None = None


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
    optimizer: OptimizerSpec
    clip_norm: float = 0.0  # 0: no clipping
    validate_every: int = 0  # steps; 0: never
    on_non_finite: OnNonFinite = OnNonFinite()
    clip: Clipping = Clipping.WHOLE
    precision: Precision = Precision.FLOAT32

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


class BestMode(StrEnum):
    """Which value of a metric is the best one."""

    MIN = "Min"
    MAX = "Max"


@dataclass(frozen=True)
class BestSpec:
    """What makes one checkpoint the best. metric: of the validation."""

    metric: str = "loss"
    mode: BestMode = BestMode.MIN

    @property
    def is_max(self) -> bool:
        """Whether a greater value is better."""
        return self.mode is BestMode.MAX


class Difference(StrEnum):
    """What may be changed in a job that goes on where another one was."""

    CODE = "Code"  # the source of the factories
    DATA = "Data"  # the samples


@dataclass(frozen=True)
class SourceSpec:
    """A checkpoint of another job. uri: address of a checkpoint's folder, an attempt's or a job's.
    job: UID of a job whose folder is beside this one's. One of the two is set. None: the newest.
    accept: what the user has changed since then."""

    uri: str | None = None
    job: str | None = None
    attempt: int | None = None
    step: int | None = None
    accept: tuple[Difference, ...] = ()

    def address(self, checkpoints: str) -> str:
        """The address of the folder that is named. checkpoints: this job's spec.checkpoint.uri."""
        if self.uri is not None:
            return self.uri.rstrip("/")
        return f"{checkpoints.rstrip('/')}/{self.job}"


@dataclass(frozen=True)
class CheckpointSpec:
    """Where and when checkpoints are written. from_: what the job begins with instead of step 0."""

    uri: str
    every_steps: int = 0  # 0: only at the end and on suspend
    keep: int = 2  # number of complete ones
    best: BestSpec | None = None  # the best one is kept beside them; None: there is no best one
    from_: SourceSpec | None = None


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

    model: ModelSpec
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
    hooks: tuple[FactorySpec, ...] = ()  # each returns an object that is told committed steps

    @property
    def best(self) -> BestSpec | None:
        """The rule for the best checkpoint; None: the job has none."""
        return self.checkpoint.best if self.checkpoint is not None else None

    @property
    def save_every(self) -> int:
        """Steps between two checkpoints; 0: they are written only at the end and on suspend.

        With ``checkpoint.best`` each step that is validated has one. The numbers of steps divide
        each other, so the smaller one is both.
        """
        if self.checkpoint is None:
            return 0
        periods = [self.checkpoint.every_steps]
        if self.best is not None:
            periods.append(self.training.validate_every)
        return min((n for n in periods if n), default=0)

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


def batch_shape(spec: JobSpec) -> canonical.BatchShape:
    """L and C for a new job, which keeps them for ever. ValueError if it has fewer leaves than
    ``pipelines.max``.

    ``numerics`` makes no difference: fewer, larger leaves save nothing (ADR 50).
    """
    return canonical.choose(
        microbatches=spec.training.microbatches, pipelines_max=spec.pipelines.max
    )
