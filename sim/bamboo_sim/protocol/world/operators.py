"""The simulated control plane: arbiters, durable facts of the API server, the planner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

from bamboo_core.arbiter.arbiter import Arbiter
from bamboo_core.arbiter.durable import Durable
from bamboo_core.arbiter.events import ComputePlan, DesiredState, Persist
from bamboo_core.model.ids import AgentId
from bamboo_core.model.numerics import BatchShape
from bamboo_core.placement.plan import Plan
from bamboo_core.planning.requests import Decision, PlannerFault
from bamboo_sim.protocol.checker.seats import Seats, as_durable, facts_of
from bamboo_sim.protocol.checker.verdict import Violation
from bamboo_sim.protocol.world.clone import clone
from bamboo_sim.protocol.world.job import Job, regridded
from bamboo_sim.protocol.world.network import OPERATOR
from bamboo_sim.protocol.world.plans import Plans, Results

PLANS = Plans()


class Operators:
    """The leader, and deposed leaders that still run but cannot write."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.durable = Durable()
        self.leader = OPERATOR
        self.goal = DesiredState(job.pipelines, expected=frozenset(job.at_start))
        self.arbiters = {OPERATOR: Arbiter(job.arbiter_job, self.durable, 1)}
        self.batch: BatchShape | None = None
        self.plan: Plan | None = None  # the newest durable one
        self._plans: tuple[Plan, ...] = ()
        self.seats = Seats()

    def copy(self) -> Operators:
        """An independent copy."""
        new = Operators.__new__(Operators)
        new.__dict__.update(self.__dict__)
        new.seats = self.seats.copy()
        new.arbiters = {name: clone(arbiter) for name, arbiter in self.arbiters.items()}
        return new

    @property
    def arbiter(self) -> Arbiter:
        """The leader's."""
        return self.arbiters[self.leader]

    @property
    def stages(self) -> int:
        """P of the present spec."""
        return self._job.stages

    def regrid(self, pipelines: int, stages: int) -> None:
        """Change the spec for arbiters that start from now on, and the desired state for all."""
        self._job = regridded(self._job, pipelines, stages)
        self.goal = replace(self.goal, pipelines=pipelines)

    def start_anew(self) -> None:
        """Restart the leader's arbiter from the durable facts and the newest spec."""
        term = self.arbiter.fence.term
        self.arbiters[self.leader] = Arbiter(self._job.arbiter_job, self.durable, term)

    def replace_leader(self, *, split: bool) -> AgentId:
        """Start a new leader from the durable facts. split: the old one keeps running."""
        term = self.arbiter.fence.term + 1
        if not split:
            self.arbiters.clear()
        self.leader = AgentId(f"operator-{term}")
        self.durable = replace(self.durable, term=term)
        self.arbiters[self.leader] = Arbiter(self._job.arbiter_job, self.durable, term)
        return self.leader

    def deposed(self) -> Iterator[AgentId]:
        """Running operators that are not the leader."""
        return iter(self.arbiters.keys() - {self.leader})

    def persist(self, write: Persist) -> bool:
        """Write the facts; False if the writer is a deposed leader."""
        if write.durable.term < self.durable.term:
            return False
        if write.durable.plan < self.durable.plan:
            raise Violation(f"plan {write.durable.plan} after {self.durable.plan}")
        self.seats.written(write.durable)
        self.durable = write.durable
        for plan in self._plans:  # the planner answered twice: one answer is in force
            is_it = plan.fence == write.durable.plan
            if is_it and facts_of(as_durable(plan)) == facts_of(write.durable):
                self.plan, self._plans = plan, ()
        return True

    def answer(self, wanted: ComputePlan) -> Results:
        """The planner's answer, in one part or two."""
        results = PLANS.answer(wanted)
        for result in results:
            if isinstance(result, PlannerFault):
                raise Violation(result.message)
        if isinstance(results[0], Decision):
            self.batch = results[0].plan.batch
            self._plans = (*self._plans, results[0].plan)
            self.seats.made(*cast(Any, results))
        return results
