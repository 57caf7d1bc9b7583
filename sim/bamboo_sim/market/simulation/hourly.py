"""The market of the paper's simulator: each hour, each node goes with one chance, and free slots
fill with another. It has one zone, no bulk losses and no notices."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from operator import itemgetter
from random import Random

from bamboo_sim.market.simulation.events import ADD, READY, REMOVE, FleetEvent, Kind, Node
from bamboo_sim.market.simulation.outcome import HOUR_MS

ZONE, CAPACITY = "zone", "spot"
_HOURS_OF_DAY, _SECONDS = 24, 3600


@dataclass(frozen=True)
class HourlyMarket:
    """``loss_chance``: that a node goes within an hour; ``slots``: the most nodes at a time;
    ``boot_ms``: from ADD to READY. Chances of additions are drawn once for each hour of the day.
    """

    loss_chance: float
    slots: int
    boot_ms: int

    def __post_init__(self) -> None:
        if not 0 < self.loss_chance <= 1:  # a full fleet without losses has no next event
            raise ValueError(
                f"loss_chance {self.loss_chance} is not above 0 and at most 1; nodes that are never"
                " lost are on demand."
            )

    def events(self, seed: int) -> Iterator[FleetEvent]:
        """The fleet, without end and in order. It draws in the order of the authors' simulator, so
        that both have the same fleets for the same seed."""
        random = Random(seed)
        chances = [random.random() for _ in range(_HOURS_OF_DAY)]
        fleet = _Growing(self, random)
        for _ in range(self.slots):
            if chances[0] > random.random():
                fleet.add(0)
        for number in count():
            begin = number * HOUR_MS
            fleet.draw(begin, chances[number % _HOURS_OF_DAY])
            yield from fleet.until(begin + HOUR_MS)


class _Growing:
    """A fleet up to the hour that is drawn."""

    def __init__(self, market: HourlyMarket, random: Random) -> None:
        self._market, self._random = market, random
        self._live: dict[int, tuple[Node, int]] = {}  # with the time of READY, by number
        self._early: set[int] = set()  # gone before READY
        self._numbers, self._sequences = count(1), count()
        self._coming: list[FleetEvent] = []

    def until(self, end_ms: int) -> Iterator[FleetEvent]:
        """Everything before the end. A node that goes before it is READY has no READY."""
        self._coming.sort()
        later = bisect_left(self._coming, end_ms, key=itemgetter(0))
        for event in self._coming[:later]:
            if event[1] is READY and event[3].number in self._early:
                self._early.remove(event[3].number)
            else:
                yield event
        del self._coming[:later]

    def add(self, at_ms: int) -> int:
        """The new node's number."""
        node = Node(next(self._numbers), ZONE, CAPACITY)
        ready_ms = at_ms + self._market.boot_ms
        self._live[node.number] = node, ready_ms
        self._push(at_ms, ADD, node)
        self._push(ready_ms, READY, node)
        return node.number

    def draw(self, begin_ms: int, addition_chance: float) -> None:
        """The hour's losses of live nodes, then its additions, each with a loss of its own."""
        losses = [
            (at_ms, number)
            for number in self._live
            if (at_ms := self._when(begin_ms, self._market.loss_chance)) is not None
        ]
        free = self._market.slots - len(self._live) + len(losses)
        additions = [
            at_ms
            for _ in range(free)
            if (at_ms := self._when(begin_ms, addition_chance)) is not None
        ]
        heapify(losses)
        for at_ms in sorted(additions):
            while losses and losses[0][0] < at_ms:
                self._remove(*heappop(losses))
            if len(self._live) == self._market.slots:
                continue
            number = self.add(at_ms)
            loss_ms = self._when(begin_ms, self._market.loss_chance)
            if loss_ms is not None and loss_ms >= at_ms:
                heappush(losses, (loss_ms, number))
        while losses:
            self._remove(*heappop(losses))

    def _when(self, begin_ms: int, chance: float) -> int | None:
        if chance > self._random.random():
            return begin_ms + self._random.randrange(_SECONDS) * 1000
        return None

    def _remove(self, at_ms: int, number: int) -> None:
        node, ready_ms = self._live.pop(number)
        if at_ms <= ready_ms:
            self._early.add(number)
        self._push(at_ms, REMOVE, node)

    def _push(self, at_ms: int, kind: Kind, node: Node) -> None:
        self._coming.append(FleetEvent(at_ms, kind, next(self._sequences), node))
