"""Why training does not go on although every agent lives: the wait-for graph.

An agent that waits for an item waits for the agent that sends it. A chain of such waits ends in an
agent that computes, which is well until that takes too long; in an agent that has nothing to do,
so that the item will never come; or in itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bamboo_core.api.events import StallCause
from bamboo_core.evidence.liveness import Link
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Activity, ActivityKind

_MOST_NAMED = 4  # agents of a chain in a message
_COMMON = 4.0  # factor to the limit if several agents are late: what they share may be slow
_LASTING_S = 120.0  # a link that is slow for so long counts even if others are, too
_STORAGE_S = 120.0  # a wait for storage, or for a sample, that users should know of


DATA_REMEDY = "its __getitem__ has not returned: give what it waits for a time-out that raises"
"""About data that are read for far too long."""


@dataclass(frozen=True)
class Stall:
    """A standstill of the training, and the agents that cause it."""

    cause: StallCause
    roots: tuple[AgentId, ...]  # to replace one of them helps, if planning again does not
    message: str


def find(
    activities: Mapping[AgentId, Activity],
    members: Collection[AgentId],
    *,
    wait_s: float,
    finished: Collection[AgentId] = (),
    is_complete: bool = False,
) -> Stall | None:
    """The stall that must be mended first; None if training goes on.

    activities: what has lasted for a while; an agent that is not named here does something new.
    wait_s: a shorter wait may still end by what is under way; finished: agents that have nothing to
    do any more; is_complete: the operator has sent all that agents may wait for.
    """
    known = {a: x for a, x in activities.items() if a in members}
    overdue = _overdue_agents(known)
    if len(overdue) > 1:  # a shared storage of samples, for example: more agents would be lost
        overdue = [a for a in overdue if known[a].age_s >= _COMMON * known[a].limit_s]
    if overdue:
        return _overdue(max(overdue, key=lambda a: known[a].age_s - known[a].limit_s), known)
    long = {a for a, x in known.items() if x.kind is ActivityKind.WAITING and x.age_s >= wait_s}
    for agent in sorted(long, key=lambda a: (-known[a].age_s, a)):
        stall = _follow(agent, known, long, members, wait_s, is_complete=is_complete)
        if stall is not None:
            return stall
    return _all_idle(known, [a for a in sorted(members) if a not in finished], wait_s)


def _all_idle(
    known: Mapping[AgentId, Activity], left: list[AgentId], wait_s: float
) -> Stall | None:
    """Nobody works or waits, though some have not finished: they have not begun their programs."""
    for agent in left:
        activity = known.get(agent)
        if activity is None or activity.kind is not ActivityKind.IDLE or activity.age_s < wait_s:
            return None
    if not left:
        return None
    text = f"all agents are idle, although some have not begun their programs: {_names(left)}"
    return Stall(StallCause.NOT_SENT, tuple(left), text)


def slow_storage(activities: Mapping[AgentId, Activity], members: Collection[AgentId]) -> str:
    """Which members have waited for storage for long, in words; empty: none."""
    files = [(s, a) for s, a in _loading(activities, members) if activities[a].limit_s == 0.0]
    if not files:
        return ""
    names, longest = _names(sorted(a for _, a in files)), max(files)[0]
    return f"storage is slow: {names} have waited for files for up to {longest:.0f} s"


def slow_data(activities: Mapping[AgentId, Activity], members: Collection[AgentId]) -> str:
    """Which member has waited for a sample of the user's data for long, in words; empty: none."""
    loading = _loading(activities, members)
    data = [(s, a) for s, a in loading if _is_data(activities[a]) and activities[a].limit_s > s]
    if not data:
        return ""
    age_s, agent = max(data)
    does, limit_s = activities[agent].instruction, activities[agent].limit_s
    return (
        f"data are slow: {does} on {agent} has taken {age_s:.0f} s, at most {limit_s:.0f} s are"
        f" expected; {DATA_REMEDY}"
    )


def _loading(
    activities: Mapping[AgentId, Activity], members: Collection[AgentId]
) -> list[tuple[float, AgentId]]:
    """(seconds, member) of waits for storage or data of which users should know."""
    return [
        (x.age_s, a)
        for a, x in activities.items()
        if a in members and x.kind is ActivityKind.LOADING and x.age_s >= _STORAGE_S
    ]


def _is_data(activity: Activity) -> bool:
    """Whether an instruction reads samples; others read layers."""
    return activity.kind is ActivityKind.LOADING and " reads " in activity.instruction


def several_overdue(activities: Mapping[AgentId, Activity], members: Collection[AgentId]) -> str:
    """Which members are late together, though not late enough for :func:`find`; empty: none."""
    known = {a: x for a, x in activities.items() if a in members}
    late = _overdue_agents(known)
    if len(late) < 2 or any(known[a].age_s >= _COMMON * known[a].limit_s for a in late):
        return ""
    first = max(late, key=lambda a: (known[a].age_s - known[a].limit_s, a))
    found = known[first]
    return (
        f"{len(late)} agents are late together ({_names(late)}): {found.instruction or found.kind}"
        f" on {first} has taken {found.age_s:.0f} s, at most {found.limit_s:.0f} s are expected;"
        f" what several agents wait for has {_COMMON * found.limit_s:.0f} s, since to replace them"
        " would not help"
    )


class SlowLink(NamedTuple):
    """A link that passes hardly anything of what is awaited."""

    ends: Link
    sender: AgentId
    still_s: float  # for so long
    message: str

    @property
    def is_lasting(self) -> bool:
        """Whether it is slow for so long that it counts even if others are, too."""
        return self.still_s >= _LASTING_S


def slow_links(
    activities: Mapping[AgentId, Activity], members: Collection[AgentId]
) -> list[SlowLink]:
    """The links of members that count as standing still, in the order of their ends."""
    found: dict[Link, SlowLink] = {}
    for agent, x in sorted(activities.items()):
        if not x.still_s or x.peer is None or not {agent, x.peer} <= set(members):
            continue
        ends = min(agent, x.peer), max(agent, x.peer)
        text = (
            f"{agent} has got {_rate(x.rate)} from {x.peer} for {x.still_s:.0f} s"
            f" ({x.instruction}): the link counts as standing still"
        )
        if ends not in found or found[ends].still_s < x.still_s:
            found[ends] = SlowLink(ends, x.peer, x.still_s, text)
    return sorted(found.values())


def _rate(rate: float) -> str:
    return f"{rate:.0f} B/s" if rate < 1000 else f"{rate / 1000:.0f} kB/s"


def _overdue_agents(known: Mapping[AgentId, Activity]) -> list[AgentId]:
    return [a for a, x in sorted(known.items()) if _is_overdue(x)]


def _is_overdue(activity: Activity) -> bool:
    is_busy = activity.kind in (ActivityKind.RUNNING, ActivityKind.LOADING)
    return is_busy and 0.0 < activity.limit_s <= activity.age_s


def _overdue(agent: AgentId, known: Mapping[AgentId, Activity]) -> Stall:
    found = known[agent]
    waiting = sorted(a for a, x in known.items() if x.peer == agent)
    text = (
        f"{found.instruction or found.kind} on {agent} has taken {found.age_s:.1f} s, at most"
        f" {found.limit_s:.1f} s are expected"
    )
    if waiting:
        text += f"; {_names(waiting)} wait for it"
    if _is_data(found):
        text += f"; {DATA_REMEDY}"
    return Stall(StallCause.OVERDUE, (agent,), text)


def _follow(
    start: AgentId,
    known: Mapping[AgentId, Activity],
    long: Collection[AgentId],
    members: Collection[AgentId],
    wait_s: float,
    *,
    is_complete: bool,
) -> Stall | None:
    """The end of the chain of waits that begins with the agent."""
    chain: list[AgentId] = []
    agent = start
    while agent in long:
        if agent in chain:
            return _cycle(chain[chain.index(agent) :], known)
        chain.append(agent)
        peer = known[agent].peer
        if peer is None and not is_complete:
            return None  # it waits for the operator, which knows why
        if peer is None:
            text = f"{agent} has waited for {known[agent].age_s:.1f} s for orders that it has had"
            return Stall(StallCause.NOT_SENT, (agent,), text)
        agent = peer
    end = known.get(agent)
    if agent not in members:
        return _not_sent(chain[-1], agent, "takes no part", known)
    is_idle = end is not None and end.kind is ActivityKind.IDLE and end.age_s >= wait_s
    return _not_sent(chain[-1], agent, "has nothing to do", known) if is_idle else None


def _cycle(cycle: list[AgentId], known: Mapping[AgentId, Activity]) -> Stall:
    """Roots: the agents of the cycle, first those for which most others wait."""
    count = Counter(x.peer for x in known.values())
    parts = [f"{a} for {known[a].peer} ({known[a].instruction})" for a in cycle[:_MOST_NAMED]]
    least_s = min(known[a].age_s for a in cycle)
    text = f"agents have waited for each other for {least_s:.1f} s: {', '.join(parts)}"
    if len(cycle) > _MOST_NAMED:
        text += f" and {len(cycle) - _MOST_NAMED} more"
    return Stall(StallCause.CYCLE, tuple(sorted(cycle, key=lambda a: (-count[a], a))), text)


def _not_sent(
    waiter: AgentId, sender: AgentId, why: str, known: Mapping[AgentId, Activity]
) -> Stall:
    found = known[waiter]
    text = (
        f"{waiter} has waited for {sender} for {found.age_s:.1f} s ({found.instruction}), and"
        f" {sender} {why}"
    )
    return Stall(StallCause.NOT_SENT, (sender, waiter), text)


def _names(agents: list[AgentId]) -> str:
    more = f" and {len(agents) - _MOST_NAMED} more" if len(agents) > _MOST_NAMED else ""
    return ", ".join(agents[:_MOST_NAMED]) + more
