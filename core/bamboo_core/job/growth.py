"""Adds up what agents report as sums since their start: bytes sent, and host memory. Pure.

Only what has grown counts, so a report may be repeated or missed. The sums of an agent that an
earlier operator has heard are in the job's status already: they count from its first report on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bamboo_core.api.progress import MOST_ZONES, OTHERS, Ahead, Hosted, Lane, Sent, Way, increase
from bamboo_core.api.totals import Totals
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import Hello, Progress

UNKNOWN = "unknown"
"""The zone of an agent whose node has none."""
_MOST_AGENTS = 4096


@dataclass(frozen=True)
class _Sums:
    """The newest sums that one agent has reported."""

    ahead: Ahead = Ahead()  # noqa: RUF009 - frozen
    hosted: Hosted = Hosted()  # noqa: RUF009 - frozen
    sent: tuple[Sent, ...] = ()


class Growth:
    """The agents of one job."""

    def __init__(self) -> None:
        self._sums: dict[AgentId, _Sums] = {}
        self._places: dict[AgentId, str] = {}  # zone of each agent, also of some that are gone
        self._zones: set[str] = set()  # all that agents have been in

    def place(self, zones: Mapping[AgentId, str]) -> None:
        """The zones of the job's pods, as the cluster says."""
        self._zones.update(zones.values())
        for agent, zone in zones.items():
            self._places.pop(agent, None)
            self._places[agent] = zone
        _trim(self._places)

    def connected(self, hello: Hello) -> None:
        """An agent that has had no plan yet has sums of zero."""
        if hello.fence == Fence():
            self._keep(hello.agent, _Sums())

    def add(self, totals: Totals, agent: AgentId, progress: Progress) -> Totals:
        """The totals with what the agent has done since its report before."""
        now = _Sums(progress.ahead, progress.hosted, progress.sent)
        before = self._sums.get(agent, now)
        self._keep(agent, now)
        return replace(
            totals,
            ahead=totals.ahead.grown(before.ahead, now.ahead),
            hosted=totals.hosted.grown(before.hosted, now.hosted),
            sent=self._sent(totals.sent, agent, before.sent, now.sent),
            group_bytes=totals.group_bytes + increase(_by_group(before.sent), _by_group(now.sent)),
        )

    def _keep(self, agent: AgentId, sums: _Sums) -> None:
        self._sums.pop(agent, None)
        self._sums[agent] = sums
        _trim(self._sums)

    def _sent(
        self,
        known: Mapping[Way, int],
        agent: AgentId,
        before: tuple[Sent, ...],
        now: tuple[Sent, ...],
    ) -> Mapping[Way, int]:
        if before == now:
            return known
        old = {sent.zone: sent.by_lane() for sent in before}
        found = dict(known)
        for sent in now:
            was = old.get(sent.zone, {})
            for lane, count in sent.by_lane().items():
                if more := increase(was.get(lane, 0), count):
                    way = self._way(found, lane, self._places.get(agent, ""), sent.zone)
                    found[way] = found.get(way, 0) + more
        return found

    def _way(self, known: Mapping[Way, int], lane: Lane, source: str, target: str) -> Way:
        """An agent's word does not make a zone, and only the first few have their own names."""
        if target not in self._zones | {OTHERS}:
            target = ""
        named = {zone for way in known for zone in way[1:]}
        ends = []
        for zone in (source or UNKNOWN, target or UNKNOWN):
            is_new = zone not in named | {UNKNOWN, OTHERS}
            is_full = len(named - {UNKNOWN, OTHERS}) >= MOST_ZONES
            ends.append(OTHERS if is_new and is_full else zone)
            named.add(ends[-1])
        return Way(lane, *ends)


def _by_group(sent: tuple[Sent, ...]) -> int:
    return sum(x.group_bytes for x in sent)


def _trim(found: dict[AgentId, _Sums] | dict[AgentId, str]) -> None:
    while len(found) > _MOST_AGENTS:
        found.pop(next(iter(found)))
