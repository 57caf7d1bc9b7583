"""The simulated operator's shell: performs what Leadership decides and delivers the answers.

It does what bamboo_operator.arbiters.job_actor does with asyncio, gRPC and the API server.
"""

from __future__ import annotations

import json
from math import inf
from typing import Any

from bamboo_core.api.events import EventFact, EventReason, RestoreCause
from bamboo_core.api.outcome import Outcome
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import (
    ComputePlan,
    Connected,
    Disconnected,
    Dismiss,
    Persist,
    Planned,
    Record,
    Send,
)
from bamboo_core.job.durable_writer import RETRY_S, OvertakenError
from bamboo_core.job.leadership import Action, Restarted, Wake
from bamboo_core.model.ids import AgentId
from bamboo_core.planning.requests import Decision, Fatal, PlannerFault
from bamboo_core.protocol.messages import Stop
from bamboo_sim.protocol.checker.asking import (
    check_answer,
    check_asked,
    check_rest,
    follow,
    note,
)
from bamboo_sim.protocol.checker.claims import (
    check_dismissed,
    check_listed,
    check_loss,
    check_reports,
    check_stall,
)
from bamboo_sim.protocol.checker.corruption import check_blame, note_told
from bamboo_sim.protocol.checker.last_write import (
    check_failed,
    check_given_up,
    check_released,
    note_unwritten,
)
from bamboo_sim.protocol.checker.moving import check_moved, check_remembered
from bamboo_sim.protocol.checker.restores import check_newest, check_restore, check_suspended
from bamboo_sim.protocol.checker.verdict import check_fatal, check_kinds, check_plan
from bamboo_sim.protocol.control.operator import Operator
from bamboo_sim.protocol.parts.messages import (
    Closed,
    Ended,
    LeadAgain,
    Look,
    LookAtFacts,
    Opened,
    Put,
)
from bamboo_sim.protocol.parts.network import PLANNER, STORE, WATCH
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.world.state import World


class InjectedDefectError(Exception):
    """A defect of the arbiter or its shell, on purpose."""


# ---------------------------------------------------------------- events


def serve(world: World, name: AgentId, content: Any) -> None:
    """Deliver a message to an operator: from an agent, the cluster, the API server, the planner."""
    operator = world.operators.running.get(name)
    if isinstance(content, Put):
        _put(world, operator, content)
    if operator is None:
        return
    match content:
        case Opened():
            _open(world, operator, content)
        case Ended(agent, stream):
            if operator.sessions.get(agent) == stream:
                del operator.sessions[agent]
                tell(world, operator, Disconnected(agent))
        case Look(dead):
            operator.dead |= dead
            look(world, operator)
        case LookAtFacts():
            _look_at_facts(world, operator, content)
        case LeadAgain():
            _lead_again(world, operator)
        case ComputePlan():
            _compute(world, operator, content)
        case Put():
            pass
        case _:
            tell(world, operator, content)


def tell(world: World, operator: Operator, event: Any) -> None:
    """Let Leadership decide about an event, and perform the result."""
    if operator.is_overtaken:
        return
    before = operator.arbiter.durable
    leadership = operator.leadership
    note(operator, event)
    now, heard_at = world.now, operator.hearing.at(world.now)
    for action in leadership.handle(event, now, is_leading=operator.is_leading, heard_at=heard_at):
        _perform(world, operator, action, before)
    if operator.name == world.operators.leader:
        if not leadership._held:  # without its lease it handles nothing, and all of it later
            check_answer(world, operator, event)
        follow(operator, world.now)


def fail(world: World, operator: Operator) -> None:
    """A defect of the shell: the arbiter begins again after a pause."""
    before = operator.arbiter.durable
    for action in operator.leadership.fail(InjectedDefectError(), world.now):
        _perform(world, operator, action, before)


def look(world: World, operator: Operator) -> None:
    """Reconcile: show the spec and the cluster to Leadership."""
    operator.must_look = False
    tell(world, operator, world.operators.observed(operator, world.pods))


def pass_time(world: World, operator: Operator) -> None:
    """Repeat a failed write once its time has come."""
    if operator.retry_at is not None and world.now >= operator.retry_at:
        operator.retry_at = None
        _write(world, operator)


def _open(world: World, operator: Operator, opened: Opened) -> None:
    """A stream begins; an older one of the same agent ends."""
    agent = opened.hello.agent
    _close(world, operator, agent)
    operator.sessions[agent] = opened.stream
    tell(world, operator, Connected(opened.hello, agent.encode()))


def _close(world: World, operator: Operator, agent: AgentId) -> None:
    stream = operator.sessions.pop(agent, None)
    if stream is not None:
        world.network.post(operator.name, agent, Closed(stream))


# ---------------------------------------------------------------- effects


def _perform(world: World, operator: Operator, action: Action, before: Durable) -> None:
    """Perform an action of Leadership. before: the arbiter's durable facts until then."""
    match action:
        case Send():
            _send(world, operator, action)
        case Persist():
            is_leader = operator.name == world.operators.leader
            if is_leader:
                check_suspended(world, before, action.durable)
                check_rest(world, operator, before, action.durable)
                check_given_up(world, before, action.durable)
                check_failed(world, before, action.durable)
            note_unwritten(world, action.durable, is_leader=is_leader)
            if operator.writer.put(action):
                _write(world, operator)
        case ComputePlan():
            if operator.name == world.operators.leader:
                check_newest(world, operator)
                check_remembered(world.plan, action.request)
            if action.request.goodput < inf:
                world.strike("measured network")
            operator.computing = action
            world.network.post(PLANNER, operator.name, action)
        case Record() if action.reason is EventReason.PROCESSOR_CHANGED:
            world.told_kind = operator.arbiter.durable.processors[-1].products
        case Record() if operator.name == world.operators.leader:
            _check(world, operator, action, before)
        case Dismiss(agent, _):
            _dismiss(world, operator, agent)
        case Restarted():
            _restarted(world, operator, action)
        case Wake() if operator.must_look:
            operator.must_look = False
            world.network.post(WATCH, operator.name, Look())
        case _:
            pass


def _check(world: World, operator: Operator, record: Record, before: Durable) -> None:
    """Check that the leader says the truth. A deposed one cannot make its words durable."""
    if record.reason is EventReason.RESTORING:
        check_restore(world, before, record)
        if record.facts[EventFact.CAUSE] in (RestoreCause.LAYER_LOST, RestoreCause.NO_VOTER):
            check_listed(world, operator.name)
            check_asked(world, operator, before, record.message)
        elif record.facts[EventFact.CAUSE] == RestoreCause.CORRUPTION:
            begun = int(record.facts[EventFact.ATTEMPT]), int(record.facts[EventFact.STEP])
            world.rolled_back = dict((*world.rolled_back.items(), begun))
    elif record.reason is EventReason.AGENTS_RELEASED:
        check_released(world, record)
    elif record.reason is EventReason.AGENT_LOST:
        check_loss(world, operator, record)
    elif record.reason is EventReason.WORKER_FAILED:
        check_blame(world, record)
    elif record.reason is EventReason.CORRUPTION:
        note_told(world, record)
    elif record.reason is EventReason.STALLED:
        check_stall(world, record)


def _send(world: World, operator: Operator, send: Send) -> None:
    """Send a message to an agent. It is lost if the agent has left the stream."""
    agent, name = send.agent, operator.name
    if isinstance(send.message, Stop) and name == world.operators.leader:
        world.asked[agent] = world.now
    node, stream = world.nodes.get(agent), operator.sessions.get(agent)
    if node is not None and (node.operator, node.stream) == (name, stream):
        world.network.post(name, agent, send.message)


def _dismiss(world: World, operator: Operator, agent: AgentId) -> None:
    check_dismissed(world, operator, agent)
    is_over = operator.arbiter.durable.outcome not in (None, Outcome.SUSPENDED)
    is_deaf = not world.network.reaches(agent) or agent in world.network.frozen
    if not is_over and not is_deaf:
        world.kill(agent)


def _restarted(world: World, operator: Operator, restarted: Restarted) -> None:
    cause = restarted.cause
    if isinstance(cause, Exception) and not isinstance(cause, InjectedDefectError):
        raise Violation(f"the arbiter fails: {type(cause).__name__}: {cause}") from cause
    operator.writer.drop()
    operator.computing, operator.must_look = None, True
    for agent in sorted(operator.sessions):
        _close(world, operator, agent)


# ---------------------------------------------------------------- facts


def _write(world: World, operator: Operator) -> None:
    durable = operator.writer.next()
    if durable is not None:
        world.network.post(STORE, operator.name, LookAtFacts(durable, operator.leader_facts))


def _look_at_facts(world: World, operator: Operator, order: LookAtFacts) -> None:
    if order.leader_facts is not operator.leader_facts:
        return
    store = world.operators.store
    try:
        order.leader_facts.check(store.facts, order.durable)
    except OvertakenError:
        operator.is_overtaken = True
        operator.writer.end()
        world.network.post(WATCH, operator.name, LeadAgain())
        return
    text = json.dumps(order.leader_facts.body(order.durable))
    world.network.post(STORE, operator.name, Put(store.version, text, order))


def _put(world: World, operator: Operator | None, put: Put) -> None:
    """The API server answers a write, even if its operator is gone."""
    operators, fails = world.operators, world.write_faults > 0
    before = operators.durable
    is_written = (not fails or world.are_answers_lost) and operators.write(put.version, put.text)
    if is_written:
        check_plan(world, before)
        check_kinds(world)
    if (
        operator is None
        or operator.is_overtaken
        or put.order.leader_facts is not operator.leader_facts
    ):
        return
    if fails:
        world.write_faults -= 1
        operator.retry_at = world.now + RETRY_S
    elif not is_written:
        world.network.post(STORE, operator.name, put.order)
    else:
        done = operator.writer.written()
        if done is not None:
            tell(world, operator, done)
        _write(world, operator)


def _lead_again(world: World, operator: Operator) -> None:
    """Reconcile replaces the job's actor by one that begins from the present facts."""
    for agent in sorted(operator.sessions):
        _close(world, operator, agent)
    world.operators.lead_again(operator.name)
    again = world.operators.running[operator.name]
    if again is not operator:
        look(world, again)


# ---------------------------------------------------------------- plans


def _compute(world: World, operator: Operator, wanted: ComputePlan) -> None:
    if world.planner_faults > 0:
        world.planner_faults -= 1
        fault = PlannerFault("MemoryError: a fault of the planner")
        tell(world, operator, Planned(wanted.id, fault))
        return
    check_reports(wanted)
    first, *rest = world.operators.answers(wanted)
    if isinstance(first.result, Fatal):
        check_fatal(world, wanted, first.result)
    move, result = wanted.request.move, first.result
    if isinstance(result, Decision):
        check_moved(wanted.request, result.plan)
    if move is not None and isinstance(result, Decision):
        if result.plan.move == move:
            world.strike("move begun")
        elif result.plan.seats.get(move.agent) == move.to:
            world.strike("move made")
    if world.planner_losses and rest:
        world.planner_losses -= 1
        world.strike("lose continuation")
        rest.clear()
    for part in rest:  # it comes later, and anything may happen before
        world.network.post(PLANNER, operator.name, part)
    tell(world, operator, first)
