"""Memory for received tensors, used again once nobody refers to it.

The first write to a page of new memory costs a fault, which takes longer than to receive the page's
bytes. A step receives what the step before received, so memory of the same size is soon free.
"""

from __future__ import annotations

import math
import weakref
from collections import OrderedDict, deque

import torch

MIN_BYTES = 64 << 10
"""Smaller tensors do not come from here: the allocator itself keeps such memory."""
KEPT_BYTES = 256 << 20


class ReceiveMemory:
    """Pieces of memory by size. One thread takes them; they come back from any thread.

    kept_bytes: how much may lie unused. Sizes that have lain longest go to the system first.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._returned: deque[torch.Tensor] = deque()
        self._unused: OrderedDict[int, list[torch.Tensor]] = OrderedDict()
        self.unused_bytes = 0

    def take(self, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor on the CPU, contents undefined. Errors are those of torch.empty.

        Its memory comes back when no tensor and no view of it is left, in whatever thread.
        """
        if not all(type(n) is int and n >= 0 for n in shape):
            return torch.empty(shape, dtype=dtype)  # which raises
        size = math.prod(shape) * dtype.itemsize
        if size < MIN_BYTES:
            return torch.empty(shape, dtype=dtype)
        self._collect()
        memory = self._pop(size) if size in self._unused else torch.empty(size, dtype=torch.uint8)
        lent = memory.numpy()  # torch keeps this object as long as the storage below
        weakref.finalize(lent, self._returned.append, memory).atexit = False
        return torch.from_numpy(lent).view(dtype).view(shape)

    def _pop(self, size: int) -> torch.Tensor:
        same = self._unused[size]
        memory = same.pop()
        if not same:
            del self._unused[size]
        self.unused_bytes -= size
        return memory

    def _collect(self) -> None:
        """Only here do the books change, since memory may come back at any moment."""
        while self._returned:
            memory = self._returned.popleft()
            self._unused.setdefault(memory.nbytes, []).append(memory)
            self._unused.move_to_end(memory.nbytes)
            self.unused_bytes += memory.nbytes
        while self.unused_bytes > self._kept_bytes:
            self._pop(next(iter(self._unused)))
