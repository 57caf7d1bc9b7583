"""An agent that moves to another stage takes the last copy of nothing and nobody's seat, keeps ring
neighbours in different zones, and its move is not forgotten (ADR 53)."""

from __future__ import annotations

from collections.abc import Collection

from bamboo_core.model.ids import AgentId
from bamboo_core.placement.plan import Move, Plan, layers_of
from bamboo_core.placement.zones import is_apart, ring_neighbours
from bamboo_core.planning.requests import PlanRequest
from bamboo_sim.protocol.parts.violation import Violation


def check_remembered(begun: Plan | None, request: PlanRequest) -> None:
    """A request after the plan ``begun``, which is durable, names the move that it has begun."""
    if begun is None or begun.move is None or begun.fence.attempt != request.fence.attempt:
        return
    if request.grid == begun.pipelines and request.move != begun.move:
        raise Violation(f"{begun.move} has begun in {begun.fence} and is forgotten: {request.move}")


def check_moved(request: PlanRequest, plan: Plan) -> None:
    """A plan that begins, goes on with or ends the move that was asked for."""
    move = request.move
    if move is None:
        return
    is_made = plan.seats.get(move.agent) == move.to
    if plan.move == move or is_made:
        _check_layers(request, plan, move, is_made=is_made)
        _check_place(request, plan, move)
        _check_others(request, plan, move)


def _check_layers(request: PlanRequest, plan: Plan, move: Move, *, is_made: bool) -> None:
    agent = move.agent
    has = {x for x, v in request.reports[agent].versions.items() if v == plan.target}
    keeps = layers_of(plan.wants[agent] if is_made else plan.learners[agent])
    given_up = has.difference(keeps)
    if not is_made and given_up:
        raise Violation(f"{agent} gives up layers {sorted(given_up)} before it has its new seat")
    others = {x for a in plan.live if a != agent for x in layers_of(plan.wants[a])}
    if lost := given_up - others:
        raise Violation(f"{agent} moves with the last copy of layers {sorted(lost)}")
    left = [(s, {p[s] for p in plan.pipelines}) for s in _stages_of(agent, request)]
    for stage, seated in left:
        if stage != move.to.stage and seated <= {None, agent}:
            raise Violation(f"{agent} leaves stage {stage}, which keeps no agent")


def _stages_of(agent: AgentId, request: PlanRequest) -> Collection[int]:
    return [s for pipeline in request.grid for s, a in enumerate(pipeline) if a == agent]


def _check_others(request: PlanRequest, plan: Plan, move: Move) -> None:
    """The others keep their stages, unless there are agents that may get seats."""
    staying = request.participants.keys() - request.draining
    before = {a: s for p in request.grid for s, a in enumerate(p) if a in staying}
    if staying - before.keys() <= {move.agent} and not request.is_full:
        after = {a: x.stage for a, x in plan.seats.items()}
        gone = [a for a in sorted(before.keys() - {move.agent}) if after.get(a) != before[a]]
        if gone:
            raise Violation(f"{move.agent} moves to {move.to}, and {gone} lose their seats")


def _check_place(request: PlanRequest, plan: Plan, move: Move) -> None:
    (d, stage), adjacency = move.to, request.spec.placement.adjacency
    row = plan.pipelines[d]
    around = {s: row[s] for s in ring_neighbours(stage, len(row))}
    zones = {s: request.participants[a].zone for s, a in around.items() if a is not None}
    mine = request.participants[move.agent].zone
    if not is_apart(mine, zones.values(), adjacency):
        raise Violation(f"{move.agent} of zone {mine} moves to {move.to} between {zones}")
