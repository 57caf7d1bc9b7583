"""Blocks of host memory, pinned if the device is a GPU, within one limit for all who use them.

A block has pages of its own, since pages are what is pinned. It is free again when its object is no
longer referenced. All copies are synchronous.
"""

from __future__ import annotations

import logging
import mmap
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

log = logging.getLogger(__name__)


class Block:
    """Host memory that is free again when this object is no longer referenced."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory


class Tally:
    """What one user of host memory has done with it.

    used_bytes: now; peak_bytes: the most of it; left_bytes: found no room, since the start;
    copied_bytes: both ways; copied_s: seconds that this took.
    """

    def __init__(self) -> None:
        self.used_bytes = self.peak_bytes = self.left_bytes = self.copied_bytes = 0
        self.copied_s = 0.0


class HostBlocks:
    """limit_bytes: most that is allocated, for all blocks together, without the rest of each one's
    last page."""

    def __init__(self, limit_bytes: int, device: torch.device) -> None:
        self.limit_bytes, self.device = limit_bytes, device
        self._allocated = self._used = 0
        self._free: dict[int, list[torch.Tensor]] = {}  # by size

    def take(self, size: int, tally: Tally) -> Block | None:
        """A block of exactly this size; None if there is no room, or the system gives no memory."""
        if not 0 < size <= self.limit_bytes - self._used:
            return None
        free = self._free.setdefault(size, [])
        if not free:
            while self._allocated + size > self.limit_bytes:
                self._release(next(filter(None, self._free.values())).pop())
            try:
                free.append(self._allocate(size))
            except RuntimeError as error:  # torch.cuda.CudaError is one, and so is torch's own
                self.limit_bytes = self._allocated
                log.warning("%d bytes of host memory is all there is: %s", self._allocated, error)
                return None
        memory = free.pop()
        self._used += size
        tally.used_bytes += size
        tally.peak_bytes = max(tally.peak_bytes, tally.used_bytes)
        block = Block(memory)
        weakref.finalize(block, self._give_back, memory, tally).atexit = False
        return block

    @contextmanager
    def copying(self, size: int, tally: Tally) -> Iterator[None]:
        """Count what is copied meanwhile."""
        if self.device.type == "cuda":  # the time of kernels before it is not a copy's
            torch.cuda.synchronize(self.device)
        started = time.perf_counter()
        yield
        tally.copied_s += time.perf_counter() - started
        tally.copied_bytes += size

    def can_move(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's memory on the device is all there is to it."""
        return (
            type(tensor) in (torch.Tensor, torch.nn.Parameter)
            and tensor.layout is torch.strided
            and tensor.device == self.device
            and not (tensor.is_nested or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        )

    def bytes_of(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """The bytes of memory on the device."""
        return torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage)

    def _give_back(self, memory: torch.Tensor, tally: Tally) -> None:
        self._used -= memory.numel()
        tally.used_bytes -= memory.numel()
        self._free[memory.numel()].append(memory)

    def _allocate(self, size: int) -> torch.Tensor:
        try:
            pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise RuntimeError(f"the system gives no {size} bytes: {error}") from error
        memory = torch.frombuffer(pages, dtype=torch.uint8)
        if self.device.type == "cuda":
            # torch.empty(pin_memory=True) would round the size up to a power of two
            _cuda("cudaHostRegister", memory.data_ptr(), size, 0)
        self._allocated += size
        return memory

    def _release(self, memory: torch.Tensor) -> None:
        if self.device.type == "cuda":
            _cuda("cudaHostUnregister", memory.data_ptr())
        self._allocated -= memory.numel()


def _cuda(function: str, *arguments: int) -> None:
    """Call CUDA's runtime. torch.cuda.CudaError if it fails."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.check_error(getattr(runtime, function)(*arguments))
