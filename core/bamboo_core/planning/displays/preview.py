"""The steps of a job before there are agents: the planner's own programs for a full grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bamboo_core.api.spec import JobSpec
from bamboo_core.model.ids import AgentId
from bamboo_core.placement import partition
from bamboo_core.placement.plan import Cut
from bamboo_core.planning import planner
from bamboo_core.planning.displays import between_steps, grid
from bamboo_core.planning.requests import Comparison, PlanRequest, StepTime
from bamboo_core.protocol.messages import LayerCost
from bamboo_core.scheduling.costs import Costs

_STEPS = 5  # with ordinary ones among them
_FEWER = "FewerPipelines"  # one of candidates.WAYS


def draw(spec: JobSpec, costs: Sequence[LayerCost], *, memory_bytes: int = 0) -> str:
    """The computations of one pipeline in an undisturbed step, as a grid of slots.

    Each agent's are in the order in which it runs them. In a slot fits the forward of a stage, or
    its input gradient or weight gradient; a fused backward takes two. spec: its mode of redundancy
    must not be Auto. costs: one per layer. memory_bytes: of the smallest device; 0: unknown.
    ValueError: there are fewer layers than stages.
    """
    asked = _request(spec, costs, memory_bytes)
    answer = _undisturbed(asked)
    report = between_steps.run_dry(asked, answer, _slots(asked.cut))
    first = [_name(0, s) for s in range(spec.pipelines.stages)]
    programs = between_steps.steady(answer)
    alone = replace(report, busy={a: report.busy[a] for a in first})
    return grid.draw({a: programs[a] for a in first}, alone)


def usual_s(spec: JobSpec, costs: Sequence[LayerCost], *, memory_bytes: int = 0) -> float:
    """Seconds of an undisturbed step over the network of the spec, in which outputs of stages cost
    nothing. Arguments: as in :func:`draw`."""
    asked = _request(spec, costs, memory_bytes)
    return between_steps.length(asked, _undisturbed(asked))


@dataclass(frozen=True)
class OneLoss:
    """Later steps without one agent, in each way to share its work."""

    seat: tuple[int, int]  # pipeline and stage of the lost agent
    usual_s: float  # a step without a loss
    ways: Comparison


def one_loss(spec: JobSpec, costs: Sequence[LayerCost], *, memory_bytes: int = 0) -> OneLoss | None:
    """The cost of the loss of an agent in the middle of the grid in each step, on the network
    of the spec. Arguments: as in :func:`draw`. None: the loss is fatal, the agents are too many to
    compare ways, or the layers' sizes are not known. With one stage no seat stays empty, and there
    is one way: the pipelines that are left compute all.
    """
    if not any(c.parameter_bytes for c in costs):
        return None
    seat = spec.pipelines.count // 2, spec.pipelines.stages // 2
    asked = _without(_request(spec, costs, memory_bytes), _name(*seat))
    answer = between_steps.later(planner.compute(asked))
    ways = None if answer is None else _ways(asked, answer)
    if ways is None:
        return None
    return OneLoss(seat, usual_s(spec, costs, memory_bytes=memory_bytes), ways)


def _ways(asked: PlanRequest, answer: between_steps.Later) -> Comparison | None:
    """The ways to share lost work; None: they are not compared."""
    if answer[0].plan.holes:
        return answer[1].sharing
    return Comparison(StepTime(_FEWER, between_steps.length(asked, answer)))


def _undisturbed(asked: PlanRequest) -> between_steps.Later:
    answer = between_steps.later(planner.compute(asked))
    assert answer is not None, "nothing is missing, and every seat is taken"
    return answer


def _without(request: PlanRequest, lost: AgentId) -> PlanRequest:
    return replace(
        request,
        participants={a: x for a, x in request.participants.items() if a != lost},
        reports={a: x for a, x in request.reports.items() if a != lost},
    )


def _request(spec: JobSpec, costs: Sequence[LayerCost], memory_bytes: int) -> PlanRequest:
    """Every seat has an agent."""
    cut = partition.split([c.forward_s + c.backward_s for c in costs], spec.pipelines.stages)
    few = replace(spec, training=replace(spec.training, steps=_STEPS))
    seats = tuple(tuple(_name(d, s) for s in range(len(cut))) for d in range(spec.pipelines.count))
    return between_steps.request(few, costs, cut, seats, memory_bytes=memory_bytes)


def _name(pipeline: int, stage: int) -> AgentId:
    return AgentId(f"{pipeline}-{stage}")


def _slots(cut: Cut) -> Costs:
    """Costs under which every stage takes as many slots as any other."""
    one = tuple(1 / (hi - lo) for lo, hi in cut for _ in range(lo, hi))
    return Costs(one, tuple(2 * x for x in one), one, one)
