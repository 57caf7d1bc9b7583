"""Suspects are awaited and asked before anything is given up that they hold, and their answers
count.

An agent is *well* from the moment on from which nothing is wrong with it, its links and the
operator. Only suspects with a session can be asked, but all that live are awaited.
"""

from __future__ import annotations

import re
from math import inf

from bamboo_core.api.outcome import Outcome
from bamboo_core.arbiter_state.durable import Durable, eligible, with_newer
from bamboo_core.arbiter_state.events import Received, Tick
from bamboo_core.arbiter_state.state import (
    Collecting,
    Holding,
    Over,
    Planning,
    Stopped,
    Waiting,
)
from bamboo_core.arbiter_state.waits import ASKS
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import AgentReport
from bamboo_sim.protocol.checker.restores import lost_layers
from bamboo_sim.protocol.control.operator import Operator
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.world.state import World

_ROUND_S = 3.0
"""In which agents that are well answer, and others are found to be late: the least time of a report
and of a tick. What is to be given up may be due before a round in which all become suspects."""

_IDLE_S = 30.0


def note(operator: Operator, event: object) -> None:
    """Before an event: who counts, who is suspected, whose answers are awaited, whether a plan is,
    and how many steps are known to be committed."""
    state = operator.arbiter.state
    phase, membership = state.phase, state.membership
    operator.agents, operator.unasked = {*membership.agents}, state.unasked()
    operator.suspects = {*membership.suspected}
    operator.askable = membership.askable()
    operator.unanswered = set()
    operator.awaits_plan = isinstance(phase, Planning) and isinstance(event, Tick)
    operator.done = max(state.ledger.newest(state.durable) + 1, state.durable.undone)
    if isinstance(phase, Collecting):
        operator.unanswered = membership.members - phase.reports.keys()


def follow(operator: Operator, now: float) -> None:
    """After an event: since when agents are suspects, and since when something is to be given up
    unless an agent helps. Plans that come to nothing do not end that, but a commit does, and any
    other reason to wait."""
    state = operator.arbiter.state
    known = operator.suspected_at
    operator.suspected_at = {a: known.get(a, now) for a in state.membership.suspected}
    committed = state.ledger.progress.committed
    is_due = isinstance(state.phase, Holding) and state.phase.due_by < inf
    is_over = committed != operator.due_after or isinstance(state.phase, Holding | Waiting | Over)
    if is_due and operator.due_since == inf:
        operator.due_since, operator.due_after = now, committed
    elif is_over and not is_due:
        operator.due_since = inf


def check_asked(world: World, operator: Operator, before: Durable, text: str) -> None:
    """Before a restore every suspect has been waited for that can be asked, or that lives and holds
    what is given up; one that has been well for some time has been asked since then, and not only
    long ago; and no round is cut off. before: the durable facts until then."""
    wait_s = world.job.arbiter_job.timing.voter_wait_s
    asks_s = wait_s / ASKS + _ROUND_S
    askable = operator.askable & world.nodes.keys()
    waited_s = _waited_s(world, operator)
    awaited = sorted(askable | _holders(world, operator, before))
    if awaited and waited_s < wait_s - _ROUND_S:
        raise Violation(f"restored, but {awaited} were waited for {waited_s:g} s: {text}")
    for agent in sorted(askable):
        asked_at, well_since = world.asked.get(agent, -inf), world.well_since(agent)
        if world.now - well_since < asks_s:
            continue
        if asked_at < well_since:
            why = f"{agent} has been well since {well_since:g} s and was not asked"
            raise Violation(f"restored at {world.now:g} s, but {why}: {text}")
        if world.now - asked_at > asks_s:
            why = f"{agent} was asked {world.now - asked_at:g} s ago"
            raise Violation(f"restored, but {why}: {text}")
    awaited = [a for a in sorted(operator.unanswered) if _is_well(world, a)]
    if awaited or operator.awaits_plan:
        raise Violation(f"restored while {awaited or 'the planner'} may answer: {text}")


def _waited_s(world: World, operator: Operator) -> float:
    return max(0.0, world.now - operator.due_since)


def _holders(world: World, operator: Operator, before: Durable) -> set[AgentId]:
    """Live suspects with which no layer is lost, though one is without them. None if no voter of
    the newest plan lives: then nobody knows how many steps are committed."""
    nodes = {
        name: node
        for name, node in sorted(world.nodes.items())
        if name in operator.agents | operator.suspects
        and node.executor.fence.attempt == before.attempt
    }
    others = {name: node for name, node in nodes.items() if name not in operator.suspects}
    if nodes.keys().isdisjoint(before.voters) or before.batch is None:
        return set()
    if lost_layers(world, before, nodes) or not lost_layers(world, before, others):
        return set()
    return nodes.keys() - others.keys()


def _is_well(world: World, agent: AgentId) -> bool:
    is_there = agent in world.nodes and agent not in world.noticed
    return is_there and world.now > world.well_since(agent)


def check_rest(world: World, operator: Operator, before: Durable, after: Durable) -> None:
    """A job that cannot go on is suspended only after its suspects had time to come back, and those
    that are back were asked. It says what it will repeat."""
    if before.outcome is not None or after.outcome is not Outcome.SUSPENDED:
        return
    _check_words(world, operator, after)
    waited_s, wait_s = _waited_s(world, operator), world.job.arbiter_job.timing.voter_wait_s
    alive, there = operator.suspects & world.nodes.keys(), operator.unasked & world.nodes.keys()
    is_short = bool(before.voters) and "too few" in after.message
    if is_short and there:
        raise Violation(f"suspended, but {sorted(there)} were not asked: {after.message}")
    is_restored = bool(before.voters) and after.attempt > before.attempt
    awaited = alive if is_short else _holders(world, operator, before) if is_restored else None
    if awaited and waited_s < wait_s - _ROUND_S:
        text = f"{sorted(awaited)} were waited for {waited_s:g} s"
        raise Violation(f"suspended, but {text}: {after.message}")


def _check_words(world: World, operator: Operator, after: Durable) -> None:
    """The message says how many committed steps will be repeated, if any. An attempt that has
    committed nothing leaves no newer checkpoint behind."""
    attempt, step = world.newest
    facts = with_newer(after, step if attempt == after.attempt else -1)
    saved = max((m.step for m in eligible(facts)), default=0)
    found = re.search(r"([1-9]\d*) committed steps? since .* will be repeated", after.message)
    is_written = "suspended after" in after.message  # the last plan has run
    if operator.done > saved and not is_written and not found:
        raise Violation(f"{operator.done - saved} steps will be repeated, but: {after.message}")


def check_answer(world: World, operator: Operator, event: object) -> None:
    """After a suspect's answer to the newest STOP it is no suspect any more."""
    if not isinstance(event, Received) or not isinstance(event.message, AgentReport):
        return
    state = operator.arbiter.state
    is_newest = event.message.fence == state.fence and isinstance(state.phase, Stopped)
    if is_newest and event.agent in operator.askable & state.membership.askable():
        raise Violation(f"{event.agent} answers, and stays a suspect")


def check_idle(world: World, operator: Operator) -> None:
    """A job that waits asks suspects again in twice the time for which anything was wrong."""
    state = operator.arbiter.state
    if not isinstance(state.phase, Holding):
        return
    for agent in sorted(state.membership.askable() & world.nodes.keys()):
        well_since = max(world.well_since(agent), operator.suspected_at[agent])
        ill_s = world.well_since(agent) - world.ill_since.get(agent, 0.0)
        patience_s = max(_IDLE_S, 2 * ill_s)
        is_asked = world.asked.get(agent, -inf) >= well_since
        if not is_asked and world.now - well_since > patience_s:
            raise Violation(f"{agent} has been well since {well_since:g} s and is not asked")
