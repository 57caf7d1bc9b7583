"""Host memory for what forwards that are computed ahead keep for their backward.

Autograd's graph stays where it is. The tensors that it has saved in a slice go to host memory when
the slice is done, and each comes back when a backward asks for it. Their memory moves as bytes, so
strides and bits stay. Parameters and buffers stay on the device, and so do a slice's outputs, which
the next slice or another agent takes.

All copies are synchronous. Nothing is dropped here: a block of memory is free again when no graph
refers to it any more. What finds no room stays on the device.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from bamboo_agent.compute.layers import Layer

_T = TypeVar("_T")


class _Block:
    """Host memory that is free again when this object is no longer referenced."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory


class _Saved:
    """The memory of saved tensors: ``storage`` on the device, or a part of ``block``."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.size = storage.nbytes()
        self.storage: torch.UntypedStorage | None = storage
        self.block: _Block | None = None
        self.at = 0


class HostMemory:
    """limit_bytes: most that is allocated, for all blocks together.

    used_bytes: in blocks that a graph refers to; peak_bytes: the most of it; copied_bytes: both
    ways; copied_s: seconds that this took.
    """

    def __init__(self, limit_bytes: int, device: torch.device) -> None:
        self.used_bytes = self.peak_bytes = self.copied_bytes = 0
        self.copied_s = 0.0
        self._limit, self._device = limit_bytes, device
        self._allocated = 0
        self._free: dict[int, list[torch.Tensor]] = {}  # by size

    def run(self, layers: Sequence[Layer], forward: Callable[[], _T]) -> _T:
        """Run a forward of the layers. What it saves for its backward moves to host memory."""
        if self._limit <= 0:
            return forward()
        stays = {
            tensor.untyped_storage().data_ptr()
            for layer in layers
            for tensor in (*layer.module.parameters(), *layer.module.buffers())
        }
        # by address; an entry ends with the graph, so the address has not been used again
        found: weakref.WeakValueDictionary[int, _Saved] = weakref.WeakValueDictionary()

        def pack(tensor: torch.Tensor) -> Any:
            if not self._can_move(tensor) or tensor.untyped_storage().data_ptr() in stays:
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

    def _can_move(self, tensor: torch.Tensor) -> bool:
        """Whether its memory on the device is all there is to it."""
        return (
            type(tensor) in (torch.Tensor, torch.nn.Parameter)
            and tensor.layout is torch.strided
            and tensor.device == self._device
            and not (tensor.is_nested or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        )

    def _move(self, found: Sequence[_Saved]) -> None:
        """To the host, if there is room for all of it."""
        block = self._take(sum(saved.size for saved in found))
        if block is None:
            return
        at = 0
        with self._copying(block.memory.numel()):
            for saved in found:
                assert saved.storage is not None
                block.memory[at : at + saved.size].copy_(self._bytes(saved.storage))
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
            with self._copying(saved.size):
                target.copy_(saved.block.memory[saved.at : saved.at + saved.size])
            saved.storage, saved.block = target.untyped_storage(), None
        return saved.storage

    def _bytes(self, storage: torch.UntypedStorage) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage)

    @contextmanager
    def _copying(self, size: int) -> Iterator[None]:
        if self._device.type == "cuda":  # the time of kernels before it is not a copy's
            torch.cuda.synchronize(self._device)
        started = time.perf_counter()
        yield
        self.copied_s += time.perf_counter() - started
        self.copied_bytes += size

    # ------------------------------------------------------------ blocks

    def _take(self, size: int) -> _Block | None:
        """A block of exactly this size; None if there is no room."""
        if not 0 < size <= self._limit - self.used_bytes:
            return None
        free = self._free.setdefault(size, [])
        if not free:
            while self._allocated + size > self._limit:
                self._release(next(filter(None, self._free.values())).pop())
            free.append(self._allocate(size))
        memory = free.pop()
        self.used_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        block = _Block(memory)
        weakref.finalize(block, self._give_back, memory).atexit = False
        return block

    def _give_back(self, memory: torch.Tensor) -> None:
        self.used_bytes -= memory.numel()
        self._free[memory.numel()].append(memory)

    def _allocate(self, size: int) -> torch.Tensor:
        memory = torch.empty(size, dtype=torch.uint8)
        if self._device.type == "cuda":
            # torch.empty(pin_memory=True) would round the size up to a power of two
            _cuda("cudaHostRegister", memory.data_ptr(), size, 0)
        self._allocated += size
        return memory

    def _release(self, memory: torch.Tensor) -> None:
        if self._device.type == "cuda":
            _cuda("cudaHostUnregister", memory.data_ptr())
        self._allocated -= memory.numel()


def _cuda(function: str, *arguments: int) -> None:
    """Call CUDA's runtime. torch.cuda.CudaError if it fails."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.check_error(getattr(runtime, function)(*arguments))
