"""Transfers between agents: an interface sends one item after the other, in the order of SENDs."""

from __future__ import annotations

from collections.abc import Callable

from bamboo_core.model.ids import AgentId
from bamboo_sim.timed.clock import Call, Clock
from bamboo_sim.timed.declared import Links


class Network:
    """Who sends until when. ``sent_bytes``: by sender."""

    def __init__(self, clock: Clock, links: Links, zone: Callable[[AgentId], str]) -> None:
        self._clock, self._links, self._zone = clock, links, zone
        self._free_at: dict[AgentId, float] = {}
        self._ended_at: dict[AgentId, float] = {}
        self.sent_bytes: dict[AgentId, int] = {}

    def send(self, source: AgentId, target: AgentId, num_bytes: int, arrive: Call) -> None:
        """Send an item. What a sender has not sent completely when it ends is lost."""
        links, now = self._links, self._clock.now
        is_far = self._zone(source) != self._zone(target)
        bandwidth = min(links.bandwidth, links.zone_bandwidth) if is_far else links.bandwidth
        latency = links.latency_s + (links.zone_latency_s if is_far else 0.0)
        end = max(now, self._free_at.get(source, 0.0)) + num_bytes / bandwidth
        self._free_at[source] = end
        self.sent_bytes[source] = self.sent_bytes.get(source, 0) + num_bytes

        def deliver() -> None:
            if self._ended_at.get(source, end) >= end and target not in self._ended_at:
                arrive()

        self._clock.at(end + latency, deliver)

    def end(self, agent: AgentId) -> None:
        """The agent has ended now."""
        self._ended_at[agent] = self._clock.now
