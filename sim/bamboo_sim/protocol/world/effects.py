"""The simulated operator's shell: performs the arbiter's effects and delivers the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bamboo_core.api.events import EventReason
from bamboo_core.arbiter.durable import Durable
from bamboo_core.arbiter.events import (
    ComputePlan,
    Dismiss,
    Effect,
    Persist,
    Persisted,
    Planned,
    Record,
    Send,
)
from bamboo_core.model.ids import AgentId
from bamboo_core.planning.requests import Fatal
from bamboo_sim.protocol.checker.restores import check_restore
from bamboo_sim.protocol.checker.verdict import check_fatal, check_plan
from bamboo_sim.protocol.world.network import STORE, WATCH

if TYPE_CHECKING:
    from bamboo_sim.protocol.world.world import World


def serve(world: World, operator: AgentId, content: Any) -> None:
    """Deliver a message to an operator: from an agent, the API server or the planner."""
    if isinstance(content, Persist):
        before = world.operators.durable
        if not world.operators.persist(content):
            return
        check_plan(world, before)
        content = Persisted(content.version)
    elif isinstance(content, ComputePlan):
        result, *rest = world.operators.answer(content)
        if isinstance(result, Fatal):
            check_fatal(world, content, result)
        for part in rest:  # it comes later, and anything may happen before
            world.network.post(WATCH, operator, Planned(content.id, part))
        content = Planned(content.id, result)
    world.to_arbiter(operator, content)


def perform(world: World, operator: AgentId, effect: Effect, before: Durable) -> None:
    """Perform an effect of the arbiter. before: its durable facts until then."""
    match effect:
        case Record(_, EventReason.RESTORING):
            if operator == world.operators.leader:  # a deposed leader cannot make it durable
                check_restore(world, before, effect)
        case Send(agent, message):
            node = world.nodes.get(agent)
            if node is not None and node.operator == operator:
                world.network.post(operator, agent, message)
        case Persist():
            world.network.post(STORE, operator, effect)
        case ComputePlan():
            world.network.post(WATCH, operator, effect)
        case Dismiss(agent, _):
            is_over = world.operators.arbiters[operator].durable.outcome is not None
            is_deaf = not world.network.reaches(agent) or agent in world.network.frozen
            if not is_over and not is_deaf:
                world.kill(agent)
