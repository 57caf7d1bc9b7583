"""Gradient sums in flat buffers: the canonical sum of DESIGN section 5 on tensors.

A range of layers has one layout: all trainable parameters, in order, one after the other. A sum is
a flat fp32 buffer of that layout. Memory comes from a pool (fresh pages cost more than adding), and
goes back when the last holder - the store, a slice, a send in flight - lets go of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from bamboo_agent.layers import Layer

Losses = dict[int, float]
"""micro-batch -> its mean loss; travels with the sums of the last stage."""


class Buffer:
    """A flat tensor that is returned to its pool when nobody refers to this object any more.

    lent: how many sends still read it; while it is lent, nobody may write it.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.lent = 0
        self.views: list[torch.Tensor] | None = None


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

    def zeros(self, size: int) -> Buffer:
        """A buffer of ``size`` zeros."""
        buffer = self.take(size)
        buffer.tensor.zero_()
        return buffer


@dataclass
class Sum:
    """PART, LEAF or FOLDED: a whole buffer, and the losses of its micro-batches."""

    buffer: Buffer
    losses: Losses = field(default_factory=dict)


@dataclass(frozen=True)
class Slice:
    """CHUNK or RED: one of C slices of a buffer. Losses travel with slice 0 only."""

    tensor: torch.Tensor
    losses: Losses
    buffer: Buffer | None = None


class Layout:
    """Where the parameters of layers lo..hi-1 lie in a flat buffer."""

    def __init__(self, sizes: Sequence[int], lo: int, hi: int) -> None:
        """sizes: trainable numbers of every layer of the model."""
        self.layers: dict[int, slice] = {}
        at = 0
        for layer in range(lo, hi):
            self.layers[layer] = slice(at, at + sizes[layer])
            at += sizes[layer]
        self.size = at

    def slice_of(self, part: int, parts: int) -> slice:
        """Elements of slice ``part`` of ``parts``."""
        return slice(self.size * part // parts, self.size * (part + 1) // parts)


def parameter_views(buffer: Buffer, layers: Sequence[Layer]) -> list[torch.Tensor]:
    """One view per trainable parameter of the layers that the buffer covers, in order."""
    if buffer.views is None:
        views = []
        at = 0
        for layer in layers:
            for parameter in layer.parameters:
                end = at + parameter.numel()
                views.append(buffer.tensor[at:end].view(parameter.shape))
                at = end
        buffer.views = views
    return buffer.views


def fold(pool: Pool, into: Sum, leaf: Sum) -> Sum:
    """The chunk with one leaf more; in place unless somebody still reads ``into``."""
    buffer = into.buffer
    if buffer.lent:
        buffer = pool.take(buffer.tensor.numel())
        torch.add(into.buffer.tensor, leaf.buffer.tensor, out=buffer.tensor)
    else:
        buffer.tensor.add_(leaf.buffer.tensor)
    return Sum(buffer, into.losses | leaf.losses)
