"""Gradient sums: the canonical sum (`bamboo_core.model.numerics`) on tensors.

A range of layers has one layout: all trainable parameters in order, as a flat fp32 buffer. A sum
starts in the tensors that autograd made (:class:`Sum` with ``parts``), which saves passes over
memory. It becomes a flat buffer when it is sent or starts a chunk. Flattening adds +0.0, which
gives the bits of a sum from zero: the two differ only in the sign of zeros. A chunk starts with a
flattened leaf and so is never -0.0; adding -0.0 to it changes nothing.

The memory of the sums comes from :mod:`bamboo_agent.device.buffer_pool`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from bamboo_agent.compute.state import State
from bamboo_agent.device.buffer_pool import Buffer, Pool
from bamboo_agent.device.digests import digest
from bamboo_agent.payloads.kinds import Losses, Slice, Sum
from bamboo_core.model.ids import Range
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.numerics import tree_order
from bamboo_core.model.program import Instruction


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


class GradientSums:
    """The sums of one agent: leaves, chunks and reduced gradients. ``reduced``: buffers by step and
    range of layers."""

    def __init__(self, state: State) -> None:
        self.reduced: dict[tuple[int, int, int], Buffer] = {}
        self._state, self._store, self._checks = state, state.store, state.checks
        self._pool = Pool(state.setup.device)

    def begin_micro_batch(self, task: Instruction, parameters: list[torch.Tensor]) -> Sum:
        """Let autograd accumulate into the leaf's sum, or start a new sum."""
        done = task.index % self._state.batch.leaf_size
        if not done:
            return Sum(parts=[])
        leaf = self._state.batch.leaf_of(task.index)
        total: Sum = self._store[Item.partial(task.step, (task.lo, task.hi), leaf, done)]
        if total.buffer is not None:
            grown: Sequence[torch.Tensor | None] = parameter_views(total.buffer, parameters)
        else:
            grown = total.parts or ()
        for parameter, part in zip(parameters, grown, strict=True):
            if part is None or part.dtype == parameter.dtype:
                parameter.grad = part
        return total

    def end_micro_batch(
        self, task: Instruction, parameters: list[torch.Tensor], total: Sum, loss: float | None
    ) -> None:
        """Take what autograd has added into the leaf's sum. loss: of the micro-batch, if it has
        been computed here."""
        gradients = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        grow(self._pool, total, gradients, parameters)
        if loss is not None:
            total.losses[task.index] = loss
        size = self._state.batch.leaf_size
        leaf, into = self._state.batch.leaf_of(task.index), task.index % size + 1
        span = (task.lo, task.hi)
        if into == size:
            self._store[Item.leaf(task.step, span, leaf)] = total
        else:
            self._store[Item.partial(task.step, span, leaf, into)] = total

    def fold(self, task: Instruction) -> None:
        """FOLD: add a leaf to its chunk."""
        batch, (lo, hi) = self._state.batch, (task.lo, task.hi)
        chunk = batch.chunk_of(task.index)
        leaves = batch.leaves_of(chunk)
        done = task.index - leaves.start
        leaf: Sum = self._store[Item.leaf(task.step, (lo, hi), task.index)]
        before: Sum | None = None
        if done:
            before = self._store[Item.folded(task.step, (lo, hi), chunk, done)]
        total = self._add_leaf(task, before, leaf)
        buffer = flatten(self._pool, total, self._state.outlines(lo, hi))
        if done + 1 < len(leaves):
            self._store[Item.folded(task.step, (lo, hi), chunk, done + 1)] = total
            return
        layout = self.layout(lo, hi)
        for z in range(batch.chunks):
            piece = buffer.tensor[layout.slice_of(z, batch.chunks)]
            losses = total.losses if z == 0 else {}
            self._store[Item.chunk(task.step, (lo, hi), chunk, z)] = Slice(piece, losses, buffer)

    def _add_leaf(self, task: Instruction, before: Sum | None, leaf: Sum) -> Sum:
        """The chunk with one more leaf, flat. before: None for the first leaf."""
        parameters = self._state.outlines(task.lo, task.hi)

        def add(before: Sum | None, leaf: Sum) -> Sum:
            total = leaf if before is None else fold(self._pool, before, leaf, parameters)
            flatten(self._pool, total, parameters)
            return total

        if not self._checks.is_due(task.step, task.index):
            return add(before, leaf)
        copies_of = None if before is None else copied(self._pool, before), replace(leaf)
        total, again = add(before, leaf), add(*copies_of)
        assert total.buffer is not None
        assert again.buffer is not None
        self._checks.compare(task, digest([total.buffer.tensor]), digest([again.buffer.tensor]))
        return total

    def reduce(self, task: Instruction) -> None:
        """REDUCE: sum a slice over all chunks."""
        chunks = range(self._state.batch.chunks)
        names = [Item.chunk(task.step, (task.lo, task.hi), c, task.index) for c in chunks]
        pieces: list[Slice] = [self._store[name] for name in names]
        losses: Losses = {m: loss for piece in pieces for m, loss in piece.losses.items()}
        item = Item.red(task.step, (task.lo, task.hi), task.index)
        target = self._reduced_slice(item)
        tensors = [piece.tensor for piece in pieces]
        add_tree(tensors, out=target.tensor)
        if self._checks.is_due(task.step, task.index):
            again = torch.empty_like(target.tensor)
            add_tree(tensors, out=again)
            self._checks.compare(task, digest([target.tensor]), digest([again]))
        self._store[item] = Slice(target.tensor, losses, target.buffer)

    def to_send(self, item: Item) -> Sum:
        """A sum as a flat buffer. It is copied if it may still grow."""
        payload: Sum = self._store[item]
        if payload.buffer is None:
            flatten(self._pool, payload, self._state.outlines(item.lo, item.hi))
        if item.kind is not Kind.LEAF:
            return copied(self._pool, payload)
        return Sum(dict(payload.losses), payload.buffer)

    def flatten(self, total: Sum, parameters: Sequence[torch.Tensor]) -> None:
        """Copy the sum into memory of its own."""
        flatten(self._pool, total, parameters)

    # ------------------------------------------------------------ reduced gradients

    def keep_reduced(self, item: Item, piece: Slice) -> None:
        """Store a slice that has come from another agent."""
        target = self._reduced_slice(item)
        target.tensor.copy_(piece.tensor)
        self._store[item] = Slice(target.tensor, piece.losses, target.buffer)

    def drop_reduced(self, item: Item) -> None:
        """Free a slice, and its buffer with the last one."""
        self._store.pop(item, None)
        if not self._has_slice(item):
            self.reduced.pop((item.step, item.lo, item.hi), None)

    def _reduced_slice(self, item: Item) -> Slice:
        layout = self.layout(item.lo, item.hi)
        buffer = self.reduced.get((item.step, item.lo, item.hi))
        if buffer is None:
            buffer = self._pool.take(layout.size)
            self.reduced[item.step, item.lo, item.hi] = buffer
        return Slice(
            buffer.tensor[layout.slice_of(item.part, self._state.batch.chunks)], {}, buffer
        )

    def _has_slice(self, item: Item) -> bool:
        """Whether any slice of this reduced gradient is here. They share one buffer."""
        slices = range(self._state.batch.chunks)
        return any(item._replace(part=part) in self._store for part in slices)

    def gradient(self, cut: Range, step: int) -> Buffer:
        """The reduced gradient of a range as one flat buffer."""
        return self.reduced[(step, *cut)]

    def layout(self, lo: int, hi: int) -> Layout:
        """Where the parameters of these layers lie in a reduced gradient."""
        return Layout(self._state.setup.sizes, lo, hi)
