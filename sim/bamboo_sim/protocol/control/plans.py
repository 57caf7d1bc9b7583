"""The production planner with a cache: equal facts give equal plans."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from bamboo_core.api.spec import JobSpec, RecoveryPolicy
from bamboo_core.model.ids import Fence
from bamboo_core.placement.plan import Plan
from bamboo_core.planning import planner
from bamboo_core.planning.requests import (
    Continuations,
    Decision,
    PlanRequest,
    PlanResult,
    Relocation,
)
from bamboo_core.scheduling.candidates import Candidate
from bamboo_core.scheduling.sharing.step_work import StepWork
from bamboo_sim.protocol.control.order import check_order

Results = tuple[PlanResult, ...]

_MOST = 20_000
_PLAIN = [
    f.name
    for f in fields(PlanRequest)
    if f.name not in ("fence", "spec", "participants", "reports", "speeds")
]
_LASTING = [
    f.name
    for f in fields(Plan)
    if f.name not in ("fence", "step_cut", "target", "leaving", "short_notice")
]
"""Fields on which the steps after the target depend, besides the agents' speeds and the network."""


class Plans:
    """Answers of the planner by the facts of the request; fences are put in afterwards.

    An answer has one part to three: a decision, its continuations, and a move that pays.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[tuple[Any, ...], Results]] = {}
        self._undisturbed: dict[tuple[Any, ...], Any] = {}
        self._specs: dict[int, JobSpec] = {}

    def answer(self, request: PlanRequest) -> Results:
        """The results of ``planner.compute``."""
        self._specs[id(request.spec)] = request.spec  # so its id is not reused
        facts = _facts(request)
        key = hash(facts)
        known = self._known.get(key)
        if known is None or known[0] != facts:
            if len(self._known) > _MOST:
                self._known.clear()
            known = self._known[key] = facts, self._compute(request)
        return _fenced(known[1], request.fence)

    def _compute(self, request: PlanRequest) -> Results:
        results = tuple(planner.run(_Remembering(request, self._undisturbed)))
        check_order(results)
        return results


class _Remembering(planner._Planning):
    """Caches undisturbed steps, which depend on the plan, the agents' speeds and the network alone.

    Gathers slices of gradients in small grids, too.
    """

    def __init__(self, request: PlanRequest, known: dict[tuple[Any, ...], Any]) -> None:
        super().__init__(request)
        self._known, self._draws = known, True

    def _gathers(self, plan: Plan) -> bool:
        """As in large grids. Often, so that a history has plans of both kinds."""
        return len(plan.members) % 2 == 1

    def _likeliest(self, plan: Plan, step: StepWork) -> Candidate:
        """Any way to share lost work that the policy allows, whatever it costs."""
        return self._options(plan, step)[0] if self._draws else super()._likeliest(plan, step)

    def _options(self, plan: Plan, step: StepWork) -> list[Candidate]:
        found = super()._options(plan, step)
        if self._spec.recovery is not RecoveryPolicy.AUTO or not self._draws:
            return found
        lot = sum(map(ord, "".join(plan.live))) + plan.target
        return [found[lot % len(found)]]

    def relocate(self, plan: Plan, rest: Continuations) -> Relocation | None:
        """Weighed with the shortest ways: by those of the lot agents would move too often."""
        if rest.sharing is None or plan.holes < 2:
            return super().relocate(plan, rest)
        self._draws = False
        step = self._whole(plan)
        options = self._options(plan, step)
        usual = self._steady(plan, step, options, is_exact=True).comparison
        found = super().relocate(plan, replace(rest, sharing=usual))
        self._draws = True
        return found

    def _undisturbed(self, plan: Plan) -> Any:
        facts = {f: getattr(plan, f) for f in _LASTING}
        facts |= {name: tuple(facts[name].items()) for name in ("wants", "learners")}
        left = plan.last - plan.target
        speeds = tuple(sorted(self._speeds.items()))
        network = self._request.bytes_per_s
        key = (id(self._spec), *facts.values(), min(left, 2), speeds, network)
        if key not in self._known:
            self._known[key] = super()._undisturbed(plan)
        return self._known[key]


def _facts(request: PlanRequest) -> tuple[Any, ...]:
    """The cache key: all but the fence; the spec by identity."""
    reports = tuple(
        (a, tuple(sorted(r.versions.items())), r.items, r.commits, r.ended)
        for a, r in request.reports.items()
    )
    return (
        id(request.spec),
        tuple(request.participants),
        reports,
        tuple(sorted(request.speeds.items())),
        *[getattr(request, name) for name in _PLAIN],
    )


def _fenced(results: Results, fence: Fence) -> Results:
    decision = results[0]
    if not isinstance(decision, Decision):
        return results
    plan = replace(decision.plan, fence=fence)
    named: dict[str, Any] = {"fence": fence, "plan_hash": planner.hash_of(plan)}
    directives = {a: replace(d, **named) for a, d in decision.directives.items()}
    out: list[PlanResult] = [replace(decision, plan=plan, directives=directives)]
    for rest in results[1:]:
        if isinstance(rest, Relocation):
            out.append(rest)
            continue
        assert isinstance(rest, Continuations)
        later = {a: replace(c, **named) for a, c in rest.directives.items()}
        out.append(replace(rest, directives=later))
    return tuple(out)
