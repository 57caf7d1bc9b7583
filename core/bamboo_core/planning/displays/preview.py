"""The steps of a job before there are agents: the planner's own programs for a full grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bamboo_core.api.spec import JobSpec, batch_shape
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item
from bamboo_core.placement import partition
from bamboo_core.placement.plan import Cut, layers_of, wants
from bamboo_core.planning import planner
from bamboo_core.planning.displays import grid
from bamboo_core.planning.requests import Comparison, Continuations, Participant, PlanRequest
from bamboo_core.protocol.messages import AgentReport, CommitRecord, LayerCost
from bamboo_core.scheduling.costs import Costs, transfers
from bamboo_core.scheduling.dry_run import dry_run
from bamboo_core.scheduling.item_bytes import wire_times

_TARGET, _STEPS = 1, 5  # ordinary steps follow the target step
_BEFORE, _FENCE = Fence(1, 1, 1), Fence(1, 1, 2)


def draw(spec: JobSpec, costs: Sequence[LayerCost], *, memory_bytes: int = 0) -> str:
    """The computations of one pipeline in an undisturbed step, as a grid of slots.

    Each agent's are in the order in which it runs them. In a slot fits the forward of a stage, or
    its input gradient or weight gradient; a fused backward takes two. spec: its mode of redundancy
    must not be Auto. costs: one per layer. memory_bytes: of the smallest device; 0: unknown.
    ValueError: there are fewer layers than stages.
    """
    cut = partition.split(
        [c.forward_s + c.backward_s for c in costs], stages := spec.pipelines.stages
    )
    request = _request(spec, tuple(costs), cut, memory_bytes)
    *_, rest = planner.compute(request)
    assert isinstance(rest, Continuations), rest  # nothing is missing, and every seat is taken
    programs = {agent: found.steady for agent, found in rest.directives.items()}
    report = dry_run(
        programs,
        batch=request.batch,
        layers=len(costs),
        holdings={a: [Item.ver(0, x) for x in r.versions] for a, r in request.reports.items()},
        costs=_slots(cut),
    )
    first = [_name(0, s) for s in range(stages)]
    alone = replace(report, busy={a: report.busy[a] for a in first})
    return grid.draw({a: programs[a] for a in first}, alone)


@dataclass(frozen=True)
class OneLoss:
    """Later steps without one agent, in each way to share its work."""

    seat: tuple[int, int]  # pipeline and stage of the lost agent
    usual_s: float  # a step without a loss
    ways: Comparison


def one_loss(spec: JobSpec, costs: Sequence[LayerCost], *, memory_bytes: int = 0) -> OneLoss | None:
    """The cost of the loss of an agent in the middle of the grid in each step, on the network
    of the spec. Arguments: as in :func:`draw`. None: the loss is fatal, the agents are too many to
    compare ways, or the layers' sizes are not known.
    """
    cut = partition.split([c.forward_s + c.backward_s for c in costs], spec.pipelines.stages)
    seat = spec.pipelines.count // 2, spec.pipelines.stages // 2
    whole = _request(spec, tuple(costs), cut, memory_bytes)
    *_, rest = planner.compute(_without(whole, _name(*seat)))
    is_sized = any(c.parameter_bytes for c in costs)
    if not is_sized or not isinstance(rest, Continuations) or rest.sharing is None:
        return None
    *_, usual = planner.compute(whole)
    assert isinstance(usual, Continuations), usual
    report = dry_run(
        {agent: found.steady for agent, found in usual.directives.items()},
        batch=whole.batch,
        layers=len(costs),
        holdings={a: [Item.ver(0, x) for x in r.versions] for a, r in whole.reports.items()},
        costs=Costs.measured(costs),
        wire=_wire(whole),
    )
    return OneLoss(seat, report.end, rest.sharing)


def _without(request: PlanRequest, lost: AgentId) -> PlanRequest:
    return replace(
        request,
        participants={a: x for a, x in request.participants.items() if a != lost},
        reports={a: x for a, x in request.reports.items() if a != lost},
    )


def _wire(request: PlanRequest) -> Callable[[Item], float]:
    times = transfers(request.costs, request.cut, request.bytes_per_s)
    return wire_times(dict(zip(request.cut, times, strict=True)))


def _request(
    spec: JobSpec, costs: tuple[LayerCost, ...], cut: Cut, memory_bytes: int
) -> PlanRequest:
    """Every seat has an agent that holds what it wants, between two steps."""
    seats = tuple(tuple(_name(d, s) for s in range(len(cut))) for d in range(spec.pipelines.count))
    agents = sorted(agent for pipeline in seats for agent in pipeline)
    mode = spec.redundancy.mode
    held = wants(pipelines=seats, cut=cut, live=agents, mode=mode, holders={})
    done = (CommitRecord(_TARGET - 1),)
    return PlanRequest(
        fence=_FENCE,
        spec=replace(spec, training=replace(spec.training, steps=_STEPS)),
        batch=batch_shape(spec),
        layers=len(costs),
        costs=costs,
        validation_samples=0,
        pipelines=spec.pipelines.count,
        grid=seats,
        cut=cut,
        step_cut=cut,
        target=_TARGET,
        participants={a: Participant(a, "", "", "", b"") for a in agents},
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


def _name(pipeline: int, stage: int) -> AgentId:
    return AgentId(f"{pipeline}-{stage}")


def _slots(cut: Cut) -> Costs:
    """Costs under which every stage takes as many slots as any other."""
    one = tuple(1 / (hi - lo) for lo, hi in cut for _ in range(lo, hi))
    return Costs(one, tuple(2 * x for x in one), one, one)
