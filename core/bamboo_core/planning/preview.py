"""The steps of a job before there are agents: the planner's own programs for a full grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bamboo_core.api.spec import JobSpec, batch_shape
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item
from bamboo_core.placement import partition
from bamboo_core.placement.plan import Cut, layers_of, wants
from bamboo_core.planning import grid, planner
from bamboo_core.planning.requests import Continuations, Participant, PlanRequest
from bamboo_core.protocol.messages import AgentReport, CommitRecord, LayerCost
from bamboo_core.scheduling.costs import Costs
from bamboo_core.scheduling.dry_run import dry_run

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
