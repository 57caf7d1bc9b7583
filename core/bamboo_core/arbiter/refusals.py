"""Newcomers that do not fit: they are compared with the members before they get a part."""

from __future__ import annotations

from collections.abc import Set

from bamboo_core.api.events import EventReason, Severity
from bamboo_core.arbiter_state.state import State
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.admission import Refusal


def fitting(state: State, newcomers: Set[AgentId]) -> Set[AgentId]:
    """Those that may become members now; those that differ are sent away.

    None, as long as the members that are left are not ready: a new leader may hear newcomers first,
    and must not take them for the job.
    """
    if not newcomers:
        return newcomers
    membership = state.membership
    if membership.awaits_reference():
        return frozenset()
    strangers = membership.strangers(newcomers, state.processor)
    for agent, refusal in sorted(strangers.items()):
        turn_away(state, agent, refusal)
    return newcomers - strangers.keys()


def look_at_newcomers(state: State) -> None:
    """A member has become ready, with which agents can be compared that came before it."""
    strangers = state.membership.strangers(state.membership.standby(), state.processor)
    for agent, refusal in sorted(strangers.items()):
        turn_away(state, agent, refusal)


def turn_away(state: State, agent: AgentId, refusal: Refusal) -> None:
    """The agent, which is no member, must end."""
    tell(state, agent, refusal)
    state.membership.suspect(agent, refusal.reason)
    state.evidence.forget(agent)
    state.stalls.activities.pop(agent, None)
    state.fence_suspect(agent)


def tell(state: State, agent: AgentId, refusal: Refusal) -> None:
    """Record that the agent is refused."""
    state.record(
        EventReason.AGENT_REFUSED,
        refusal.message,
        Severity.WARNING,
        agents=agent,
        cause=refusal.reason,
    )
