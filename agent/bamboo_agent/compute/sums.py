"""Gradient sums: the canonical sum (`bamboo_core.model.numerics`) on tensors.

A range of layers has one layout: all trainable parameters in order, as a flat fp32 buffer. A sum
starts in the tensors that autograd made (:class:`Sum` with ``parts``), which saves passes over
memory. It becomes a flat buffer when it is sent or starts a chunk. Flattening adds +0.0, which
gives the bits of a sum from zero: the two differ only in the sign of zeros. A chunk starts with a
flattened leaf and so is never -0.0; adding -0.0 to it changes nothing.

The memory of the sums comes from :mod:`bamboo_agent.compute.buffers`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bamboo_agent.compute.buffers import Buffer, Pool
from bamboo_agent.compute.kinds import Sum
from bamboo_agent.compute.layers import Layer
from bamboo_core.model.numerics import tree_order


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
    """The sum as a flat buffer, summed from zero. Its parts are freed."""
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
    """Add the gradients that autograd has computed.

    It has already added those of fp32 parameters in place. Others are added here, in fp32.
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
    """The chunk with one more leaf, in place unless a send still reads ``into``."""
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


def copied(pool: Pool, total: Sum) -> Sum:
    """The same flat sum in a buffer of its own."""
    assert total.buffer is not None
    buffer = pool.take(total.buffer.tensor.numel())
    buffer.tensor.copy_(total.buffer.tensor)
    return Sum(dict(total.losses), buffer)


def add_tree(tensors: list[torch.Tensor], out: torch.Tensor) -> None:
    """Sum in the tree's order into ``out``. The tensors are not modified."""
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
