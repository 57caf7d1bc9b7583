"""Small markets, and what they draw as a recorded fleet."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from bamboo_sim.market.markets.parameters import UNITS, Market, Parameter
from bamboo_sim.market.simulation.events import FleetEvent, Kind
from bamboo_sim.market.traces.records import Seen
from bamboo_sim.market.traces.trace import Trace

HOUR = 3_600_000
VALUES: Mapping[str, Any] = {
    "nodes": 40,
    "zones": ["a", "b"],
    "hazard": 0.5,
    "bulk_chance": 0.4,
    "bulk_sizes": {"2": 2, "3": 1, "5": 1},
    "gap_cv": 1.0,
    "refill_minutes": 10,
    "boot_seconds": 45,
}


def market(**changed: Any) -> Market:
    values = {**VALUES, **changed}
    known = {name: Parameter(values[name], UNITS[name], "a test") for name in UNITS}
    unknown = {name: Parameter(values[name], "", "") for name in values if name not in UNITS}
    return Market("small", {**known, **unknown})


def drawn(source: Market, seed: int, hours: float) -> list[FleetEvent]:
    return list(takewhile(lambda event: event.at_ms < hours * HOUR, source.events(seed)))


def recorded(events: list[FleetEvent], hours: float) -> Trace:
    seen = [
        Seen(event.at_ms, event.kind, f"n{event.node.number}", event.node.zone, "spot")
        for event in events
        if event.kind is not Kind.READY
    ]
    return Trace("drawn", round(hours * HOUR), tuple(seen))
