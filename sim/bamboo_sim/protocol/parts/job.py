"""Small jobs for the explorer, and their expected results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import count
from math import ceil, inf
from string import ascii_lowercase
from typing import Any

from bamboo_core.api.spec import (
    Adjacency,
    BestMode,
    BestSpec,
    CheckpointSpec,
    CorruptionMode,
    CorruptionSpec,
    DataSpec,
    FactorySpec,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    PipelinesSpec,
    PlacementSpec,
    RecoveryPolicy,
    RedundancyMode,
    RedundancySpec,
    RunPolicy,
    SourceSpec,
    TrainingSpec,
    WorkerSpec,
    batch_shape,
)
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import ArbiterJob, Timing
from bamboo_core.model.ids import AgentId
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.ties import Ties
from bamboo_core.protocol.messages import CommitRecord, LayerCost
from bamboo_core.scheduling.device_memory import Sizes, fits, need
from bamboo_core.scheduling.sharing.orders import sums_at_once
from bamboo_sim.protocol.parts.symbolic import Symbol, reference

LAST_WRITE_S = 90
"""For the last checkpoint; a job of users waits much longer."""


@dataclass(frozen=True)
class Job:
    pipelines: int
    stages: int
    microbatches: int  # per pipeline
    replica: bool = True
    steps: int = 3
    layers: int = 0  # 0: one for each stage
    spares: int = 0  # agents beyond the grid that may join
    save_every: int = 0  # 0: no checkpoints
    salted: bool = False  # attempts differ in their numerics, so that a mixture of two is detected
    learners: bool = False  # new agents catch up while the others train
    total: int = 0  # micro-batches of a step after a change of the grid; 0: D x microbatches
    policy: RecoveryPolicy = RecoveryPolicy.AUTO
    zones: int = 0  # ring neighbours are in different ones; 0: all agents in one
    profiled: bool = False  # agents report costs for which full grids split their backward
    kept: tuple[int, int] = (0, 0)  # L and C, if an operator of an earlier version began the job
    evals: int = 0  # micro-batches of the validation set; 0: there is none
    validate_every: int = 0  # steps; 0: only at the end
    eager: bool = False  # replicas compute forwards ahead
    room: int = 0  # for so many of them in an agent's memory; 0: for all of a step
    checked: bool = False  # they are compared with the owners'
    tied: bool = False  # the first layer and the last one have a parameter in common
    check_every: int = 0  # steps between two checks of an agent's own sum; 0: there are none
    begins_at: int = 0  # with another job's checkpoint of this step; 0: with none
    issues: int = 1  # instructions that a device may have at a time
    best_is: BestMode | None = None  # None: no checkpoint is the best one

    def __str__(self) -> str:
        mode = self.mode.value
        extra = f" +{self.spares}" if self.spares else ""
        extra += " learning" if self.learners else ""
        extra += f" save/{self.save_every}" if self.save_every else ""
        extra += f" from {self.begins_at}" if self.begins_at else ""
        extra += f" {self.zones} zones" if self.zones else ""
        extra += f" {self.layers} layers" if self.layers else ""
        extra += f" {self.steps} steps" if self.steps != 3 else ""
        extra += " checked" if self.checked else ""
        extra += " tied" if self.tied else ""
        extra += f" best {self.best_is}" if self.best_is else ""
        extra += f" own/{self.check_every}" if self.check_every else ""
        extra += f" issues {self.issues}" if self.issues > 1 else ""
        extra += " profiled" if self.profiled else ""
        extra += f" L{self.kept[0]} C{self.kept[1]}" if any(self.kept) else ""
        extra += f" {self.evals} evals/{self.validate_every}" if self.evals else ""
        extra += f" room {self.room}" if self.room else ""
        extra += f" {self.policy}" if self.policy is not RecoveryPolicy.AUTO else ""
        return f"{self.pipelines}x{self.stages} M={self.microbatches} {mode}{extra}"

    @property
    def mode(self) -> RedundancyMode:
        if self.eager:
            return RedundancyMode.EAGER
        return RedundancyMode.REPLICA if self.replica else RedundancyMode.NONE

    @property
    def redundancy(self) -> RedundancySpec:
        if not self.room:
            return RedundancySpec(self.mode)
        return RedundancySpec(self.mode, str(self.room * ceil(self.num_layers / self.stages)))

    @property
    def corruption(self) -> CorruptionSpec:
        if self.check_every:
            return CorruptionSpec(CorruptionMode.DETECT, 1 / self.check_every)
        return CorruptionSpec(CorruptionMode.DETECT) if self.checked else CorruptionSpec()

    @property
    def checkpoint(self) -> CheckpointSpec | None:
        if not self.save_every:
            return None
        source = SourceSpec(job="another") if self.begins_at else None
        return CheckpointSpec("file:///c", self.save_every, best=self.best, from_=source)

    @property
    def best(self) -> BestSpec | None:
        return BestSpec(mode=self.best_is) if self.best_is is not None else None

    @property
    def num_layers(self) -> int:
        return self.layers or self.stages

    @cached_property
    def agents(self) -> tuple[AgentId, ...]:
        count = self.pipelines * self.stages + self.spares
        return tuple(AgentId(f"a{i:02d}") for i in range(count))

    @property
    def at_start(self) -> tuple[AgentId, ...]:
        return self.agents[: self.pipelines * self.stages]

    def zone(self, name: AgentId) -> str:
        """The agent's zone: neighbours and copies of a stage apart, new agents in turn."""
        if not self.zones:
            return "z"
        number = int(name.lstrip(ascii_lowercase))
        if name in self.at_start:
            number = sum(divmod(number, self.stages))
        return f"z{number % self.zones}"

    @property
    def costs(self) -> tuple[LayerCost, ...]:
        """The agents' measured costs; () if nothing depends on them."""
        if self.room:
            return (LayerCost(1.0, 2.0, 1, 1, activation_bytes=1),) * self.num_layers
        cost = LayerCost(
            1.0, 2.0, 1, 1, input_gradient_s=1.0, weight_gradient_s=1.0, can_split=True
        )
        return (cost,) * self.num_layers if self.profiled else ()

    @property
    def ties(self) -> Ties:
        """Layers with a parameter in common."""
        return ((0, self.num_layers - 1),) if self.tied and self.num_layers > 1 else ()

    @property
    def facts(self) -> Durable:
        """The facts of the job before its first operator leads."""
        if not any(self.kept):
            return Durable()
        total = self.total or self.pipelines * self.microbatches
        return Durable(batch=BatchShape(total, *self.kept))

    @cached_property
    def memory_bytes(self) -> int:
        """The smallest device on which ``room`` forwards ahead fit, with the help of host memory,
        while one pipeline is left. 0: it is not known, and any number fits."""
        if not self.room:
            return 0
        spec = self.arbiter_job.spec
        batch, each = batch_shape(spec), ceil(self.num_layers / self.stages)
        sizes = Sizes(
            self.stages,
            batch.microbatches,
            parameter_bytes=each,
            layer_bytes=1,
            activation_bytes=each,
            boundary_bytes=1,
            sums=sums_at_once(batch, 1),
        )

        def has_room(memory_bytes: int) -> bool:
            host_memory_bytes = spec.redundancy.host_memory_bytes
            found = need(
                sizes, self.mode, memory_bytes=memory_bytes, host_memory_bytes=host_memory_bytes
            )
            return fits(found, memory_bytes) and found.ahead >= self.room

        return next(filter(has_room, count(1)))

    @cached_property
    def arbiter_job(self) -> ArbiterJob:
        spec = JobSpec(
            model=ModelSpec("model:make"),
            data=DataSpec(
                "data:make", validation=FactorySpec("data:validation") if self.evals else None
            ),
            training=TrainingSpec(
                steps=self.steps,
                global_batch_size=self.total or self.pipelines * self.microbatches,
                micro_batch_size=1,
                optimizer=OptimizerSpec("optim:make"),
                validate_every=self.validate_every,
            ),
            pipelines=PipelinesSpec(count=self.pipelines, stages=self.stages),
            worker=WorkerSpec("image"),
            checkpoint=self.checkpoint,
            redundancy=self.redundancy,
            corruption=self.corruption,
            recovery=self.policy,
            placement=PlacementSpec(Adjacency.ALTERNATE if self.zones else Adjacency.CLUSTER),
            run_policy=RunPolicy(last_write_deadline_s=LAST_WRITE_S),
        )
        catch_up_above_bytes = -1.0 if self.learners else inf
        timing = Timing(join_grace_s=0.0, catch_up_above_bytes=catch_up_above_bytes)
        return ArbiterJob("explore/job", "uid", spec, "{}", timing)

    def expected(self, batch: BatchShape, salts: tuple[int, ...]) -> Reference:
        """Versions and commit records of the undisturbed run."""
        key = (self.num_layers, batch, self.steps, salts, self.evals, self.ties)
        if key not in _REFERENCES:
            _REFERENCES[key] = reference(
                layers=self.num_layers,
                batch=batch,
                steps=self.steps,
                salts=dict(enumerate(salts)),
                evals=self.evals,
                ties=self.ties,
            )
        return _REFERENCES[key]

    @property
    def origin(self) -> tuple[Symbol, ...]:
        """The layers with which the job begins."""
        batch = batch_shape(self.arbiter_job.spec)
        return tuple(self.expected(batch, (0,) * self.steps)[0][self.begins_at])

    def is_validated(self, step: int) -> bool:
        """Whether the validation loss of the version that the step begins with is wanted."""
        every = self.validate_every
        return self.evals > 0 and (step == self.steps or (every > 0 and step % every == 0))


@cache
def regridded(job: Job, pipelines: int, stages: int) -> Job:
    """The same job on another grid. Cached, since plans are cached by the identity of the spec."""
    return replace(
        job,
        pipelines=pipelines,
        stages=stages,
        layers=job.num_layers,
        total=job.total or job.pipelines * job.microbatches,
    )


@cache
def raised(job: Job, steps: int) -> Job:
    """The same job with more steps. Cached as :func:`regridded`."""
    return replace(job, steps=steps)


Reference = tuple[list[list[Symbol]], list[CommitRecord]]
_REFERENCES: dict[tuple[Any, ...], Reference] = {}
