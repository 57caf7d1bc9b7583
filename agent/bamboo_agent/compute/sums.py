"""Gradient sums: the canonical sum (`bamboo_core.model.numerics`) on tensors.

A range of layers has one layout: all trainable parameters, in order, one after the other, as a flat
fp32 buffer. A sum that grows here is first kept in the tensors that autograd made (:class:`Sum`
with ``parts``), which saves the passes over memory that filling and flattening cost; it becomes a
flat buffer, from zero, when it is sent or begins a chunk. Adding +0.0 there makes the bits those of
a sum from zero: the two differ in the sign of zeros only, and a chunk, which begins with a
flattened leaf, can never be -0.0, so that what is added to it may be.

Buffers come from a pool (fresh pages cost more than adding), and go back when the last holder - the
store, a slice, a send in flight - lets go of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from bamboo_agent.compute.copies import Witness
from bamboo_agent.compute.layers import Layer
from bamboo_core.model.numerics import tree_order

Losses = dict[int, float]
"""micro-batch -> its mean loss; travels with the sums of the last stage."""


class Buffer:
    """A flat tensor that is returned to its pool when nobody refers to this object any more.

    lent: how many sends still read it; while it is lent, nobody may write it.
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


@dataclass
class Sum:
    """PART, LEAF or FOLDED: one tensor per parameter, or a flat buffer; exactly one is there.

    parts: None stands for zeros (a parameter that no micro-batch has used).
    """

    losses: Losses = field(default_factory=dict)
    buffer: Buffer | None = None
    parts: list[torch.Tensor | None] | None = None


@dataclass(frozen=True)
class Slice:
    """CHUNK or RED: one of C slices of a buffer. Losses travel with slice 0 only.

    witness: in some steps, with one slice of each agent that reduces.
    """

    tensor: torch.Tensor
    losses: Losses
    buffer: Buffer | None = None
    witness: Witness | None = None


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


def parameter_views(buffer: Buffer, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """One view of the buffer per parameter, in order."""
    views = []
    at = 0
    for parameter in parameters:
        end = at + parameter.numel()
        views.append(buffer.tensor[at:end].view(parameter.shape))
        at = end
    return views


def trainable(layers: Sequence[Layer]) -> list[torch.Tensor]:
    """The layers' trainable parameters, in order."""
    return [parameter for layer in layers for parameter in layer.parameters]


def flatten(pool: Pool, total: Sum, parameters: Sequence[torch.Tensor]) -> Buffer:
    """The sum as a flat buffer that begins from zero; it keeps no parts."""
    if total.buffer is not None:
        return total.buffer
    assert total.parts is not None
    buffer = pool.take(sum(parameter.numel() for parameter in parameters))
    views = parameter_views(buffer, parameters)
    for view, part in zip(views, total.parts, strict=True):
        if part is None:
            view.zero_()
        else:
            torch.add(part, 0.0, out=view)
    total.buffer, total.parts = buffer, None
    return buffer


def grow(
    pool: Pool,
    total: Sum,
    gradients: Sequence[torch.Tensor | None],
    parameters: Sequence[torch.Tensor],
) -> None:
    """Take over what autograd has left in ``.grad``.

    Gradients of fp32 parameters have been added in place already; others are summed here, in fp32.
    """
    if total.parts is not None:
        total.parts = list(gradients)
        if any(p.dtype != torch.float32 for p in parameters):
            flatten(pool, total, parameters)
        return
    assert total.buffer is not None
    for view, gradient in zip(parameter_views(total.buffer, parameters), gradients, strict=True):
        if gradient is not None and gradient.dtype != torch.float32:
            view.add_(gradient)


def fold(pool: Pool, into: Sum, leaf: Sum, parameters: Sequence[torch.Tensor]) -> Sum:
    """The chunk with one leaf more; in place unless somebody still reads ``into``."""
    assert into.buffer is not None
    buffer = into.buffer
    if buffer.lent:
        buffer = pool.take(into.buffer.tensor.numel())
        buffer.tensor.copy_(into.buffer.tensor)
    if leaf.parts is None:
        assert leaf.buffer is not None
        buffer.tensor.add_(leaf.buffer.tensor)
    else:
        for view, part in zip(parameter_views(buffer, parameters), leaf.parts, strict=True):
            if part is not None:
                view.add_(part)
    return Sum(into.losses | leaf.losses, buffer)


def add_tree(tensors: list[torch.Tensor], out: torch.Tensor) -> None:
    """Sum in the tree's order into ``out``; the tensors themselves stay as they are."""
    if len(tensors) == 1:
        out.copy_(tensors[0])
        return
    sums = list(tensors)
    for into, other in tree_order(len(tensors)):
        if sums[into] is not tensors[into]:
            sums[into].add_(sums[other])
        else:
            target = out if into == 0 else None
            sums[into] = torch.add(sums[into], sums[other], out=target)
