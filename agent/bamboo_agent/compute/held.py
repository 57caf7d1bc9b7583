"""The layers of one agent, and where they are: on the device or in host memory.

Layers wait in host memory if the plan says so, because the device is short. Their weights (and
buffers) are one part, the optimizer's state is another. An update brings a layer to the device,
changes it there and takes it back, one layer at a time, so bits are the same. A forward brings the
weights. They stay until an update of a step that has not used them. A layer that the plan does not
send to host memory any more comes to the device when it is used, and stays.

What finds no room, and tensors that are not plain memory of the device, stay there (see
:mod:`bamboo_agent.device.tensor_moves`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch

from bamboo_agent.compute.layers import Layer, LayerBuilder
from bamboo_agent.device.host_blocks import HostBlocks
from bamboo_agent.device.tensor_moves import Away, TensorMoves
from bamboo_agent.payloads.kinds import LayerRecord
from bamboo_core.api.progress import Hosted


class HeldLayers:
    """``layers``: by index. Those of them that wait in host memory can be read there."""

    def __init__(self, builder: LayerBuilder, blocks: HostBlocks) -> None:
        self.layers: dict[int, Layer] = {}
        self._builder, self._moves = builder, TensorMoves(blocks)
        self._hosted: frozenset[int] = frozenset()
        self._weights: dict[int, Away] = {}
        self._moments: dict[int, Away] = {}
        self._used: set[int] = set()  # layers with a forward since their last update
        self._tally = self._moves.tally
        self._left: dict[int, int] = {}  # layer -> bytes without room in host memory
        self._most_left = 0

    @property
    def waiting(self) -> set[int]:
        """Layers whose weights are in host memory."""
        return set(self._weights)

    @property
    def figures(self) -> Hosted:
        """Since the start."""
        tally = self._tally
        return Hosted(tally.peak_bytes, self._most_left, tally.copied_bytes, tally.copied_s)

    def host(self, layers: Collection[int]) -> None:
        """These layers wait in host memory from now on, or from their next update on."""
        self._hosted = frozenset(layers)

    def build(self, layer: int) -> None:
        """The layer in its initial state."""
        self.drop(layer)
        self._put(layer, self._builder.build(layer))

    def restore(self, layer: int, record: LayerRecord, version: int) -> None:
        """Replace the layer's state. ValueError if it is the state of another layer."""
        if layer in self.layers:
            self._bring(layer)
        found = self.layers.get(layer) or self._builder.build(layer)
        found.restore(record)
        found.version = version
        self._put(layer, found)

    def _put(self, layer: int, found: Layer) -> None:
        self.layers[layer] = found
        if layer in self._hosted:
            self._send(layer)

    def drop(self, layer: int) -> None:
        """Free the layer. No-op if it is not held."""
        self.layers.pop(layer, None)
        self._weights.pop(layer, None)
        self._moments.pop(layer, None)
        self._left.pop(layer, None)
        self._used.discard(layer)

    def on_device(self, lo: int, hi: int) -> list[Layer]:
        """The layers with their weights on the device, for a forward."""
        for layer in range(lo, hi):
            self._used.add(layer)
            self._fetch(layer, self._weights)
        return [self.layers[layer] for layer in range(lo, hi)]

    def update(self, layer: int, run: Callable[[], None]) -> None:
        """Run an update of the layer, all of whose state is on the device meanwhile."""
        self._bring(layer)
        run()
        if layer in self._hosted:
            self._send(layer)
        self._used.discard(layer)

    def _bring(self, layer: int) -> None:
        self._fetch(layer, self._weights)
        self._fetch(layer, self._moments)
        self._left.pop(layer, None)

    def _send(self, layer: int) -> None:
        """To host memory: the optimizer's state, and the weights unless this step has used them."""
        found, left = self.layers[layer], 0
        if layer not in self._used:
            left += self._store(layer, found.weights(), self._weights)
        left += self._store(layer, found.moments(), self._moments)
        if left:
            self._left[layer] = left
            self._most_left = max(self._most_left, sum(self._left.values()))

    def _store(self, layer: int, tensors: list[torch.Tensor], into: dict[int, Away]) -> int:
        """Bytes for which there is no room."""
        away, left = self._moves.to_host(tensors)
        if away is not None:
            into[layer] = away
        return left

    def _fetch(self, layer: int, source: dict[int, Away]) -> None:
        """To the device. If that fails, all of it stays where it is."""
        away = source.get(layer)
        if away is None:
            return
        self._moves.to_device(away)
        del source[layer]
