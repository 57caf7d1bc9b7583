"""The simulated control plane: operators, the API server's facts, the planner, pods and nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, cast

from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter.arbiter import Arbiter
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import ComputePlan, DesiredState, Planned
from bamboo_core.controller.view import ClusterView, NodeView, PodPhase, PodView, Slot
from bamboo_core.job import orders
from bamboo_core.job.leadership import Observed
from bamboo_core.model.ids import AgentId
from bamboo_core.model.numerics import BatchShape
from bamboo_core.placement.plan import Plan
from bamboo_core.planning.requests import Continuations, Decision, PlannerFault, PlanRequest
from bamboo_sim.protocol.control.operator import Operator
from bamboo_sim.protocol.control.plans import Plans, Results
from bamboo_sim.protocol.control.seats import Seats, as_durable, check_seated, facts_of
from bamboo_sim.protocol.control.store import Store
from bamboo_sim.protocol.parts.job import Job, raised, regridded
from bamboo_sim.protocol.parts.network import OPERATOR
from bamboo_sim.protocol.parts.violation import Violation

PLANS = Plans()


class Operators:
    """The leader, and deposed leaders that still run."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.store = Store(job.facts)
        self.elections = 1
        self.leader = OPERATOR
        self.goal = DesiredState(job.pipelines)  # what the user and the nodes want
        self.running = {OPERATOR: self._start(OPERATOR)}
        self.batch: BatchShape | None = None
        self.plan: Plan | None = None  # the newest durable one
        self._plans: tuple[Plan, ...] = ()
        self.ways: frozenset[str] = frozenset()  # in which plans have shared lost work
        self.seats = Seats()

    def copy(self) -> Operators:
        """An independent copy."""
        new = Operators.__new__(Operators)
        new.__dict__.update(self.__dict__)
        new.store = Store.__new__(Store)
        new.store.__dict__.update(self.store.__dict__)
        new.seats = self.seats.copy()
        new.running = {name: operator.copy() for name, operator in self.running.items()}
        return new

    @property
    def arbiter(self) -> Arbiter:
        """The leader's."""
        return self.running[self.leader].leadership.arbiter

    @property
    def durable(self) -> Durable:
        """The facts that the API server holds."""
        return self.store.durable

    @property
    def stages(self) -> int:
        """P of the present spec."""
        return self._job.stages

    # ------------------------------------------------------------ who leads

    def _start(self, name: AgentId) -> Operator:
        given = self._job.arbiter_job
        return Operator(name, given.spec, given.timing, self.durable, self.elections)

    def replace_leader(self, *, split: bool) -> AgentId:
        """Start a new leader from the durable facts. split: the old one keeps running."""
        self.elections += 1
        if not split:
            self.running.clear()
        self.leader = AgentId(f"operator-{self.elections}")
        self.running[self.leader] = self._start(self.leader)
        return self.leader

    def lead_again(self, name: AgentId) -> None:
        """An operator that was overtaken begins from the present facts, if it still leads."""
        if name == self.leader:
            dead = self.running[name].dead
            self.running[name] = self._start(name)
            self.running[name].dead = dead

    def deposed(self) -> Iterator[AgentId]:
        """Running operators that are not the leader."""
        return iter(self.running.keys() - {self.leader})

    # ------------------------------------------------------------ spec and cluster

    def regrid(self, pipelines: int, stages: int) -> None:
        """Change the spec."""
        self._job = regridded(self._job, pipelines, stages)
        self.goal = replace(self.goal, pipelines=pipelines)

    def raise_steps(self, steps: int) -> None:
        """Change the spec; the next leader sees it."""
        self._job = raised(self._job, steps)

    def observed(self, operator: Operator, pods: Iterable[AgentId]) -> Observed:
        """The spec and the cluster as the operator sees them."""
        spec = _wanted(self._job, self.goal.pipelines, self.goal.suspended)
        views = tuple(_pod(name, name in operator.dead) for name in pods)
        nodes = tuple(_node(name, name in self.goal.drained) for name in pods)
        return Observed(spec, ClusterView(nodes, views), has_sessions=bool(operator.sessions))

    # ------------------------------------------------------------ facts and plans

    def write(self, version: int, text: str) -> bool:
        """Write facts as JSON; False if the version has changed since they were looked at."""
        before = self.durable
        if not self.store.replace(version, text):
            return False
        facts = self.durable
        if facts.plan < before.plan:
            raise Violation(f"plan {facts.plan} after {before.plan}")
        if facts.term < before.term:
            raise Violation(f"term {facts.term} after {before.term}")
        self.seats.written(facts)
        for plan in self._plans:  # the planner answered twice: one answer is in force
            if plan.fence == facts.plan and facts_of(as_durable(plan)) == facts_of(facts):
                self.plan, self._plans = plan, ()
        return True

    def answers(self, wanted: ComputePlan) -> tuple[Planned, ...]:
        """The planner's answer, in one part to three."""
        return tuple(orders.answers(wanted, plan=lambda request, _: iter(self._compute(request))))

    def _compute(self, request: PlanRequest) -> Results:
        results = PLANS.answer(request)
        for result in results:
            if isinstance(result, PlannerFault):  # of its own accord
                raise Violation(result.message)
        if isinstance(results[0], Decision):
            check_seated(request, results[0].plan)
            self.batch = results[0].plan.batch
            self._plans = (*self._plans, results[0].plan)
            self.seats.made(*cast(Any, results[:2]))
        for rest in results[1:]:
            if isinstance(rest, Continuations) and rest.sharing is not None:
                self.ways |= {f"shared: {rest.sharing.taken.way}"}
        return results


@cache
def _wanted(job: Job, pipelines: int, suspended: bool) -> JobSpec:
    spec = job.arbiter_job.spec
    grid = replace(spec.pipelines, count=pipelines, max=max(pipelines, spec.pipelines.max))
    return replace(spec, pipelines=grid, suspend=suspended)


@cache
def _pod(name: AgentId, has_ended: bool) -> PodView:
    phase = PodPhase.FAILED if has_ended else PodPhase.RUNNING
    code = 1 if has_ended else None
    return PodView(name, name, Slot(0, 0), 0, phase, 0.0, node=name, exit_code=code)


@cache
def _node(name: AgentId, is_departing: bool) -> NodeView:
    return NodeView(name, name, "z", departing=is_departing)
