"""Voters do not agree about a forward: the step is void, and the agent that is wrong has to go.

The first dispute about a step makes it void: an agent that then contradicts itself ends. The second
one opens a doubt: the agents that differ only send copies, others compute the step, and their claim
decides. Every dispute makes the step void, so nothing that follows from it is ever committed.
"""

from __future__ import annotations

from collections.abc import Collection

from bamboo_core.api.events import EventReason, RestoreCause, Severity
from bamboo_core.api.reasons import FailureCause
from bamboo_core.arbiter.endings import restore
from bamboo_core.arbiter.losses import blame, lose
from bamboo_core.arbiter.rounds import begin, is_short
from bamboo_core.arbiter.state import Collecting, Over, Returning, State, Waiting
from bamboo_core.model.claims import can_decide, odd_ones
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import Dispute, Disputed, Doubt

_LASTS = 2
"""Disputes about one step that show that a fault lasts."""


def disputed(state: State, message: Disputed, now: float) -> None:
    """Voters do not agree about a forward. A fact, whoever says it, until the step is void."""
    durable = state.durable
    is_known = message.fence < durable.void or message.fence.attempt != durable.attempt
    if is_known or not message.disputes or isinstance(state.phase, Over | Waiting):
        return
    first, doubt = message.disputes[0], durable.doubt
    _record(state, message.step, first)
    step, count = state.disputes
    count = count + 1 if step == message.step else 1
    state.disputes = message.step, count
    void = Fence(durable.attempt, state.term, state.epoch + 1)
    is_tried = doubt is not None and doubt.step == message.step
    odd = frozenset[AgentId]().union(*map(odd_ones, message.disputes))
    if odd:
        state.out.save(void=void, doubt=None)
        _convict(state, message.step, first, odd)
    elif is_tried or (count >= _LASTS and not can_decide(first)):
        why = f"{_text(first)} again, and nobody knows who is right"
        _give_up(state, {*_agents(first), *state.doubted}, why, now)
    else:
        state.out.save(void=void, doubt=Doubt(message.step, first) if count >= _LASTS else None)
        _begin(state, f"step {message.step} is void: {_text(first)}", _agents(first))


def settle(state: State, now: float) -> None:
    """All members have reported: a doubt is over if its step is committed, or if too few agents
    are left to compute the step."""
    phase, doubt = state.phase, state.durable.doubt
    members = state.membership.members
    if doubt is None or not isinstance(phase, Collecting) or members - phase.reports.keys():
        return
    known = [record.step for report in phase.reports.values() for record in report.commits]
    state.settle_doubt(max(known, default=-1))
    if state.doubted and members and is_short(state):
        why = f"{_text(doubt.dispute)} again, and too few other agents are left to decide"
        _give_up(state, state.doubted, why, now)


def _convict(state: State, step: int, dispute: Dispute, odd: Collection[AgentId]) -> None:
    """Leave out the agents that are wrong. The others take part again in the next plan."""
    epoch = state.epoch
    for agent in sorted(odd):
        why = f"{_text(dispute)} of step {step}, and {agent} is wrong: the others agree"
        blame(state, agent, FailureCause.CORRUPTION, why)
        lose(state, agent, why, confirmed=False)
        if agent in state.membership.suspected:
            state.fence_suspect(agent)
    if state.epoch == epoch:
        _begin(state, f"step {step} is void: {_text(dispute)}", odd)


def _begin(state: State, why: str, agents: Collection[AgentId]) -> None:
    if not isinstance(state.phase, Returning):  # its first STOP says that the step is void, too
        begin(state, why, cause=agents)


def _give_up(state: State, agents: Collection[AgentId], why: str, now: float) -> None:
    """Training goes on from a checkpoint without these agents. None is blamed."""
    for agent in sorted(agents):
        lose(state, agent, why, confirmed=False)
    restore(state, RestoreCause.CORRUPTION, why, now)


def _agents(dispute: Dispute) -> list[AgentId]:
    return sorted(claim.agent for claim in dispute.claims)


def _text(dispute: Dispute) -> str:
    return (
        f"{' and '.join(_agents(dispute))} differ in the forward of layers {dispute.lo} to"
        f" {dispute.hi - 1} for micro-batch {dispute.microbatch}"
    )


def _record(state: State, step: int, dispute: Dispute) -> None:
    text = f"{_text(dispute)} of step {step}: look for a faulty device or memory"
    state.record(
        EventReason.CORRUPTION,
        text,
        Severity.WARNING,
        agents=",".join(_agents(dispute)),
        step=step,
        layer=dispute.lo,
        microbatch=dispute.microbatch,
    )
