"""Zones for nodes of which a file says none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from bamboo_sim.market.simulation.events import Kind
from bamboo_sim.market.traces.records import Seen


def dealt(seen: Sequence[Seen], zones: Sequence[str], seed: int, within_ms: int) -> list[Seen]:
    """The same nodes, each with a zone. Nodes that are lost in one burst, a chain of losses with
    gaps of at most ``within_ms``, get one zone: clouds take many nodes of one zone at once. Each
    burst's zone, and that of each node that is never lost, is drawn by ``seed`` with equal chances.
    Nodes with a zone keep it. ValueError without zones.
    """
    if not zones:
        raise ValueError("there are no zones to deal; give at least one.")
    random = Random(seed)
    zone_of = {event.name: event.zone for event in seen if event.zone}
    losses = [event for event in seen if event.kind is Kind.REMOVE and event.is_loss]
    losses.sort(key=lambda event: event.at_ms)
    zone, latest_ms = "", 0
    for event in losses:
        if event.name in zone_of:
            continue
        if not zone or event.at_ms - latest_ms > within_ms:
            zone = random.choice(zones)
        zone_of[event.name], latest_ms = zone, event.at_ms
    for event in seen:
        if event.name not in zone_of:
            zone_of[event.name] = random.choice(zones)
    return [replace(event, zone=zone_of[event.name]) for event in seen]
