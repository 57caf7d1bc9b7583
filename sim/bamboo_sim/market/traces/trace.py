"""A recorded fleet, whatever its shape in the file, and the events that it gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from bamboo_sim.market.simulation.events import FleetEvent, Kind
from bamboo_sim.market.simulation.outcome import HOUR_MS
from bamboo_sim.market.traces import count_files
from bamboo_sim.market.traces.bursts import chains_of
from bamboo_sim.market.traces.records import Count, Lifetime, Price, Seen, fleet
from bamboo_sim.market.traces.zones import dealt

SPOT, ON_DEMAND = "spot", "on-demand"


@dataclass(frozen=True)
class Trace:
    """A recorded fleet. Milliseconds count as in the file, ``end_ms`` is the last that it knows of.

    ``named``: what the nodes did, by time and kind; empty for a count series, which has ``counts``
    by time instead. ``prices``: by (zone, capacity), where the file has them.
    """

    shape: str
    end_ms: int
    named: tuple[Seen, ...] = ()
    counts: tuple[Count, ...] = ()
    prices: Mapping[tuple[str, str], Price] = field(default_factory=dict)

    @property
    def has_names(self) -> bool:
        """False for a count series: nobody knows which nodes went, or which came for them."""
        return not self.counts

    @property
    def begin_ms(self) -> int:
        """When the first node comes, or is counted."""
        return self.counts[0].at_ms if self.counts else self.named[0].at_ms

    @property
    def hours(self) -> float:
        """From the first line in time to the last."""
        return (self.end_ms - self.begin_ms) / HOUR_MS

    @property
    def zones(self) -> tuple[str, ...]:
        """All zones that the file names."""
        return tuple(sorted({event.zone for event in self.named if event.zone}))

    def seen(self, seed: int = 1) -> Sequence[Seen]:
        """All nodes that came and went, by time. ``seed``: draws who goes in a count series."""
        return count_files.victims(list(self.counts), seed) if self.counts else self.named

    def bursts(self, within_ms: int) -> list[tuple[int, int]]:
        """The time of the first loss, ms, and the number of lost spot nodes of each burst: a chain
        of losses with gaps of at most ``within_ms``. In a count series each drop is one burst."""
        if self.counts:
            steps = [(now.at_ms, before.nodes - now.nodes) for before, now in pairwise(self.counts)]
            return [(at_ms, lost) for at_ms, lost in steps if lost > 0]
        return chains_of([event.at_ms for event in self.named if is_spot_loss(event)], within_ms)

    def events(
        self, seed: int, *, boot_ms: int, zones: Sequence[str], within_ms: int
    ) -> Iterator[FleetEvent]:
        """The fleet in the engine's order; its times begin at 0.

        ``zones``: dealt by ``seed`` to nodes without one, so that all losses of a burst
        (``within_ms``, as above) are in one zone. A node whose user ended it goes as if it were
        lost: it is no longer there.
        """
        seen = dealt(self.seen(seed), zones, seed, within_ms)
        begun = self.begin_ms
        for event in fleet(seen, boot_ms, zones[0], SPOT):
            yield event._replace(at_ms=event.at_ms - begun)


def is_spot_loss(event: Seen) -> bool:
    """True if the cloud took a spot node."""
    return event.kind is Kind.REMOVE and event.is_loss and event.capacity != ON_DEMAND


def of_lifetimes(machines: Sequence[Lifetime]) -> list[Seen]:
    """Machines as nodes that come and go, numbered in the order of the file."""
    seen = []
    for number, machine in enumerate(machines, start=1):
        where = f"vm{number}", machine.zone, SPOT
        seen.append(Seen(machine.start_ms, Kind.ADD, *where))
        seen.append(Seen(machine.end_ms, Kind.REMOVE, *where, is_loss=machine.is_preempted))
    return by_time(seen)


def by_time(seen: Sequence[Seen]) -> list[Seen]:
    """In the order of time and kind, as the engine has it."""
    return sorted(seen, key=lambda event: (event.at_ms, event.kind))
