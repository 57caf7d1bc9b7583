"""What follows when the voters of a step do not agree about a forward.

Wrong bits have flowed into results of healthy agents, so the whole step is void: its results are
dropped everywhere, and it is computed again, with every forward that can be compared. An agent that
then contradicts itself ends its worker; that is an ordinary loss. If both repeat what they said,
nobody knows which one is right: training goes on from a checkpoint without either.
"""

from __future__ import annotations

from bamboo_core.api.events import EventReason, RestoreCause, Severity
from bamboo_core.arbiter.endings import restore
from bamboo_core.arbiter.losses import lose
from bamboo_core.arbiter.rounds import begin
from bamboo_core.arbiter.state import Over, Returning, State, Waiting
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import Dispute, Disputed

_MOST_DISPUTES = 2
"""About one step: the first makes it void, the second shows that a fault lasts."""


def disputed(state: State, message: Disputed, now: float) -> None:
    """A fact, whoever says it, until the step is void or committed."""
    durable = state.durable
    is_known = message.fence < durable.void or message.fence.attempt != durable.attempt
    if is_known or not message.disputes or isinstance(state.phase, Over | Waiting):
        return
    first = message.disputes[0]
    agents = [claim.agent for claim in first.claims]
    _record(state, message.step, first, agents)
    state.out.save(void=Fence(durable.attempt, state.term, state.epoch + 1))
    step, count = state.disputes
    count = count + 1 if step == message.step else 1
    state.disputes = message.step, count
    if count >= _MOST_DISPUTES:
        _give_up(state, first, agents, now)
    elif not isinstance(state.phase, Returning):  # its first STOP says so, too
        begin(state, f"step {message.step} is void: {_text(first, agents)}", cause=agents)


def _give_up(state: State, dispute: Dispute, agents: list[AgentId], now: float) -> None:
    why = f"{_text(dispute, agents)} again, and nobody knows who is right"
    for agent in agents:
        lose(state, agent, why, confirmed=False)
    restore(state, RestoreCause.CORRUPTION, why, now)


def _text(dispute: Dispute, agents: list[AgentId]) -> str:
    return (
        f"{' and '.join(agents)} differ in the forward of layers {dispute.lo} to {dispute.hi - 1}"
        f" for micro-batch {dispute.microbatch}"
    )


def _record(state: State, step: int, dispute: Dispute, agents: list[AgentId]) -> None:
    text = f"{_text(dispute, agents)} of step {step}: look for a faulty device or memory"
    state.record(
        EventReason.CORRUPTION,
        text,
        Severity.WARNING,
        agents=",".join(agents),
        step=step,
        layer=dispute.lo,
        microbatch=dispute.microbatch,
    )
