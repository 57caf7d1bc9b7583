"""Gradient sums: the canonical sum (`bamboo_core.model.numerics`) on tensors.

A range of layers has one layout: of each layer in order, the trainable parameters and the running
statistics, as a flat fp32 buffer. "Parameters" here are both. A sum
starts in the tensors that autograd made (:class:`Sum` with ``parts``), which saves passes over
memory. It becomes a flat buffer when others are added to it, or when it is sliced or sent. The
canonical sum begins at +0.0, so it has no -0.0. Sums here may have some: a sum is -0.0 only if all
that it adds up is. REDUCE adds +0.0 at the end, which gives the same bits as to begin with it.

The memory of the sums comes from :mod:`bamboo_agent.device.buffer_pool`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bamboo_agent.compute.state import State
from bamboo_agent.device.buffer_pool import Buffer, Pool
from bamboo_agent.device.digests import digest
from bamboo_agent.payloads.kinds import LateLosses, Slice, Sum, Unread
from bamboo_core.model.ids import Range
from bamboo_core.model.items import Item
from bamboo_core.model.numerics import BatchShape, add_up
from bamboo_core.model.program import Instruction


class Layout:
    """Where what layers lo..hi-1 add up lies in a flat buffer."""

    def __init__(self, sizes: Sequence[int], lo: int, hi: int) -> None:
        """sizes: of every layer of the model; see :class:`~bamboo_agent.compute.layers.Outline`."""
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
    """The sum as a flat buffer. Its parts are freed."""
    if total.buffer is not None:
        return total.buffer
    assert total.parts is not None
    buffer = pool.take(sum(parameter.numel() for parameter in parameters))
    views = parameter_views(buffer, parameters)
    for view, part in zip(views, total.parts, strict=True):
        if part is None:
            view.zero_()
        else:
            view.copy_(part)
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


def merge(pool: Pool, left: Sum, right: Sum, parameters: Sequence[torch.Tensor]) -> Sum:
    """The sum of both, in the memory of one of them: nobody else has it, since what is sent is
    sliced or copied first."""
    losses = left.losses | right.losses
    if left.buffer is None and right.buffer is not None:
        left, right = right, left  # a + b has the bits of b + a
    buffer = flatten(pool, left, parameters)
    if right.parts is None:
        assert right.buffer is not None
        buffer.tensor.add_(right.buffer.tensor)
    else:
        for view, part in zip(parameter_views(buffer, parameters), right.parts, strict=True):
            view.add_(0.0 if part is None else part)  # -0.0 + 0.0 is +0.0, as if both were flat
    return Sum(losses, buffer)


def copied(pool: Pool, total: Sum, parameters: Sequence[torch.Tensor]) -> Sum:
    """The same sum, flat, in a buffer of its own."""
    if total.buffer is None:
        parts = None if total.parts is None else list(total.parts)
        return Sum(dict(total.losses), flatten(pool, Sum(parts=parts), parameters))
    buffer = pool.take(total.buffer.tensor.numel())
    buffer.tensor.copy_(total.buffer.tensor)
    return Sum(dict(total.losses), buffer)


def add_tree(
    batch: BatchShape, runs: Sequence[Range], tensors: Sequence[torch.Tensor], out: torch.Tensor
) -> None:
    """The gradient from the sums of these runs, in canonical order. They are not modified."""
    own: set[int] = set()  # ids of tensors that are made here

    def add(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        if id(left) in own:
            return left.add_(right)
        total = torch.add(left, right, out=out if left is tensors[0] else None)
        own.add(id(total))
        return total

    total = add_up(batch, runs, tensors, add)
    torch.add(total, 0.0, out=out)  # see above: no -0.0


class GradientSums:
    """The sums of one agent: those of runs of leaves, and reduced gradients."""

    def __init__(self, state: State) -> None:
        # (step, lo, hi, number of slices) -> all slices of the reduced gradient
        self._reduced: dict[tuple[int, int, int, int], Buffer] = {}
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
        self,
        task: Instruction,
        parameters: list[torch.Tensor],
        total: Sum,
        loss: Unread | None,
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
            self._store[Item.sum(task.step, span, (leaf, leaf + 1))] = total
        else:
            self._store[Item.partial(task.step, span, leaf, into)] = total

    def fold(self, task: Instruction) -> None:
        """FOLD: add up the sums of two runs of leaves."""
        step, span, (first, end) = task.step, (task.lo, task.hi), task.ranges[0]
        parameters = self._state.outlines(*span)
        left: Sum = self._store[Item.sum(step, span, (first, task.index))]
        right: Sum = self._store[Item.sum(step, span, (task.index, end))]
        is_checked = self._checks.is_task_due(task)
        both = [copied(self._pool, x, parameters) for x in (left, right)] if is_checked else []
        if left.buffer is None and right.buffer is not None:
            both.reverse()  # in the order of ``merge``: of two NaN, the first one's bits stay
        total = merge(self._pool, left, right, parameters)
        if both:
            again = merge(self._pool, both[0], both[1], parameters)
            found = [digest([flatten(self._pool, x, parameters).tensor]) for x in (total, again)]
            self._checks.compare(task, found[0], found[1])
        self._store[Item.sum(step, span, (first, end))] = total

    def slice(self, task: Instruction) -> None:
        """SLICE: cut a sum, to which nothing is added any more, into slices of one buffer."""
        step, span, (run, (_, slices)) = task.step, (task.lo, task.hi), task.ranges
        total: Sum = self._store[Item.sum(step, span, run)]
        parameters = self._state.outlines(*span)
        is_checked = total.buffer is None and self._checks.is_task_due(task)
        again = copied(self._pool, total, parameters).buffer if is_checked else None
        buffer = flatten(self._pool, total, parameters)
        if again is not None:
            self._checks.compare(task, digest([buffer.tensor]), digest([again.tensor]))
        layout = self.layout(*span)
        for z in range(slices):
            piece = buffer.tensor[layout.slice_of(z, slices)]
            losses = total.losses if z == 0 else {}
            self._store[Item.piece(step, span, run, z, slices)] = Slice(piece, losses, buffer)

    def reduce(self, task: Instruction) -> None:
        """REDUCE: add up a slice of all sums."""
        step, span, z, ((_, slices), *runs) = task.step, (task.lo, task.hi), task.index, task.ranges
        pieces: list[Slice] = [self._store[Item.piece(step, span, x, z, slices)] for x in runs]
        losses: LateLosses = {m: loss for piece in pieces for m, loss in piece.losses.items()}
        item = Item.red(step, span, z, slices)
        target = self._reduced_slice(item)
        tensors = [piece.tensor for piece in pieces]
        add_tree(self._state.batch, runs, tensors, out=target.tensor)
        if self._checks.is_task_due(task):
            again = torch.empty_like(target.tensor)
            add_tree(self._state.batch, runs, tensors, out=again)
            self._checks.compare(task, digest([target.tensor]), digest([again]))
        self._store[item] = Slice(target.tensor, losses, target.buffer)

    def to_send(self, item: Item) -> Sum:
        """A sum as a flat buffer of its own, since it may still grow."""
        return copied(self._pool, self._store[item], self._state.outlines(item.lo, item.hi))

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
        if not any(item._replace(part=z) in self._store for z in range(item.slices)):
            self._reduced.pop((item.step, item.lo, item.hi, item.slices), None)

    def _reduced_slice(self, item: Item) -> Slice:
        layout, key = self.layout(item.lo, item.hi), (item.step, item.lo, item.hi, item.slices)
        buffer = self._reduced.get(key)
        if buffer is None:
            buffer = self._reduced[key] = self._pool.take(layout.size)
        return Slice(buffer.tensor[layout.slice_of(item.part, item.slices)], {}, buffer)

    def gradient(self, cut: Range, step: int, slices: int) -> Buffer:
        """The reduced gradient of a range as one flat buffer. slices: all of them are here."""
        return self._reduced[(step, *cut, slices)]

    def of_layer(
        self, step: int, sums: Sequence[tuple[Range, Range]], layer: int, *, once: bool = False
    ) -> torch.Tensor:
        """The reduced gradient of a layer, flat; that of a tied parameter is the sum of all its
        uses, in layer order.

        sums: ranges whose reduced gradients are here, with their slices: those of the layer and of
        all that are tied to it. once: zeros for a tied parameter that an earlier layer has.
        """
        gradient = self._summed(step, sums, layer)
        uses = [(tie, use) for tie in self._state.setup.ties for use in tie if use.layer == layer]
        if not uses:
            return gradient
        gradient = gradient.clone()
        for tie, own in uses:
            if once and tie[0] is not own:
                gradient[own.place] = 0
                continue
            first, *others = (self._summed(step, sums, use.layer)[use.place] for use in tie)
            total = first.clone()
            for other in others:
                total += other
            gradient[own.place] = total
        return gradient

    def _summed(self, step: int, sums: Sequence[tuple[Range, Range]], layer: int) -> torch.Tensor:
        """The reduced gradient of the layer's own uses."""
        cut, (_, slices) = next(x for x in sums if x[0][0] <= layer < x[0][1])
        place = self.layout(*cut).layers[layer]
        return self.gradient(cut, step, slices).tensor[place]

    def layout(self, lo: int, hi: int) -> Layout:
        """Where the parameters of these layers lie in a reduced gradient."""
        return Layout(self._state.setup.sizes, lo, hi)
