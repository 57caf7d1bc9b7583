"""Mode Auto: which redundancy the next plan has, and how often agents have been lost until now.

The mode is a durable fact of the plan in force, and so are the losses that were seen, so that a new
leader goes on with both. Other modes leave everything here as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from bamboo_core.api.events import EventReason, Severity
from bamboo_core.api.spec import JobSpec, RedundancyMode
from bamboo_core.arbiter.state import State
from bamboo_core.model.ids import AgentId
from bamboo_core.placement.capacity import pipelines_for
from bamboo_core.planning.requests import Decision
from bamboo_core.protection import facts
from bamboo_core.protection.choice import choose

_COUNT_S = 60.0  # between two counts of the agents that may be lost
_WORTH = 1.25  # growth of the agent-hours since the last write that is worth another one
_LEAST_HOURS = 0.5


def is_auto(state: State) -> bool:
    """Whether the spec leaves the mode to the arbiter."""
    return state.job.spec.redundancy.mode is RedundancyMode.AUTO


def lost(state: State, agent: AgentId) -> None:
    """A member is lost. Call it while the agent is still known."""
    if is_auto(state):
        count(state)
        record = state.membership.agents.get(agent)
        zone = record.hello.zone if record is not None else ""
        state.protection.hazard = state.protection.hazard.lost(zone)


def count(state: State) -> None:
    """Add the time since the last count: agents that were members then could be lost in it."""
    if not is_auto(state):
        return
    known, membership = state.protection, state.membership
    if known.counted_at is not None:
        known.hazard = known.hazard.exposed(known.zones, state.real_s - known.counted_at)
    known.counted_at = state.real_s
    known.zones = membership.zones(membership.members & membership.agents.keys())


def look(state: State) -> None:
    """Time has passed. What was seen is written when it has grown, and with every plan."""
    known = state.protection
    if not is_auto(state) or known.counted_at is None:
        return
    if state.real_s < known.counted_at + _COUNT_S:
        return
    count(state)
    if known.hazard.agent_hours > max(_LEAST_HOURS, _WORTH * state.durable.hazard.agent_hours):
        state.out.save(hazard=known.hazard.rounded())


def spec_of_plan(state: State, staying: Collection[AgentId]) -> JobSpec:
    """The spec with the mode that the next plan has. staying: members that will be in it."""
    spec = state.job.spec
    if not is_auto(state):
        return spec
    count(state)
    assert state.desired is not None
    membership = state.membership
    ready = membership.reference()
    zones = membership.zones(set(staying) & membership.agents.keys())
    seen = facts.Seen(
        state.protection.hazard.per_agent_hour(zones),
        memory_bytes=membership.smallest_memory(),
        step_s=state.ledger.whole_s,
        current=state.durable.mode,
    )
    wanted = state.desired.pipelines
    found = facts.gather(
        spec,
        ready.costs or facts.even_costs(ready.layers),
        seen,
        pipelines=pipelines_for(len(staying), stages=spec.pipelines.stages, wanted=wanted),
    )
    verdict = state.protection.verdict = choose(found)
    return replace(spec, redundancy=replace(spec.redundancy, mode=verdict.mode))


def put_in_force(state: State) -> str:
    """The plan is made: its mode is a fact from now on. Returns what has changed, in words."""
    verdict, before = state.protection.verdict, state.durable.mode
    if not is_auto(state) or verdict is None:
        return ""
    count(state)
    state.out.save(mode=verdict.mode, hazard=state.protection.hazard.rounded())
    return f"redundancy {verdict.mode.value}" if verdict.mode is not before else ""


def refusal(state: State, decision: Decision) -> str:
    """Why the job must not start under this plan; empty: it may.

    Memory is refused before the start only. A job that has trained goes on, and its status says
    what is short. Auto takes no mode that does not fit.
    """
    return "" if is_auto(state) or state.durable.pipelines else decision.shortage


def warn(state: State, before: str, shortage: str) -> None:
    """Say what is short under the new plan, unless it was so under the plan before."""
    if shortage and shortage != before:
        state.record(EventReason.MEMORY_SHORT, shortage, Severity.WARNING)
