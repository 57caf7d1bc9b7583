"""Grids, holdings and normal steps for the planning tests; one layer a stage."""

from __future__ import annotations

from dataclasses import dataclass, field

from bamboo_core import graph, plan, schedule, verify, workmap
from bamboo_core.costs import Costs
from bamboo_core.graph import Goals, Periodic, TaskGraph
from bamboo_core.ids import AgentId
from bamboo_core.items import Item, Kind
from bamboo_core.numerics import BatchShape
from bamboo_core.spec import RecoveryPolicy, RedundancyMode


def name(pipeline: int, stage: int) -> AgentId:
    return AgentId(f"{pipeline}-{stage}")


def seats(pipelines, stages, lost=()):
    return tuple(
        tuple(None if (d, s) in lost else name(d, s) for s in range(stages))
        for d in range(pipelines)
    )


@dataclass(frozen=True)
class Step:
    """An undisturbed step of a grid in which some seats may be empty."""

    batch: BatchShape
    pipelines: int = 2
    stages: int = 4
    lost: tuple[tuple[int, int], ...] = ()
    split: bool = False
    mode: RedundancyMode = RedundancyMode.REPLICA
    policy: RecoveryPolicy = RecoveryPolicy.DIFFUSE
    periodic: Periodic = field(default_factory=Periodic)

    @property
    def seats(self):
        return seats(self.pipelines, self.stages, self.lost)

    @property
    def live(self):
        return sorted(a for pipeline in self.seats for a in pipeline if a is not None)

    @property
    def cut(self):
        return tuple((s, s + 1) for s in range(self.stages))

    @property
    def wants(self):
        return plan.wants(
            pipelines=self.seats, cut=self.cut, live=self.live, mode=self.mode, holders={}
        )

    @property
    def holders(self):
        wants = self.wants
        return [
            [a for a in self.live if any(lo <= s < hi for lo, hi in wants[a])]
            for s in range(self.stages)
        ]

    @property
    def holdings(self):
        return {
            a: {Item(Kind.VER, 0, x, x + 1) for lo, hi in ranges for x in range(lo, hi)}
            for a, ranges in self.wants.items()
        }

    def work(self):
        return workmap.assign(
            batch=self.batch, seats=self.seats, holders=self.holders, policy=self.policy
        )

    def graph(self) -> TaskGraph:
        return graph.steady(
            Goals(
                batch=self.batch,
                cut=self.cut,
                wants=self.wants,
                assignment=self.work(),
                coordinator=self.live[0],
                target=1,
                last=10,
                split=self.split,
                periodic=self.periodic,
            )
        )

    def build(self, *, extra=0, costs=None) -> schedule.Schedule:
        return schedule.build(
            self.graph(),
            batch=self.batch,
            costs=costs or Costs.even(self.stages),
            caps=schedule.caps(self.seats, extra),
            pipelines=self.pipelines,
        )

    def dry_run(self, programs, *, costs=None, periodic=True) -> verify.Report:
        return verify.dry_run(
            programs,
            batch=self.batch,
            layers=self.stages,
            holdings=self.holdings,
            costs=costs or Costs.even(self.stages),
            periodic=periodic,
        )
