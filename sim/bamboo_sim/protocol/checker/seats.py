"""One holder per coordinate and epoch: what is remembered of plans and of those who follow them."""

from __future__ import annotations

from typing import Any

from bamboo_core.arbiter.durable import Durable
from bamboo_core.model.ids import AgentId, Coordinate, Fence
from bamboo_core.planning.planner import hash_of
from bamboo_core.planning.requests import Continuations, Decision
from bamboo_core.protocol.messages import Continuation, Directive
from bamboo_sim.protocol.checker.verdict import Violation


class Seats:
    """Of every fence: the planner's decisions with their continuations, the facts of the plan that
    became durable, and the agent that took each coordinate by a directive."""

    def __init__(self) -> None:
        self._made: dict[Fence, tuple[Decision, ...]] = {}
        self._continued: dict[str, Continuations] = {}
        self._facts: dict[Fence, tuple[Any, ...]] = {}
        self._taken: dict[tuple[Fence, Coordinate], AgentId] = {}

    def copy(self) -> Seats:
        """An independent copy."""
        new = Seats.__new__(Seats)
        for name, known in self.__dict__.items():
            setattr(new, name, known.copy())
        return new

    def made(self, decision: Decision, rest: Continuations | None = None) -> None:
        """The planner has answered; of a fence it may do so again, if somebody was lost."""
        fence = decision.plan.fence
        self._made[fence] = (*self._made.get(fence, ()), decision)
        if rest is not None:
            self._continued[hash_of(decision.plan)] = rest

    def written(self, durable: Durable) -> None:
        """Facts are durable. A Violation: they name another plan than before under its fence."""
        if not durable.members or durable.plan.attempt != durable.attempt:
            return  # the job is over, or restored and not yet planned
        agents = [a for pipeline in durable.pipelines for a in pipeline if a is not None]
        if len(agents) > len(set(agents)):
            raise Violation(f"plan {durable.plan} gives one agent two seats: {durable.pipelines}")
        facts = facts_of(durable)
        before = self._facts.setdefault(durable.plan, facts)
        if before != facts:
            raise Violation(f"two plans of {durable.plan}: {before} and {facts}")

    def installed(self, agent: AgentId, directive: Directive) -> None:
        """An agent follows it. A Violation: another one has its seat, or its plan is no fact."""
        fence = directive.fence
        of = [d.plan for d in self._made[fence] if d.directives.get(agent) is directive]
        if not of:
            raise Violation(f"{agent} follows a directive of {fence} that nobody has planned")
        if self._facts.get(fence) != facts_of(as_durable(of[0])):
            raise Violation(f"{agent} follows a plan of {fence} that is not the durable one")
        seat = of[0].seats.get(agent)
        if seat is not None and self._taken.setdefault((fence, seat), agent) != agent:
            other = self._taken[fence, seat]
            raise Violation(f"{agent} and {other} both sit on {seat} in {fence}")

    def proceeded(self, agent: AgentId, directive: Directive, rest: Continuation) -> None:
        """An agent goes on with it. A Violation: it belongs to another plan than the directive."""
        planned = self._continued.get(directive.plan_hash)
        if planned is None or planned.directives.get(agent) != rest:
            raise Violation(f"{agent} goes on in {directive.fence} with programs of another plan")


def facts_of(durable: Durable) -> tuple[Any, ...]:
    """What tells plans of one fence apart."""
    return (
        durable.members,
        durable.voters,
        durable.pipelines,
        durable.cut,
        durable.step_cut,
        durable.target,
    )


def as_durable(plan: Any) -> Durable:
    """The facts that it becomes."""
    return Durable(
        members=plan.members,
        voters=plan.live,
        pipelines=plan.pipelines,
        cut=plan.cut,
        step_cut=plan.step_cut,
        target=plan.target,
    )
