"""A whole step of a D x P grid, from shape to programs.

Shows schedules: for the ``show`` command, benchmarks, and tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

from bamboo_core.api.spec import RecoveryPolicy, RedundancyMode
from bamboo_core.graph import closure
from bamboo_core.graph.tasks import TaskGraph
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Program
from bamboo_core.placement.plan import wants
from bamboo_core.planning.lanes import lanes
from bamboo_core.scheduling import candidates, dry_run, schedule
from bamboo_core.scheduling.candidates import Candidate
from bamboo_core.scheduling.costs import Costs
from bamboo_core.scheduling.item_bytes import wire_times
from bamboo_core.scheduling.remaining import stage_weights
from bamboo_core.scheduling.sharing import orders
from bamboo_core.scheduling.sharing.step_work import StepWork, WorkMap

TARGET = 1
"""Number of the step."""


@dataclass(frozen=True)
class StepShape:
    """An undisturbed step of a D x P grid with one layer per stage. Seats may be empty."""

    pipelines: int
    stages: int
    batch: BatchShape
    lost: tuple[tuple[int, int], ...] = ()  # (pipeline, stage) of the empty seats
    split: bool = False  # I and W instead of B
    mode: RedundancyMode = RedundancyMode.REPLICA
    policy: RecoveryPolicy = RecoveryPolicy.AUTO
    extra: int = 0  # activations in flight beyond P - s
    costs: Costs | None = None  # default: F = I = W = 1
    periodic: closure.Periodic = field(default_factory=closure.Periodic)
    speeds: Mapping[AgentId, float] = field(default_factory=dict)  # relative; absent: 1
    relays: bool = True  # whether agents may pass gradients on
    gathers: bool = False  # slices of gradients are gathered, and nobody passes them on
    most_sums: float = inf  # for which an agent has memory
    transfer: tuple[float, ...] = ()  # of a sum between two agents, for each stage; empty: none

    @property
    def timing(self) -> Costs:
        """The costs, or the default."""
        return self.costs or Costs.even(self.stages)

    @property
    def cut(self) -> tuple[tuple[int, int], ...]:
        """One layer per stage."""
        return tuple((s, s + 1) for s in range(self.stages))

    @property
    def seats(self) -> tuple[tuple[AgentId | None, ...], ...]:
        """Agents are named ``pipeline-stage``."""
        return tuple(
            tuple(None if (d, s) in self.lost else AgentId(f"{d}-{s}") for s in range(self.stages))
            for d in range(self.pipelines)
        )

    @property
    def live(self) -> list[AgentId]:
        """All agents with a seat."""
        return sorted(a for pipeline in self.seats for a in pipeline if a is not None)

    def wants(self) -> dict[AgentId, tuple[tuple[int, int], ...]]:
        """Agent -> layers that it holds."""
        return wants(pipelines=self.seats, cut=self.cut, live=self.live, mode=self.mode, holders={})

    def holders(self) -> list[list[AgentId]]:
        """Stage -> agents that hold it."""
        held = self.wants()
        return [
            [a for a in self.live if any(lo <= s < hi for lo, hi in held[a])]
            for s in range(self.stages)
        ]

    def holdings(self) -> dict[AgentId, set[Item]]:
        """The versions that agents have at the beginning."""
        return {
            agent: {Item.ver(0, x) for lo, hi in ranges for x in range(lo, hi)}
            for agent, ranges in self.wants().items()
        }

    @cached_property
    def step_work(self) -> StepWork:
        """The work of the step, and who can do it."""
        return StepWork(
            batch=self.batch,
            seats=self.seats,
            holders=self.holders(),
            weight=stage_weights(batch=self.batch, cut=self.cut, costs=self.timing),
            speeds=self.speeds,
            transfer=self.transfer,
        )

    @cached_property
    def likeliest(self) -> Candidate:
        """The way to share lost work that is the likeliest to be short."""
        return candidates.likeliest(self.step_work, self.policy, self.most_sums)

    def work(self) -> WorkMap:
        """The agent of each leaf, in the likeliest way."""
        return self.likeliest.work

    def wire(self) -> Callable[[Item], float] | None:
        """Time that an item takes an interface: sums do, and slices of them. None: nothing does."""
        return wire_times(self.sums) if self.transfer else None

    @property
    def sums(self) -> dict[tuple[int, int], float]:
        """Layers of a stage -> time of its gradient to another agent; empty: none."""
        return dict(zip(self.cut, self.transfer, strict=False))

    def lanes(self, programs: dict[AgentId, Program]) -> dict[AgentId, Program]:
        """Programs for work ahead beside these programs."""
        return lanes(programs, cut=self.cut, wants=self.wants(), held={})

    def goals(self, work: WorkMap) -> closure.Goals:
        """The goals of a step that is neither the first nor the last."""
        return closure.Goals(
            batch=self.batch,
            cut=self.cut,
            wants=self.wants(),
            assignment=work,
            coordinator=self.live[0],
            target=TARGET,
            last=TARGET + 2,
            split=self.split,
            gathers=self.gathers,
            periodic=self.periodic,
        )

    def graph(self, work: WorkMap) -> TaskGraph:
        """All tasks of the step."""
        return closure.steady(self.goals(work))

    def build(
        self,
        tasks: TaskGraph | None = None,
        shared: Candidate | None = None,
    ) -> schedule.Schedule:
        """The programs of all agents. tasks: default: of a whole step; shared: default: in the
        likeliest way."""
        shared = shared or self.likeliest
        return schedule.build(
            tasks or self.graph(shared.work),
            batch=self.batch,
            costs=self.timing,
            caps=schedule.caps(self.seats, self.extra),
            order=orders.positions(self.batch, shared.work, shared.pipelines),
            speeds=self.speeds,
            sums=self.sums,
            relays=self.relays,
            is_split=self.split,
        )

    def dry_run(
        self, programs: dict[AgentId, Program], *, periodic: bool = True
    ) -> dry_run.DryRunResult:
        """Execute the programs on item names."""
        return dry_run.dry_run(
            programs,
            batch=self.batch,
            layers=self.cut[-1][1],
            holdings=self.holdings(),
            costs=self.timing,
            periodic=periodic,
            wire=self.wire(),
        )
