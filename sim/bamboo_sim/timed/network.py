"""Transfers between agents: an interface sends, and receives, one item after the other.

What arrives at an interface that still receives another item waits for it. Items come in the order
in which their first bytes arrive. Boundary tensors and votes have a lane of their own, which goes
first, as in the transport: they do not wait for large items, and delay those that follow.
"""

from __future__ import annotations

from collections.abc import Callable

from bamboo_core.model.ids import AgentId
from bamboo_sim.timed.clock import Call, Clock
from bamboo_sim.timed.declared import Links

_Lane = tuple[AgentId, bool]  # an agent's interface; whether for large items


class Network:
    """Who sends and who receives until when. ``sent_bytes``: by sender."""

    def __init__(self, clock: Clock, links: Links, zone: Callable[[AgentId], str]) -> None:
        self._clock, self._links, self._zone = clock, links, zone
        self._sends_until: dict[_Lane, float] = {}
        self._receives_until: dict[_Lane, float] = {}
        self._ended_at: dict[AgentId, float] = {}
        self.sent_bytes: dict[AgentId, int] = {}

    def send(
        self,
        source: AgentId,
        target: AgentId,
        num_bytes: int,
        arrive: Call,
        *,
        is_bulk: bool = True,
    ) -> None:
        """Send an item. What a sender has not sent completely when it ends is lost."""
        links, now = self._links, self._clock.now
        is_far = self._zone(source) != self._zone(target)
        bandwidth = min(links.bandwidth, links.zone_bandwidth) if is_far else links.bandwidth
        latency = links.latency_s + (links.zone_latency_s if is_far else 0.0)
        start, end = _take(self._sends_until, source, is_bulk, now, num_bytes / bandwidth)
        self.sent_bytes[source] = self.sent_bytes.get(source, 0) + num_bytes

        def deliver() -> None:
            if self._ended_at.get(source, end) >= end and target not in self._ended_at:
                arrive()

        def receive() -> None:
            now, until = self._clock.now, self._receives_until
            _, free = _take(until, target, is_bulk, now, num_bytes / links.bandwidth)
            received = until[target, is_bulk] = max(free, end + latency)
            self._clock.at(received, deliver)

        self._clock.at(start + latency, receive)

    def end(self, agent: AgentId) -> None:
        """The agent has ended now."""
        self._ended_at[agent] = self._clock.now


def _take(
    until: dict[_Lane, float], agent: AgentId, is_bulk: bool, now: float, seconds: float
) -> tuple[float, float]:
    """When the interface begins with an item, and when it ends. until: when each lane is free."""
    begin = max(now, until.get((agent, is_bulk), 0.0))
    until[agent, is_bulk] = end = begin + seconds
    if not is_bulk:
        until[agent, True] = max(now, until.get((agent, True), 0.0)) + seconds
    return begin, end
