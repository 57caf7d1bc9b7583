"""Checks that each coordinate has one agent per fence, and that agents follow durable plans."""

from __future__ import annotations

from dataclasses import replace
from operator import eq, is_
from typing import Any

from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.model.ids import AgentId, Coordinate, Fence
from bamboo_core.placement.plan import Plan
from bamboo_core.planning.planner import hash_of
from bamboo_core.planning.requests import Continuations, Decision, PlanRequest
from bamboo_core.protocol.messages import Continuation, Directive
from bamboo_sim.protocol.parts.violation import Violation


class Seats:
    """For each fence: the planner's decisions with their continuations, the facts of the durable
    plan, and the agent that took each coordinate."""

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
        """Record an answer of the planner. It may answer again for a fence after a loss."""
        fence = decision.plan.fence
        self._made[fence] = (*self._made.get(fence, ()), decision)
        if rest is not None:
            self._continued[hash_of(decision.plan)] = rest

    def written(self, durable: Durable) -> None:
        """Record durable facts. A Violation if another plan had the same fence."""
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
        """An agent installs a directive: its plan must be durable, and its seat free."""
        fence = directive.fence
        plain = directive
        if directive.forks or directive.bad or directive.look_s:  # which the arbiter adds
            plain = replace(directive, forks=(), bad=(), look_s=0.0)
        made = [(d.plan, d.directives.get(agent)) for d in self._made[fence]]
        is_same = eq if plain is not directive else is_
        of = [plan for plan, told in made if is_same(told, plain)]
        if not of:
            raise Violation(f"{agent} follows a directive of {fence} that was not planned")
        if self._facts.get(fence) != facts_of(as_durable(of[0])):
            raise Violation(f"{agent} follows a plan of {fence} that is not the durable one")
        seat = of[0].seats.get(agent)
        if seat is not None and self._taken.setdefault((fence, seat), agent) != agent:
            other = self._taken[fence, seat]
            raise Violation(f"{agent} and {other} both have seat {seat} in {fence}")

    def proceeded(self, agent: AgentId, directive: Directive, rest: Continuation) -> None:
        """An agent takes a continuation. A Violation if it belongs to another plan."""
        planned = self._continued.get(directive.plan_hash)
        if planned is None or planned.directives.get(agent) != rest:
            raise Violation(f"{agent} goes on in {directive.fence} with programs of another plan")


def check_seated(request: PlanRequest, plan: Plan) -> None:
    """Nobody who stays gives up layers while a pipeline more would give it a seat."""
    left = {*plan.leaving} - request.draining
    if left and not request.is_full and len(plan.pipelines) < request.pipelines:
        raise Violation(f"{sorted(left)} get no seat in {plan.pipelines}")


def facts_of(durable: Durable) -> tuple[Any, ...]:
    """The facts that distinguish plans of one fence."""
    return (
        durable.members,
        durable.voters,
        durable.pipelines,
        durable.cut,
        durable.step_cut,
        durable.target,
        durable.move,
    )


def as_durable(plan: Any) -> Durable:
    """The durable facts of a plan."""
    return Durable(
        members=plan.members,
        voters=plan.live,
        pipelines=plan.pipelines,
        cut=plan.cut,
        step_cut=plan.step_cut,
        target=plan.target,
        move=plan.move,
    )
