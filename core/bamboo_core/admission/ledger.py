"""The room that is left on each node while the jobs of the line get theirs, one after the other.

A job looks at as many nodes as it has agents to place, and at each node that has become full once,
whoever stands before or behind it. So going through the line takes time that grows with the number
of jobs, not with the number of jobs times that of nodes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Set

from bamboo_core.admission.claims import Claim, NodeRoom, Shape
from bamboo_core.placement import fitting
from bamboo_core.placement.fitting import Amount, Amounts

Offer = dict[str, list[tuple[str, int]]]
"""Zone -> nodes, each with a number of further agents."""


class Ledger:
    """room: by the node's name."""

    def __init__(self, room: Mapping[str, NodeRoom]) -> None:
        self._room = room
        self._left: dict[str, dict[str, Amount]] = {}  # of nodes where something has changed
        self._taken = Counter[str]()  # by zone: agents that room is kept for
        self._open: dict[int, _Open] = {}  # by shape
        self._held: dict[str, dict[str, int]] = {}  # by the job's UID: zone -> its pods
        self._empty: dict[tuple[object, ...], tuple[Counter[str], Set[str]]] = {}

    def held(self, claim: Claim) -> Mapping[str, int]:
        """Zone -> pods that the job has there."""
        found = self._held.get(claim.job.uid)
        if found is None:
            found = self._held[claim.job.uid] = {}
            for node, count in claim.held.items():
                if node in self._room:
                    zone = self._room[node].zone
                    found[zone] = found.get(zone, 0) + count
        return found

    def there(self, claim: Claim) -> dict[str, int]:
        """Zone -> agents that the job has or could have there."""
        found = dict(self.held(claim))
        for zone, nodes in self._offer(claim).items():
            found[zone] = found.get(zone, 0) + sum(count for _, count in nodes)
        return found

    def take(self, claim: Claim, lack: int) -> Counter[str]:
        """Keep room for so many more agents, as far as there is any, evenly in all zones. Returns
        how many of them each zone has room for."""
        kept = Counter[str]()
        if lack <= 0:
            return kept
        offer, used = self._offer(claim), Counter(self.held(claim))
        while lack > 0 and offer:
            zone = min(offer, key=lambda zone: (used[zone], self._taken[zone], zone))
            node, count = offer[zone].pop()
            self._change(node, claim.shape.asks, -1)
            used[zone] += 1
            kept[zone] += 1
            self._taken[zone] += 1
            lack -= 1
            if count > 1:
                offer[zone].append((node, count - 1))
            if not offer[zone]:
                del offer[zone]
        return kept

    def give_back(self, claim: Claim, sign: int) -> None:
        """The job's pods will go; or stay after all, if the sign is negative."""
        for node, count in claim.held.items():
            if node in self._room:
                self._change(node, claim.shape.asks, sign * count)
                for known in self._open.values():
                    known.add(node)

    def when_empty(self, claim: Claim) -> tuple[int, bool]:
        """How many agents of the wanted grid the nodes that can be used now could take without
        other jobs, and whether that is enough.

        What is free in a zone where the scheduler refuses the job's pods is no room.
        """
        there, usable = self._when_empty(claim)
        found = there.copy()
        for name, count in claim.held.items():
            if name in self._room and name not in usable:
                found[self._room[name].zone] += count
        return claim.seated(found), claim.fits(found)

    def _when_empty(self, claim: Claim) -> tuple[Counter[str], Set[str]]:
        shape, limit = claim.shape, claim.zone_limit
        key = (id(shape), limit, claim.closed)
        if key not in self._empty:
            found = Counter[str]()
            for name in shape.usable:
                node = self._room.get(name)
                if node is None or found[node.zone] >= limit:
                    continue
                found[node.zone] += fitting.room(shape.asks, node.whole)[0]
                if node.zone in claim.closed:
                    found[node.zone] -= max(0, fitting.room(shape.asks, node.free)[0])
            self._empty[key] = (found, frozenset(shape.usable))
        return self._empty[key]

    def _offer(self, claim: Claim) -> Offer:
        """In a zone as many further agents as the grid may have there."""
        held, limit = self.held(claim), claim.zone_limit
        shape = claim.shape
        known = self._open.get(id(shape))
        if known is None:
            known = self._open[id(shape)] = _Open(shape, self._room)
        found: Offer = {}
        for zone in known.zones:
            lack = 0 if zone in claim.closed else limit - held.get(zone, 0)
            full: list[str] = []
            for node in known.nodes(zone):
                if lack <= 0:
                    break
                count = fitting.room(shape.asks, self._now(node))[0]
                if count <= 0:
                    full.append(node)
                    continue
                found.setdefault(zone, []).append((node, min(count, lack)))
                lack -= count
            for node in full:  # others with this shape need not look at it again
                known.drop(node)
        return found

    def _now(self, node: str) -> Amounts:
        left = self._left.get(node)
        return self._room[node].free if left is None else left

    def _change(self, node: str, asks: Amounts, times: int) -> None:
        left = self._left.get(node)
        if left is None:
            left = self._left[node] = dict(self._room[node].free)
        for name, amount in asks.items():
            left[name] = left.get(name, 0) + times * amount


class _Open:
    """Nodes where agents of one shape may be placed and that have not been found full, by zone."""

    def __init__(self, shape: Shape, room: Mapping[str, NodeRoom]) -> None:
        self._names = tuple(node for node in shape.usable if node in room)
        self._places: dict[str, tuple[str, int]] = {}  # node -> zone, place in the order
        self.zones: dict[str, list[int]] = {}  # places of its open nodes, in order
        for place, node in enumerate(self._names):
            zone = room[node].zone
            self._places[node] = (zone, place)
            self.zones.setdefault(zone, []).append(place)

    def nodes(self, zone: str) -> Iterator[str]:
        """In order. Drop none of them meanwhile."""
        return map(self._names.__getitem__, self.zones[zone])

    def add(self, node: str) -> None:
        """It may have room again."""
        if node in self._places:
            zone, place = self._places[node]
            places = self.zones[zone]
            at = bisect_left(places, place)
            if at == len(places) or places[at] != place:
                places.insert(at, place)

    def drop(self, node: str) -> None:
        """It is full."""
        zone, place = self._places[node]
        places = self.zones[zone]
        del places[bisect_left(places, place)]
