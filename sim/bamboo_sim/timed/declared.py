"""What a timed run is told: the model's layers, the grid, devices, links and delays.

Times are in seconds, sizes in bytes, bandwidths in bytes per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from bamboo_core.api.spec import (
    Adjacency,
    DataSpec,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    PipelinesSpec,
    PlacementSpec,
    RedundancyMode,
    RedundancySpec,
    TrainingSpec,
    TransportSpec,
    WorkerSpec,
)
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import LayerCost

_MOST_GBPS = 100_000.0  # that a spec may say


@dataclass(frozen=True)
class Links:
    """Each agent has one network interface, which sends, and receives, one item after the other."""

    bandwidth: float = inf  # of an interface
    latency_s: float = 0.0
    zone_bandwidth: float = inf  # of one transfer between zones
    zone_latency_s: float = 0.0  # more latency between zones


@dataclass(frozen=True)
class Device:
    """An accelerator and its host.

    memory_bandwidth: what FOLD, REDUCE, VOTE and UPDATE run at, since they only read and write.
    """

    memory_bytes: int = 0  # 0: unlimited
    memory_bandwidth: float = inf
    host_bandwidth: float = inf  # of copies between device and host


@dataclass(frozen=True)
class Delays:
    """What a loss costs besides instructions and messages between agents."""

    detection_s: float = 0.0  # from an agent's end until the arbiter knows
    message_s: float = 0.0  # between operator and agent, each way
    persist_s: float = 0.0  # until facts are durable
    decision_s: float = 0.0  # of the planner, until the programs of the interrupted step are ready
    continuation_s: float = 0.0  # from then until those of the later steps are


@dataclass(frozen=True)
class TimedJob:
    """A job on declared hardware. Agent i is in zone (d + s) mod ``zones`` of its first seat."""

    pipelines: int
    stages: int
    microbatches: int  # of each pipeline
    layers: tuple[LayerCost, ...]
    mode: RedundancyMode = RedundancyMode.NONE
    steps: int = 1000
    zones: int = 1
    links: Links = field(default_factory=Links)
    device: Device = field(default_factory=Device)
    delays: Delays = field(default_factory=Delays)
    slowness: Mapping[AgentId, float] = field(default_factory=dict)  # factor on times; absent: 1
    host_memory: str = RedundancySpec.host_memory  # what the planner may use of each agent's

    def __post_init__(self) -> None:
        if len(self.layers) < self.stages:
            raise ValueError(
                f"{len(self.layers)} layers cannot be cut into {self.stages} stages: declare more"
                " layers or fewer stages"
            )

    @property
    def agents(self) -> tuple[AgentId, ...]:
        """One for each seat of the first plan."""
        width = len(str(self.pipelines * self.stages - 1))
        return tuple(AgentId(f"a{i:0{width}d}") for i in range(self.pipelines * self.stages))

    def zone(self, agent: AgentId) -> str:
        """The agent's zone."""
        return f"z{sum(divmod(int(agent[1:]), self.stages)) % self.zones}"

    @property
    def spec(self) -> JobSpec:
        """The job as the arbiter gets it."""
        return JobSpec(
            model=ModelSpec("model:make"),
            data=DataSpec("data:make"),
            training=TrainingSpec(
                steps=self.steps,
                global_batch_size=self.pipelines * self.microbatches,
                micro_batch_size=1,
                optimizer=OptimizerSpec("optim:make"),
            ),
            pipelines=PipelinesSpec(count=self.pipelines, stages=self.stages),
            worker=WorkerSpec("image"),
            redundancy=RedundancySpec(self.mode, self.host_memory),
            placement=PlacementSpec(Adjacency.ALTERNATE if self.zones > 1 else Adjacency.CLUSTER),
            transport=TransportSpec(bandwidth_gbps=min(_MOST_GBPS, self.links.bandwidth * 8 / 1e9)),
        )
