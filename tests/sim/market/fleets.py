"""Small fleets, and policies that are easy to reckon with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from bamboo_sim.market.simulation.engine import Terms
from bamboo_sim.market.simulation.events import FleetEvent, Kind, News, Node
from bamboo_sim.market.simulation.policy import Change, Fleet, Pace

PRICES = {("a", "spot"): 1.0, ("b", "spot"): 2.0, ("a", "on-demand"): 4.0}
BEST = 10.0  # samples per second of a node
HOUR = 3_600_000


def fleet(
    *lives: tuple[int, int | None], boot_ms: int = 0, nodes: Iterable[Node] | None = None
) -> list[FleetEvent]:
    """Nodes with the times of ADD and REMOVE (None: never)."""
    made = list(nodes or [Node(i, "a", "spot") for i in range(len(lives))])
    events = []
    for node, (added, gone) in zip(made, lives, strict=True):
        events.append((added, Kind.ADD, node))
        if gone is None or gone > added + boot_ms:
            events.append((added + boot_ms, Kind.READY, node))
        if gone is not None:
            events.append((gone, Kind.REMOVE, node))
    events.sort(key=lambda event: event[:2])
    return [FleetEvent(at, kind, i, node) for i, (at, kind, node) in enumerate(events)]


def terms(**more: Any) -> Terms:
    return Terms(**{"prices": PRICES, "best_per_node": BEST, **more})


class Flat(NamedTuple):
    serving: frozenset[int] = frozenset()


class AllServe:
    """Every ready node serves at its best; steps of 10 samples. It keeps what it was told."""

    faster = 1.0

    def __init__(self) -> None:
        self.told: list[News] = []

    def start(self) -> Flat:
        return Flat()

    def rate(self, state: Flat) -> Pace | None:
        if not state.serving:
            return None
        return Pace(10_000 / (BEST * len(state.serving) * self.faster), 10)

    def on_change(self, state: Flat, fleet: Fleet, news: News) -> Change | None:
        self.told.append(news)
        return Change(Flat(frozenset(fleet.ready)))
