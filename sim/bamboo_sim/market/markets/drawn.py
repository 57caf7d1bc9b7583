"""Draws a fleet from the rules of a market: bursts of losses, each in one zone, and refills."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import NamedTuple

from bamboo_sim.market.simulation.events import ADD, READY, REMOVE, FleetEvent, Kind, Node
from bamboo_sim.market.simulation.outcome import HOUR_MS

_MINUTE_MS = 60_000
_CAPACITY = "spot"
_NEVER = 1 << 62


@dataclass(frozen=True)
class Rules:
    """``nodes``: that are wanted, and are there at 0, dealt to ``zones`` in turn; ``hazard``:
    losses per node-hour; ``sizes``: of a burst -> chance; ``gap_cv``: standard deviation over mean
    of the node-hours between two bursts; ``refill_minutes``: the mean time until all nodes of a
    burst are replaced, in its zone; ``boot_ms``: from ADD to READY."""

    nodes: int
    zones: tuple[str, ...]
    hazard: float
    sizes: Mapping[int, float]
    gap_cv: float
    refill_minutes: float
    boot_ms: int


class _Coming(NamedTuple):
    """A refill of a zone, or a node that becomes ready. Sorts by time, kind and order."""

    at_ms: int
    kind: Kind
    order: int
    zone: str
    node: Node | None = None


def events(rules: Rules, seed: int) -> Iterator[FleetEvent]:
    """The fleet, without end and in the engine's order.

    Bursts come after gaps on a clock that runs as fast as the fleet is large, so that the losses
    per node-hour are the hazard for a fleet of any size. A gap is gamma distributed; at a cv of 1
    that is exponential, and the next burst does not depend on the last one. A burst's zone is drawn
    with chances as its nodes, and loses at most all of them.
    """
    drawing = _Drawing(rules, Random(seed))
    for sequence in count():
        yield FleetEvent(*drawing.next(sequence))


class _Drawing:
    def __init__(self, rules: Rules, random: Random) -> None:
        self._rules, self._random = rules, random
        self._live: dict[str, list[Node]] = {zone: [] for zone in rules.zones}
        self._numbers, self._orders = count(1), count()
        self._coming: list[_Coming] = []
        self._taken: list[Node] = []  # of the burst that is being told
        self._mean_taken = _means(rules.sizes, rules.nodes)
        self._now, self._left, self._rate = 0, self._gap(), 0.0
        self._burst_ms = _NEVER
        for index in range(rules.nodes):
            zone = rules.zones[index % len(rules.zones)]
            heappush(self._coming, _Coming(0, ADD, next(self._orders), zone))

    def next(self, sequence: int) -> tuple[int, Kind, int, Node]:
        """The next event of the fleet."""
        while not self._taken:
            if not self._coming or (self._burst_ms, REMOVE) < self._coming[0][:2]:
                self._burst()
                continue
            coming = heappop(self._coming)
            if coming.node is None:
                return coming.at_ms, ADD, sequence, self._add(coming)
            if coming.node in self._live[coming.zone]:
                return coming.at_ms, READY, sequence, coming.node
        return self._now, REMOVE, sequence, self._taken.pop()

    def _add(self, coming: _Coming) -> Node:
        node = Node(next(self._numbers), coming.zone, _CAPACITY)
        self._live[coming.zone].append(node)
        ready_ms = coming.at_ms + self._rules.boot_ms
        heappush(self._coming, _Coming(ready_ms, READY, next(self._orders), coming.zone, node))
        self._go_on(coming.at_ms)
        return node

    def _burst(self) -> None:
        random, at_ms = self._random, self._burst_ms
        zones, chances = list(self._live), [len(nodes) for nodes in self._live.values()]
        (zone,) = random.choices(zones, chances)
        sizes = self._rules.sizes
        (size,) = random.choices(list(sizes), list(sizes.values()))
        nodes = self._live[zone]
        gone = sorted(random.sample(nodes, min(size, len(nodes))), reverse=True)
        self._live[zone] = [node for node in nodes if node not in gone]
        self._taken = gone
        delay_ms = random.expovariate(1 / (self._rules.refill_minutes * _MINUTE_MS))
        back_ms = at_ms + max(1, round(delay_ms))  # in one instant ADD goes before REMOVE
        for _ in gone:
            heappush(self._coming, _Coming(back_ms, ADD, next(self._orders), zone))
        self._left = self._gap()
        self._rate = 0.0
        self._go_on(at_ms)

    def _gap(self) -> float:
        shape = self._rules.gap_cv**-2
        return self._random.gammavariate(shape, 1 / shape)

    def _go_on(self, at_ms: int) -> None:
        """The fleet has another size from now on."""
        self._left = max(0.0, self._left - self._rate * (at_ms - self._now))
        self._now = at_ms
        sizes = [len(nodes) for nodes in self._live.values()]
        nodes = sum(sizes)
        if not nodes:
            self._rate, self._burst_ms = 0.0, _NEVER
            return
        taken = sum(size / nodes * self._mean_taken[size] for size in sizes)
        self._rate = self._rules.hazard * nodes / taken / HOUR_MS
        self._burst_ms = at_ms + math.ceil(self._left / self._rate)


def _means(sizes: Mapping[int, float], most: int) -> list[float]:
    """How many nodes a burst takes in the mean, by the nodes of its zone."""
    return [
        sum(chance * min(size, nodes) for size, chance in sizes.items())
        for nodes in range(most + 1)
    ]
