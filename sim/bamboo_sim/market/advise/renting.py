"""The fleet that a job rents: at most so many of the spot nodes that a market offers, and some
nodes on demand."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from heapq import heappop, heappush
from itertools import count, groupby, takewhile
from random import Random

from bamboo_sim.market.markets.opening import Replay
from bamboo_sim.market.markets.parameters import Market
from bamboo_sim.market.simulation.events import ADD, READY, REMOVE, FleetEvent, Kind, Node

SPOT, ON_DEMAND = "spot", "on-demand"
_NOBODY = Node(0, "", SPOT)
STEADY = "on demand", ON_DEMAND
"""The zone and capacity of nodes on demand that a job rents beside what the market offers."""


def offered(source: Market | Replay, seed: int) -> Iterator[FleetEvent]:
    """The spot nodes that come and go, without end. A recorded fleet begins as it was recorded for
    seed 1, and anywhere in the record for the others; at its end it begins again, and nodes that
    are there at both live on."""
    if isinstance(source, Market):
        return source.events(seed)
    length_ms = source.trace.end_ms - source.trace.begin_ms
    begin_ms = 0 if seed == 1 else Random(seed).randrange(length_ms)
    spot = [event for event in source.events(seed) if event.node.capacity == SPOT]
    return _from(_repeated(spot, length_ms), begin_ms)


def _repeated(events: list[FleetEvent], length_ms: int) -> Iterator[FleetEvent]:
    """A record again and again. Nodes at its end take the place of those at its begin."""
    numbers, sequence = count(1), count()
    live: dict[int, Node] = {}  # by the number in the record
    for turn in count():
        yield FleetEvent(turn * length_ms, READY, next(sequence), _NOBODY)  # so that time goes on
        left = list(live.values())
        live = {}
        for at_ms, kind, _, node in events:
            now_ms = turn * length_ms + at_ms
            if at_ms and left:  # those who came at the begin have taken their places
                yield from _ended(left, turn * length_ms, sequence)
                left = []
            if kind is ADD:
                if left and not at_ms:
                    live[node.number] = left.pop(0)
                    continue
                live[node.number] = node._replace(number=next(numbers))
                yield FleetEvent(now_ms, ADD, next(sequence), live[node.number])
            elif kind is REMOVE:
                yield FleetEvent(now_ms, REMOVE, next(sequence), live.pop(node.number))
        yield from _ended(left, turn * length_ms, sequence)


def _ended(nodes: Iterable[Node], at_ms: int, sequence: Iterator[int]) -> Iterator[FleetEvent]:
    for node in nodes:
        yield FleetEvent(at_ms, REMOVE, next(sequence), node)


def _from(events: Iterable[FleetEvent], begin_ms: int) -> Iterator[FleetEvent]:
    """The events after a time, which is 0 from now on, and what was there then."""
    live: dict[int, Node] = {}
    begun = False
    for event in events:
        if not begun and event.at_ms > begin_ms:
            begun = True
            for sequence, node in enumerate(live.values()):
                yield FleetEvent(0, ADD, sequence, node)
        if begun:
            yield event._replace(at_ms=event.at_ms - begin_ms)
        elif event.kind is ADD:
            live[event.node.number] = event.node
        elif event.kind is REMOVE:
            live.pop(event.node.number, None)


def rented(
    offers: Iterable[FleetEvent],
    spot: int,
    steady: int,
    boot_ms: int,
    until_ms: int,
    zones: Container[str] | None = None,
) -> Iterator[FleetEvent]:
    """The fleet of a job until a time. It rents ``spot`` nodes where so many are offered, and
    ``steady`` nodes on demand. A lost node is replaced a millisecond later, if another is offered;
    every node boots when it is rented. ``zones``: where spot nodes are rented; None: all."""
    desk = _Desk(spot, boot_ms)
    for _ in range(steady):
        desk.rent(0, Node(0, *STEADY))
    known = takewhile(lambda event: event.at_ms < until_ms, offers)
    for at_ms, group in groupby(known, key=lambda event: event.at_ms):
        yield from desk.until(at_ms)
        for _, kind, _, node in group:
            if zones is None or node.zone in zones:
                desk.see(at_ms, kind, node)
        desk.fill()
    yield from desk.until(until_ms)


class _Desk:
    """Who is rented. Nodes of the fleet have numbers of their own, since an offer may be taken
    later than it came."""

    def __init__(self, spot: int, boot_ms: int) -> None:
        self._spot, self._boot_ms = spot, boot_ms
        self._offers: dict[int, Node] = {}
        self._mine: dict[int, Node] = {}  # by the number of the offer
        self._gone: set[int] = set()
        self._coming: list[FleetEvent] = []
        self._numbers, self._sequence = count(1), count()
        self._next_ms = 0

    def see(self, at_ms: int, kind: Kind, node: Node) -> None:
        """Something happens to an offer."""
        self._next_ms = max(self._next_ms, at_ms)
        if kind is ADD:
            self._offers[node.number] = node
        elif kind is REMOVE:
            self._offers.pop(node.number, None)
            lost = self._mine.pop(node.number, None)
            if lost is not None:
                self._gone.add(lost.number)
                self._push(at_ms, REMOVE, lost)
                self._next_ms = at_ms + 1

    def fill(self) -> None:
        """Rent what is offered, the oldest offers first, up to the number that is wanted."""
        while self._offers and len(self._mine) < self._spot:
            number = next(iter(self._offers))
            self._mine[number] = self.rent(self._next_ms, self._offers.pop(number))

    def rent(self, at_ms: int, like: Node) -> Node:
        """A node of the fleet."""
        node = like._replace(number=next(self._numbers))
        self._push(at_ms, ADD, node)
        self._push(at_ms + self._boot_ms, READY, node)
        return node

    def until(self, end_ms: int) -> Iterator[FleetEvent]:
        """All that comes before a time, in order. A node that goes before it is ready never is."""
        while self._coming and self._coming[0].at_ms < end_ms:
            event = heappop(self._coming)
            if event.kind is not READY or event.node.number not in self._gone:
                yield event

    def _push(self, at_ms: int, kind: Kind, node: Node) -> None:
        heappush(self._coming, FleetEvent(at_ms, kind, next(self._sequence), node))
