"""A ledger that looks at all nodes again for each question. The real one must agree with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from bamboo_core.admission.claims import Claim, NodeRoom, Shape
from bamboo_core.placement import fitting
from bamboo_core.placement.fitting import Amounts


class PlainLedger:
    """As bamboo_core.admission.ledger.Ledger."""

    def __init__(self, room: Mapping[str, NodeRoom]) -> None:
        self._room = room
        self._left: dict[str, Amounts] = {}
        self._taken = Counter[str]()

    def held(self, claim: Claim) -> dict[str, int]:
        found = Counter[str]()
        for node, count in claim.held.items():
            if node in self._room:
                found[self._room[node].zone] += count
        return dict(found)

    def there(self, claim: Claim) -> dict[str, int]:
        found = Counter(self.held(claim))
        for zone, nodes in self._offer(claim).items():
            found[zone] += sum(count for _, count in nodes)
        return dict(found)

    def take(self, claim: Claim, lack: int) -> Counter[str]:
        kept = Counter[str]()
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
        for node, count in claim.held.items():
            if node in self._room:
                self._change(node, claim.shape.asks, sign * count)

    def when_empty(self, claim: Claim) -> tuple[int, bool]:
        found, asks = Counter[str](), claim.shape.asks
        for name in claim.shape.usable:
            node = self._room.get(name)
            if node is not None and found[node.zone] < claim.zone_limit:
                found[node.zone] += fitting.room(asks, node.whole)[0]
                if node.zone in claim.closed:
                    found[node.zone] -= max(0, fitting.room(asks, node.free)[0])
        for name, count in claim.held.items():
            if name in self._room and name not in claim.shape.usable:
                found[self._room[name].zone] += count
        return claim.seated(found), claim.fits(found)

    def _offer(self, claim: Claim) -> dict[str, list[tuple[str, int]]]:
        held, found = self.held(claim), dict[str, list[tuple[str, int]]]()
        for zone, nodes in self._zones(claim.shape).items():
            lack = 0 if zone in claim.closed else claim.zone_limit - held.get(zone, 0)
            for node in nodes:
                count = fitting.room(claim.shape.asks, self._now(node))[0]
                if lack > 0 and count > 0:
                    found.setdefault(zone, []).append((node, min(count, lack)))
                    lack -= count
        return found

    def _zones(self, shape: Shape) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for node in shape.usable:
            if node in self._room:
                found.setdefault(self._room[node].zone, []).append(node)
        return found

    def _now(self, node: str) -> Amounts:
        return self._left.get(node, self._room[node].free)

    def _change(self, node: str, asks: Amounts, times: int) -> None:
        left = dict(self._now(node))
        for name, amount in asks.items():
            left[name] = left.get(name, 0) + times * amount
        self._left[node] = left
