"""Why training stood still, in words, by the operator's events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bamboo_cli.job.events import JobEvent
from bamboo_core.api.events import EventFact, EventReason, StallCause
from bamboo_core.api.reasons import Reason
from bamboo_core.api.totals import PauseCause, cause_told_by, gravest

_TOGETHER_S = 1.0
"""What is recorded so shortly before a stop has led to it."""
_MOST_NAMES = 4

Zones = Mapping[str, str]
"""Agent -> zone; absent: not known."""


def during(known: Sequence[JobEvent], begin: float, end: float, after: float) -> list[JobEvent]:
    """The events of a pause, and those shortly before it. after: the end of the pause before."""
    first = max(begin - _TOGETHER_S, after)
    return [event for event in known if first <= event.at <= end]


@dataclass(frozen=True)
class Before:
    """The facts that had been recorded before a pause."""

    planned: frozenset[str] = frozenset()  # agents of the newest plan
    leaving: frozenset[str] = frozenset()  # agents that had said that they leave


def before(known: Iterable[JobEvent], at: float) -> Before:
    """The facts that had been recorded before this time. known: by time."""
    planned, leaving = frozenset[str](), frozenset[str]()
    for event in known:
        if event.at >= at:
            break
        if event.reason == EventReason.PLANNED:
            planned = event.agents
        elif event.reason == EventReason.AGENT_LEAVING:
            leaving |= event.agents
    return Before(planned, leaving)


def why(cause: str, found: Sequence[JobEvent], earlier: Before, zones: Zones) -> str:
    """The cause with its agents. found: what was recorded in the pause."""
    stoppers = _agents(found, EventReason.STOPPED)
    match cause:
        case PauseCause.LOSS:
            lost = stoppers | _agents(found, EventReason.AGENT_LOST)
            return f"loss of {names(lost, zones) or 'an agent'}"
        case PauseCause.NOTICE:
            said = _agents(found, EventReason.AGENT_LEAVING)
            leavers = stoppers or said
            kind = "notice to" if leavers & (said | earlier.leaving) else "drain of"
            return f"{kind} {names(leavers, zones) or 'an agent'}"
        case PauseCause.FAILURE:
            failed = _agents(found, EventReason.WORKER_FAILED) or stoppers
            return f"failure of {names(failed, zones) or 'an agent'}"
        case PauseCause.CORRUPTION:
            odd = _agents(found, EventReason.CORRUPTION) or stoppers
            return f"wrong bits: {names(odd, zones) or 'agents not known'}"
        case PauseCause.USER_CODE:
            return _of_users(found, stoppers, zones)
        case PauseCause.STALL:
            return _stalled(found, zones)
        case PauseCause.RESTORE:
            return _restored(found)
        case PauseCause.NEW_LEADER:
            return "another operator took over"
        case PauseCause.CHANGE:
            return _changed(found, earlier.planned, zones)
    if guessed := guess(found):
        return why(guessed, found, earlier, zones)
    return f"because of {names(stoppers, zones)}" if stoppers else "not known"


def guess(found: Sequence[JobEvent]) -> str:
    """The cause of a pause that is not over, or whose cause an earlier version has not told; empty:
    its events do not say."""
    causes = [cause_told_by(each.reason, each.facts.get(EventFact.CAUSE, "")) for each in found]
    if known := [cause for cause in causes if cause is not None]:
        return gravest(known)
    return PauseCause.LOSS if _agents(found, EventReason.AGENT_LOST) else ""


def names(agents: Iterable[str], zones: Zones) -> str:
    """Such as ``gpt-p0-s1-i0 in zone a, gpt-p1-s1-i0 and 3 more``."""
    every = sorted(agents)
    listed = [f"{a} in zone {zones[a]}" if zones.get(a) else a for a in every[:_MOST_NAMES]]
    more = f" and {len(every) - _MOST_NAMES} more" if len(every) > _MOST_NAMES else ""
    return ", ".join(listed) + more


def _agents(found: Iterable[JobEvent], reason: EventReason) -> frozenset[str]:
    return frozenset[str]().union(*(event.agents for event in found if event.reason == reason))


def _newest(found: Sequence[JobEvent], reason: EventReason) -> JobEvent | None:
    return next((event for event in reversed(found) if event.reason == reason), None)


def _of_users(found: Sequence[JobEvent], stoppers: frozenset[str], zones: Zones) -> str:
    """An error comes after a sample was awaited in vain, so it says more."""
    told = {(e.reason, e.facts.get(EventFact.CAUSE)): e.agents for e in found}
    failed = told.get((EventReason.WORKER_FAILED, Reason.USER_CODE_FAILED), frozenset())
    if not failed and (EventReason.STALLED, StallCause.DATA) in told:
        return "a sample of your data does not come"
    agents = names(failed or stoppers, zones)
    return "error of your code" + (f" on {agents}" if agents else "")


def _stalled(found: Sequence[JobEvent], zones: Zones) -> str:
    event = _newest(found, EventReason.STALLED)
    if event is None:
        return "standstill"
    agents = names(event.agents, zones)
    kind = event.facts.get(EventFact.CAUSE, "")
    return f"standstill ({kind})" + (f" because of {agents}" if agents else "")


def _restored(found: Sequence[JobEvent]) -> str:
    event = _newest(found, EventReason.RESTORING)
    if event is None:
        return "restore"
    step, cause = event.number(EventFact.STEP), event.facts.get(EventFact.CAUSE, "")
    return f"restore from step {step}" + (f" ({cause})" if cause else "")


def _changed(found: Sequence[JobEvent], planned: frozenset[str], zones: Zones) -> str:
    plan = _newest(found, EventReason.PLANNED)
    if plan is None or not planned:
        return "change of the plan"
    if joined := plan.agents - planned:
        return f"join of {names(joined, zones)}"
    if left := planned - plan.agents:
        return f"plan without {names(left, zones)}"
    return "change of the plan with the same agents"
