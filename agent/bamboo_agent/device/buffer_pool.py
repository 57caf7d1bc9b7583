"""Flat buffers for sums, from a pool: new memory pages cost more than an addition.

A buffer returns to the pool when its last holder (the store, a slice, a send) drops it.
"""

from __future__ import annotations

import weakref

import torch


class Buffer:
    """A flat tensor that returns to its pool when this object is no longer referenced.

    lent: number of sends that still read it. It must not be written while it is lent.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.lent = 0


class Pool:
    """Flat buffers by size."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: dict[int, list[torch.Tensor]] = {}
        self.allocated_bytes = 0

    def take(self, size: int) -> Buffer:
        """A buffer of ``size`` fp32 numbers, contents undefined."""
        free = self._free.setdefault(size, [])
        if free:
            tensor = free.pop()
        else:
            tensor = torch.empty(size, dtype=torch.float32, device=self._device)
            self.allocated_bytes += tensor.numel() * 4
        buffer = Buffer(tensor)
        weakref.finalize(buffer, free.append, tensor).atexit = False
        return buffer
