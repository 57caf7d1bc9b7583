"""The layers of one agent, and where they are: on the device or in host memory.

Layers wait in host memory if the plan says so, because the device is short. Their weights (and
buffers) are one part, the optimizer's state is another. An update brings a layer to the device,
changes it there and takes it back, one layer at a time, so bits are the same. A forward brings the
weights. They stay until an update of a step that has not used them. A layer that the plan does not
send to host memory any more comes to the device when it is used, and stays.

Memory moves as bytes, so strides and shared memory stay. What finds no room, and tensors that are
not plain memory of the device, stay there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch

from bamboo_agent.compute.host_blocks import Block, HostBlocks, Tally
from bamboo_agent.compute.kinds import LayerRecord
from bamboo_agent.compute.layers import Layer, LayerBuilder
from bamboo_core.api.progress import Hosted

_ALIGN = 64  # bytes; a multiple of every number's size


class _Away:
    """Tensors whose memory is in a block. segments: (begin, bytes) in it, of one storage each;
    tensors: each with the number of its segment."""

    def __init__(
        self,
        block: Block,
        segments: Sequence[tuple[int, int]],
        tensors: Sequence[tuple[torch.Tensor, int]],
    ) -> None:
        self.block, self.segments, self.tensors = block, segments, tensors


class HeldLayers:
    """``layers``: by index. Those of them that wait in host memory can be read there."""

    def __init__(self, builder: LayerBuilder, blocks: HostBlocks) -> None:
        self.layers: dict[int, Layer] = {}
        self._builder, self._blocks = builder, blocks
        self._hosted: frozenset[int] = frozenset()
        self._weights: dict[int, _Away] = {}
        self._moments: dict[int, _Away] = {}
        self._used: set[int] = set()  # layers with a forward since their last update
        self._tally = Tally()
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

    def _store(self, layer: int, tensors: list[torch.Tensor], into: dict[int, _Away]) -> int:
        """Bytes for which there is no room."""
        movable = [tensor for tensor in tensors if self._blocks.can_move(tensor)]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in movable}
        segments, at = [], 0
        for storage in storages.values():
            segments.append((at, storage.nbytes()))
            at += -(-storage.nbytes() // _ALIGN) * _ALIGN
        if not at:
            return 0
        block = self._blocks.take(at, self._tally)
        if block is None:
            return at
        with self._blocks.copying(sum(size for _, size in segments), self._tally):
            for (begin, size), storage in zip(segments, storages.values(), strict=True):
                block.memory[begin : begin + size].copy_(self._blocks.bytes_of(storage))
        numbers = {address: number for number, address in enumerate(storages)}
        placed = [(t, numbers[t.untyped_storage().data_ptr()]) for t in movable]
        for tensor, number in placed:
            offset = int(tensor.storage_offset()) + segments[number][0] // tensor.element_size()
            _point(tensor, block.memory.untyped_storage(), offset, block.memory.device)
        into[layer] = _Away(block, segments, placed)
        return 0

    def _fetch(self, layer: int, source: dict[int, _Away]) -> None:
        """To the device. If that fails, all of it stays where it is."""
        away = source.get(layer)
        if away is None:
            return
        storages = []
        with self._blocks.copying(sum(size for _, size in away.segments), self._tally):
            for begin, size in away.segments:
                target = torch.empty(size, dtype=torch.uint8, device=self._blocks.device)
                target.copy_(away.block.memory[begin : begin + size])
                storages.append(target.untyped_storage())
        for tensor, number in away.tensors:
            offset = (
                int(tensor.storage_offset()) - away.segments[number][0] // tensor.element_size()
            )
            _point(tensor, storages[number], offset, self._blocks.device)
        del source[layer]


def _point(
    tensor: torch.Tensor, storage: torch.UntypedStorage, offset: int, device: torch.device
) -> None:
    """Let the tensor, as modules and optimizers know it, use other memory in the same way."""
    empty = torch.empty(0, dtype=tensor.dtype, device=device)
    tensor.data = empty.set_(storage, offset, tensor.size(), tensor.stride())
