"""Host memory for what forwards that are computed ahead keep for their backward.

The plan says whether it is used: it is if the device is short. Autograd's graph stays where it is.
The tensors that it has saved in a slice go to host memory when the slice is done, and each comes
back when a backward asks for it. Their memory moves as bytes, so strides and bits stay. Parameters
and buffers stay on the device, and so do a slice's outputs, which the next slice or another agent
takes.

All copies are synchronous. Nothing is dropped here: a block of memory is free again when no graph
refers to it any more. What finds no room stays on the device, and is counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch

from bamboo_agent.device.host_blocks import Block, HostBlocks, Tally

_T = TypeVar("_T")


class _Saved:
    """The memory of saved tensors: ``storage`` on the device, or a part of ``block``."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.size = storage.nbytes()
        self.storage: torch.UntypedStorage | None = storage
        self.block: Block | None = None
        self.at = 0


class HostMemory:
    """What is computed ahead, in blocks of host memory. tally: its share of them; is_used: whether
    what forwards keep from now on goes there."""

    def __init__(self, blocks: HostBlocks) -> None:
        self.tally, self.is_used = Tally(), False
        self._blocks, self._device = blocks, blocks.device

    def run(self, weights: Iterable[torch.Tensor], forward: Callable[[], _T]) -> _T:
        """Run a forward. What it saves for its backward moves to host memory.

        weights: parameters and buffers of its layers, which stay.
        """
        if not self.is_used:
            return forward()
        stays = {tensor.untyped_storage().data_ptr() for tensor in weights}
        # by address; an entry ends with the graph, so the address has not been used again
        found: weakref.WeakValueDictionary[int, _Saved] = weakref.WeakValueDictionary()

        def pack(tensor: torch.Tensor) -> Any:
            if not self._blocks.can_move(tensor) or tensor.untyped_storage().data_ptr() in stays:
                return tensor.detach()  # an output saved in its own graph would never be freed
            storage = tensor.untyped_storage()
            saved = found.setdefault(storage.data_ptr(), _Saved(storage))
            return saved, tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride()

        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, self._unpack):
                result = forward()
        except RuntimeError:  # torch.func refuses such hooks; any other error comes again
            return forward()
        self._move(list(found.values()))
        return result

    def _move(self, found: Sequence[_Saved]) -> None:
        """To the host, if there is room for all of it."""
        size = sum(saved.size for saved in found)
        block = self._blocks.take(size, self.tally)
        if block is None:
            self.tally.left_bytes += size
            return
        at = 0
        with self._blocks.copying(block.memory.numel(), self.tally):
            for saved in found:
                assert saved.storage is not None
                block.memory[at : at + saved.size].copy_(self._blocks.bytes_of(saved.storage))
                saved.block, saved.at, saved.storage = block, at, None
                at += saved.size

    def _unpack(self, packed: Any) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        saved, dtype, *where = packed
        empty = torch.empty(0, dtype=dtype, device=self._device)
        return empty.set_(self._returned(saved), *where)

    def _returned(self, saved: _Saved) -> torch.UntypedStorage:
        """The memory on the device, from now on."""
        if saved.storage is None:
            assert saved.block is not None
            target = torch.empty(saved.size, dtype=torch.uint8, device=self._device)
            with self._blocks.copying(saved.size, self.tally):
                target.copy_(saved.block.memory[saved.at : saved.at + saved.size])
            saved.storage, saved.block = target.untyped_storage(), None
        return saved.storage
