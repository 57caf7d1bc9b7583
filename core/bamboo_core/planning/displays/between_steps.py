"""A question to the planner between two steps, and how long a step takes by its answer.

For commands and benchmarks: no agent is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bamboo_core.api.spec import JobSpec, batch_shape
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item
from bamboo_core.model.program import Program
from bamboo_core.placement.plan import Cut, layers_of, wants
from bamboo_core.placement.seats import Seats
from bamboo_core.planning import comparison
from bamboo_core.planning.requests import (
    Continuations,
    Decision,
    Participant,
    PlanRequest,
    PlanResult,
)
from bamboo_core.protocol.messages import AgentReport, CommitRecord, LayerCost
from bamboo_core.scheduling.costs import Costs
from bamboo_core.scheduling.dry_run import DryRunResult, dry_run

_TARGET = 1  # ordinary steps follow the target step
_BEFORE, _FENCE = Fence(1, 1, 1), Fence(1, 1, 2)

Later = tuple[Decision, Continuations]
"""A plan, and the programs of the steps after the target step."""


def request(
    spec: JobSpec, costs: Sequence[LayerCost], cut: Cut, seats: Seats, *, memory_bytes: int = 0
) -> PlanRequest:
    """The question after agents have stopped. Each holds what it wants in its seat, and is in a
    zone of its own.

    spec: its mode of redundancy must not be Auto. costs: one per layer. memory_bytes: of the
    smallest device; 0: unknown.
    """
    agents = sorted(a for pipeline in seats for a in pipeline if a is not None)
    held = wants(pipelines=seats, cut=cut, live=agents, mode=spec.redundancy.mode, holders={})
    done = (CommitRecord(_TARGET - 1),)
    return PlanRequest(
        fence=_FENCE,
        spec=spec,
        batch=batch_shape(spec),
        layers=len(costs),
        costs=tuple(costs),
        validation_samples=0,
        pipelines=spec.pipelines.count,
        grid=seats,
        cut=cut,
        step_cut=cut,
        target=_TARGET,
        participants={a: Participant(a, a, "", "", b"") for a in agents},
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
        memory_bytes=memory_bytes,
    )


def later(results: Iterator[PlanResult]) -> Later | None:
    """The first two results of the planner; None: there is no plan."""
    decision = next(results)
    if not isinstance(decision, Decision):
        return None
    rest = next(results)
    return (decision, rest) if isinstance(rest, Continuations) else None


def run_dry(asked: PlanRequest, answer: Later, costs: Costs) -> DryRunResult:
    """A step after the target step, in which messages take no time. costs: of its tasks."""
    return dry_run(
        steady(answer),
        batch=asked.batch,
        layers=asked.layers,
        holdings=_held(answer),
        costs=costs,
    )


def length(asked: PlanRequest, answer: Later) -> float:
    """Seconds of a step after the target step, over the network of the request."""
    costs = Costs.measured(asked.costs)
    return comparison.over_network(steady(answer), asked, asked.cut, _held(answer), costs)


def steady(answer: Later) -> dict[AgentId, Program]:
    """Programs of a step after the target step."""
    return {agent: told.steady for agent, told in answer[1].directives.items()}


def _held(answer: Later) -> dict[AgentId, list[Item]]:
    wanted = answer[0].plan.wants
    return {a: [Item.ver(0, x) for x in layers_of(found)] for a, found in wanted.items()}
