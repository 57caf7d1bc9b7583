"""The steps of a job with empty seats, by the planner that the operator runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bamboo_core.api.spec import (
    Adjacency,
    DataSpec,
    FactorySpec,
    JobSpec,
    PipelinesSpec,
    PlacementSpec,
    RedundancyMode,
    RedundancySpec,
    TrainingSpec,
    TransportSpec,
    WorkerSpec,
    batch_shape,
)
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item
from bamboo_core.placement import moves
from bamboo_core.placement.plan import Cut, Move, layers_of, wants
from bamboo_core.placement.seats import Seats
from bamboo_core.planning import planner
from bamboo_core.planning.requests import (
    Continuations,
    Decision,
    Participant,
    PlanRequest,
    PlanResult,
    Relocation,
)
from bamboo_core.protocol.messages import AgentReport, CommitRecord, LayerCost
from bamboo_core.scheduling.costs import Costs, transfers
from bamboo_core.scheduling.dry_run import dry_run
from bamboo_core.scheduling.item_bytes import wire_times

_TARGET, _STEPS = 1, 1000
_BEFORE, _FENCE = Fence(1, 1, 1), Fence(1, 1, 2)

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
            model=FactorySpec("model:make"),
            data=DataSpec("data:make"),
            training=TrainingSpec(
                steps=_STEPS,
                global_batch_size=self.microbatches,
                micro_batch_size=1,
                optimizer=FactorySpec("optim:make"),
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
    spec, cut = job.spec, job.cut
    agents = sorted(a for p in seats for a in p if a is not None)
    held = wants(pipelines=seats, cut=cut, live=agents, mode=spec.redundancy.mode, holders={})
    done = (CommitRecord(_TARGET - 1),)
    return PlanRequest(
        fence=_FENCE,
        spec=spec,
        batch=batch_shape(spec),
        layers=job.stages,
        costs=job.costs,
        validation_samples=0,
        pipelines=job.pipelines,
        grid=seats,
        cut=cut,
        step_cut=cut,
        target=_TARGET,
        participants={a: Participant("", a, "", "", b"") for a in agents},
        reports={
            a: AgentReport(
                _FENCE,
                _BEFORE,
                dict.fromkeys(layers_of(held[a]), _TARGET),
                frozenset(),
                done,
                _TARGET - 1,
            )
            for a in agents
        },
        draining=frozenset(),
        short_notice=frozenset(),
        manifests=(),
        base=-1,
        has_voter=True,
        is_full=False,
        is_last=False,
        memory_bytes=job.memory_bytes,
    )


def step(job: PlannedJob, seats: Seats) -> float:
    """Length of each later step: the dry run of the planner's programs with the job's network."""
    asked = request(job, seats)
    decision, rest = _plan(planner.compute(asked))
    return _length(job, asked, decision, rest)


def best_move(job: PlannedJob, seats: Seats) -> tuple[float, float, Move | None]:
    """Length of each later step before and after the move that the planner advises, and the move.

    None: it advises none; then both are equal.
    """
    asked = request(job, seats)
    results = planner.compute(asked)
    decision, rest = _plan(results)
    before = _length(job, asked, decision, rest)
    found = next(results, None)
    if not isinstance(found, Relocation):
        return before, before, None
    return before, step(job, moves.moved(seats, found.move)), found.move


def _plan(results: Iterator[PlanResult]) -> tuple[Decision, Continuations]:
    decision, rest = next(results), next(results)
    assert isinstance(decision, Decision), decision
    assert isinstance(rest, Continuations), rest
    return decision, rest


def _length(job: PlannedJob, asked: PlanRequest, decision: Decision, rest: Continuations) -> float:
    wanted = decision.plan.wants
    held = {a: [Item.ver(0, x) for x in layers_of(found)] for a, found in wanted.items()}
    sums = transfers(job.costs, job.cut, job.spec.transport.bytes_per_s)
    return dry_run(
        {agent: told.steady for agent, told in rest.directives.items()},
        batch=asked.batch,
        layers=job.stages,
        holdings=held,
        costs=Costs.measured(job.costs),
        wire=wire_times(dict(zip(job.cut, sums, strict=True))),
    ).end
