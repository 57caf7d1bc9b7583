"""The steps of a job with empty seats, by the planner that the operator runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
from bamboo_core.placement import moves
from bamboo_core.placement.plan import Cut, Move
from bamboo_core.placement.seats import Seats
from bamboo_core.planning import planner
from bamboo_core.planning.displays import between_steps
from bamboo_core.planning.displays.between_steps import Later
from bamboo_core.planning.requests import PlanRequest, PlanResult, Relocation
from bamboo_core.protocol.messages import LayerCost

_STEPS = 1000

Lost = Sequence[tuple[int, int]]
"""(pipeline, stage) of each lost agent."""


@dataclass(frozen=True)
class PlannedJob:
    """A job in mode Replica with one layer per stage, all alike. gbps: what its manifest says."""

    pipelines: int
    stages: int
    microbatches: int  # of all pipelines
    layer: LayerCost
    gbps: float
    memory_bytes: int = 80 * 10**9  # of a device

    @property
    def spec(self) -> JobSpec:
        """The job as its user asks for it. Zones do not matter."""
        return JobSpec(
            model=ModelSpec("model:make"),
            data=DataSpec("data:make"),
            training=TrainingSpec(
                steps=_STEPS,
                global_batch_size=self.microbatches,
                micro_batch_size=1,
                optimizer=OptimizerSpec("optim:make"),
            ),
            pipelines=PipelinesSpec(count=self.pipelines, stages=self.stages),
            worker=WorkerSpec("image"),
            redundancy=RedundancySpec(RedundancyMode.REPLICA),
            placement=PlacementSpec(Adjacency.CLUSTER),
            transport=TransportSpec(bandwidth_gbps=self.gbps),
        )

    @property
    def costs(self) -> tuple[LayerCost, ...]:
        """One per stage."""
        return (self.layer,) * self.stages

    @property
    def cut(self) -> Cut:
        """One layer per stage."""
        return tuple((s, s + 1) for s in range(self.stages))

    def seats(self, lost: Lost = (), *, pipelines: int = 0) -> Seats:
        """The grid after these losses. pipelines: default: as many as the job asks for."""
        gone = set(lost)
        return tuple(
            tuple(None if (d, s) in gone else AgentId(f"{d}-{s}") for s in range(self.stages))
            for d in range(pipelines or self.pipelines)
        )


def request(job: PlannedJob, seats: Seats) -> PlanRequest:
    """The question after agents have stopped between two steps. Each holds what it wants."""
    return between_steps.request(job.spec, job.costs, job.cut, seats, memory_bytes=job.memory_bytes)


def step(job: PlannedJob, seats: Seats) -> float:
    """Length of each later step: the dry run of the planner's programs with the job's network."""
    asked = request(job, seats)
    return between_steps.length(asked, _later(planner.compute(asked)))


def best_move(job: PlannedJob, seats: Seats) -> tuple[float, float, Move | None]:
    """Length of each later step before and after the move that the planner advises, and the move.

    None: it advises none; then both are equal.
    """
    asked = request(job, seats)
    results = planner.compute(asked)
    before = between_steps.length(asked, _later(results))
    found = next(results, None)
    if not isinstance(found, Relocation):
        return before, before, None
    return before, step(job, moves.moved(seats, found.move)), found.move


def _later(results: Iterator[PlanResult]) -> Later:
    answer = between_steps.later(results)
    assert answer is not None, "no layer is lost"
    return answer
