"""Whether an agent should move to a seat of another stage, after a plan is made (ADR 53).

The candidates are tried in the order of :mod:`bamboo_core.placement.moves`: each is planned and run
dry. Nobody waits for the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from bamboo_core.placement import moves
from bamboo_core.placement.plan import Move, Plan, layers_of
from bamboo_core.planning.requests import PlanRequest, Relocation
from bamboo_core.planning.team import lacking_bytes
from bamboo_core.protocol.messages import LayerCost
from bamboo_core.scheduling import schedule
from bamboo_core.scheduling.costs import Costs
from bamboo_core.scheduling.device_memory import STATES, USABLE

_PAYS_WITHIN = 20  # steps: later is not worth it, since lost agents come back
_MADE_WITHIN = 4  # steps: the target step, and two plans
_GOOD = 1.08  # times the mean load of the agents: no move makes such a step much shorter
_ABOUT, _CLEARLY = 1.02, 0.97  # times the length of a step: no longer, and shorter
_TRIES = 16  # more do not find clearly better moves (measured)
_FINALISTS = 2
_TASKS = 150_000  # of all tries together, so that the planner is soon free for other jobs
_FOR_EACH = 4  # tasks of a stage for a micro-batch: F, I, W, and sums
_PAUSES_S = 2.0  # two stops, with all that follows from them
_WITH_GRADIENT = STATES + 1  # times the parameters' bytes, on an agent that only keeps copies


def is_open(request: PlanRequest, plan: Plan) -> bool:
    """Whether it is worth asking: enough seats are empty, nothing else is about to change, and the
    job is neither near its end nor so large that one seat does not matter."""
    is_quiet = not (plan.learners or plan.leaving or request.draining)
    is_damaged = plan.holes > 1 or moves.has_bare_stage(plan.pipelines)
    is_small = len(plan.members) <= schedule.MANY
    return is_quiet and is_damaged and is_small and _steps_after(plan) > 0


def _steps_after(plan: Plan) -> int:
    """Steps in which a move pays, at most."""
    return min(_PAYS_WITHIN, plan.last - plan.target - _MADE_WITHIN)


def tries(
    request: PlanRequest, plan: Plan, now: float, wanted: Callable[[Plan, Move], Plan]
) -> Iterator[tuple[Move, Plan]]:
    """Moves that may pay, with the plan after each. now: length of a step without any.

    wanted: the plan after a move.
    """
    seats, spec = plan.pipelines, request.spec
    is_good = now <= _GOOD * mean_load(plan, request.costs)
    if is_good and not moves.has_bare_stage(seats):
        return
    found = moves.candidates(
        seats,
        zones={a: request.participants[a].zone for a in plan.live},
        adjacency=spec.placement.adjacency,
        most=min(_TRIES, _TASKS // (_FOR_EACH * plan.batch.microbatches * len(plan.cut))),
    )
    for move in found:
        after = wanted(plan, move)
        if _has_room(request, plan, after, move):
            yield move, after


def mean_load(plan: Plan, profile: Iterable[LayerCost]) -> float:
    """Time that each agent computes in a step if all compute equally long: no step is shorter."""
    layers = tuple(profile)
    costs = Costs.measured(layers) if layers else Costs.even(plan.layers)
    fused = sum(costs.fused)
    split = sum(costs.input_gradient) + sum(costs.weight_gradient)
    each = sum(costs.forward) + (min(fused, split) if costs.can_split else fused)
    return plan.batch.microbatches * each / len(plan.live)


def finalists(lengths: Iterable[tuple[Move, Plan, float]]) -> list[tuple[Move, Plan, float]]:
    """The moves for which all ways to share lost work are tried: this takes several dry runs each.

    lengths: as in :func:`best`, with the likeliest way.
    """
    return sorted(lengths, key=lambda x: x[2])[:_FINALISTS]


def best(
    request: PlanRequest, plan: Plan, now: float, lengths: Iterable[tuple[Move, Plan, float]]
) -> Relocation | None:
    """The move with the shortest step, if it pays. The first of several that are equal.

    lengths: each move with the plan after it and the length of its step. A stage without an agent
    in its seats gets one, unless the step gets clearly longer.
    """
    found = min(lengths, key=lambda x: x[2], default=None)
    if found is None:
        return None
    move, after, then = found
    if moves.has_bare_stage(plan.pipelines):
        pays = then <= _ABOUT * now
    else:
        gain = (now - then) * _steps_after(plan)
        pays = then < _CLEARLY * now and gain > _price(request, plan, after, move)
    return Relocation(move, now, then) if pays else None


def _price(request: PlanRequest, plan: Plan, after: Plan, move: Move) -> float:
    """Time that the move costs, as if all agents waited for the copies; 0: not measured."""
    if not request.costs:
        return 0.0
    have = layers_of(plan.wants[move.agent])
    lacking = lacking_bytes(have, after.wants[move.agent], request.costs)
    return _PAUSES_S + max(0.0, lacking) / request.bytes_per_s


def _has_room(request: PlanRequest, plan: Plan, after: Plan, move: Move) -> bool:
    """Whether the device holds what the agent has and what it gets at once."""
    if not (request.costs and request.memory_bytes):
        return True
    both = layers_of((*plan.wants[move.agent], *after.wants[move.agent]))
    held = _WITH_GRADIENT * sum(request.costs[x].parameter_bytes for x in both)
    return held <= USABLE * request.memory_bytes
