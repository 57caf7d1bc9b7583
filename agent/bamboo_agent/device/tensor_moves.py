"""Moves the memory of tensors from the device to blocks of host memory, and back.

Memory moves as bytes, so strides and shared memory stay. The tensors stay the same objects, as
modules and optimizers know them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bamboo_agent.device.host_blocks import Block, HostBlocks, Tally

_ALIGN = 64  # bytes; a multiple of every number's size


class Away:
    """Tensors whose memory is in a block. segments: (begin, bytes) in it, of one storage each;
    tensors: each with the number of its segment."""

    def __init__(
        self,
        block: Block,
        segments: Sequence[tuple[int, int]],
        tensors: Sequence[tuple[torch.Tensor, int]],
    ) -> None:
        self.block, self.segments, self.tensors = block, segments, tensors


class TensorMoves:
    """tally: what has been moved here."""

    def __init__(self, blocks: HostBlocks) -> None:
        self.tally = Tally()
        self._blocks = blocks

    def to_host(self, tensors: Sequence[torch.Tensor]) -> tuple[Away | None, int]:
        """Where they are now, and the bytes for which there is no room. None: nothing has moved."""
        movable = [tensor for tensor in tensors if self._blocks.can_move(tensor)]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in movable}
        segments, at = [], 0
        for storage in storages.values():
            segments.append((at, storage.nbytes()))
            at += -(-storage.nbytes() // _ALIGN) * _ALIGN
        if not at:
            return None, 0
        block = self._blocks.take(at, self.tally)
        if block is None:
            return None, at
        with self._blocks.copying(sum(size for _, size in segments), self.tally):
            for (begin, size), storage in zip(segments, storages.values(), strict=True):
                block.memory[begin : begin + size].copy_(self._blocks.bytes_of(storage))
        numbers = {address: number for number, address in enumerate(storages)}
        placed = [(t, numbers[t.untyped_storage().data_ptr()]) for t in movable]
        for tensor, number in placed:
            offset = int(tensor.storage_offset()) + segments[number][0] // tensor.element_size()
            _point(tensor, block.memory.untyped_storage(), offset, block.memory.device)
        return Away(block, segments, placed), 0

    def to_device(self, away: Away) -> None:
        """Bring all of it back. If that fails, all of it stays where it is."""
        storages = []
        with self._blocks.copying(sum(size for _, size in away.segments), self.tally):
            for begin, size in away.segments:
                target = torch.empty(size, dtype=torch.uint8, device=self._blocks.device)
                target.copy_(away.block.memory[begin : begin + size])
                storages.append(target.untyped_storage())
        for tensor, number in away.tensors:
            offset = (
                int(tensor.storage_offset()) - away.segments[number][0] // tensor.element_size()
            )
            _point(tensor, storages[number], offset, self._blocks.device)


def _point(
    tensor: torch.Tensor, storage: torch.UntypedStorage, offset: int, device: torch.device
) -> None:
    """Let the tensor, as modules and optimizers know it, use other memory in the same way."""
    empty = torch.empty(0, dtype=tensor.dtype, device=device)
    tensor.data = empty.set_(storage, offset, tensor.size(), tensor.stride())
