"""What an agent's items and layers occupy, now and at most."""

from __future__ import annotations

from collections import Counter

from bamboo_core.model.items import Item, Kind
from bamboo_core.scheduling.device_memory import STATES
from bamboo_core.scheduling.item_bytes import ItemBytes
from bamboo_sim.timed.sizes import REPLICA_OPTIMIZER, REPLICA_WEIGHTS, group_of


class Memory:
    """Bytes by group. ``hosted``: groups in host memory, as the plan says; ``peak``: of each group
    alone; ``device_peak``: of all that is not hosted."""

    def __init__(self, sizes: ItemBytes) -> None:
        self.hosted = frozenset[str]()
        self._sizes = sizes
        self._items: dict[Item, int] = {}
        self._layers: dict[int, bool] = {}  # layer -> whether it is of the agent's own seat
        self._now = Counter[str]()
        self.peak = Counter[str]()
        self.device_peak = self.host_peak = 0

    def keep(self, item: Item) -> None:
        """An item has been made or received."""
        if item not in self._items:
            self._items[item] = size = self._sizes.of(item)
            self._add(group_of(item.kind), size)

    def free(self, item: Item) -> None:
        """An item is dropped; VER: a layer's state."""
        if item.kind is Kind.VER:
            self._forget(item.lo)
        elif (size := self._items.pop(item, None)) is not None:
            self._now[group_of(item.kind)] -= size

    def keep_layer(self, layer: int, *, is_own: bool) -> None:
        """The agent holds a layer's state, for its own seat or as a replica."""
        if self._layers.get(layer) != is_own:
            self._forget(layer)
            self._layers[layer] = is_own
            for group, size in self._state(layer, is_own):
                self._add(group, size)

    def _forget(self, layer: int) -> None:
        is_own = self._layers.pop(layer, None)
        if is_own is not None:
            for group, size in self._state(layer, is_own):
                self._now[group] -= size

    def _state(self, layer: int, is_own: bool) -> tuple[tuple[str, int], ...]:
        size = self._sizes.parameters(layer, layer + 1)
        if is_own:
            return (("state", STATES * size),)
        return (REPLICA_WEIGHTS, size), (REPLICA_OPTIMIZER, (STATES - 1) * size)

    def _add(self, group: str, size: int) -> None:
        now = self._now
        now[group] += size
        self.peak[group] = max(self.peak[group], now[group])
        host = sum(now[g] for g in self.hosted)
        self.host_peak = max(self.host_peak, host)
        self.device_peak = max(self.device_peak, sum(now.values()) - host)
