"""Items: the results of tasks, named by content.

Two agents that hold an item of the same name hold the same bits, so either may send it. All items
but PART and SUM are immutable. Sums and activations carry the layer range of the stage that made
them: under another cut of the model they have other names. A slice carries the number of slices.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from bamboo_core.model.ids import AgentId, Range


class Kind(IntEnum):
    """The kind of an item. ``step`` is always the step of training.

    The constructors of :class:`Item` say which other fields a kind uses.
    """

    ACT = 1  # what the backward of one forward needs; only a leaver sends it
    OUT = 2  # activation that enters a layer (the output of the layer before)
    INGRAD = 3  # gradient of the loss with respect to a layer's input
    PART = 4  # unfinished sum of a leaf
    SUM = 5  # of a run of leaves; it is spent when it becomes part of a longer one, or is sliced
    PIECE = 6  # one slice of a sum to which nothing is added any more
    RED = 8  # one slice of the reduced gradient
    VOTE = 9  # an agent's vote; valid only in the epoch in which it was cast
    COMMIT = 10  # the global scalars of the step
    VER = 11  # weights and optimizer state of a layer, ready to compute ``step``
    EVAL = 12  # activation of a validation micro-batch that enters a layer
    SCORE = 13  # loss of a validation micro-batch
    FILE = 14  # record (path, hash, bytes) of a saved layer of version ``step``
    PREFIX = 15  # a forward by a replica, up to some layer of the stage; never sent

    __hash__ = int.__hash__  # Enum's own is a slow Python function


BULK = frozenset({Kind.ACT, Kind.PART, Kind.SUM, Kind.PIECE, Kind.RED, Kind.VER})
"""Kinds of large items. They have a lane of their own: boundary tensors and votes never wait behind
them. Messages of one lane between two agents stay in order."""


class Item(NamedTuple):
    """Name of a result. Use the constructors below; unused fields keep their defaults.

    ``span`` is the layer range of a stage. ``lo`` alone stands for one layer boundary.
    """

    kind: Kind
    step: int
    lo: int = 0
    hi: int = 0
    index: int = 0  # type: ignore[assignment]  # micro-batch or leaf; the first one of a run
    # slice; PART: how many micro-batches the sum contains; PREFIX: layers done
    part: int = 0
    agent: AgentId = AgentId("")
    leaves: int = 0  # in the run
    slices: int = 0  # of which this is one

    @staticmethod
    def act(step: int, span: Range, microbatch: int) -> Item:
        lo, hi = span
        return _new(Item, (_ACT, step, lo, hi, microbatch, 0, _NO_AGENT, 0, 0))

    @staticmethod
    def out(step: int, layer: int, microbatch: int) -> Item:
        return _new(Item, (_OUT, step, layer, 0, microbatch, 0, _NO_AGENT, 0, 0))

    @staticmethod
    def ingrad(step: int, layer: int, microbatch: int) -> Item:
        return _new(Item, (_INGRAD, step, layer, 0, microbatch, 0, _NO_AGENT, 0, 0))

    @staticmethod
    def partial(step: int, span: Range, leaf: int, microbatches: int) -> Item:
        """PART. ``microbatches``: how many the sum contains."""
        lo, hi = span
        return _new(Item, (_PART, step, lo, hi, leaf, microbatches, _NO_AGENT, 0, 0))

    @staticmethod
    def sum(step: int, span: Range, run: Range) -> Item:
        """``run``: its leaves."""
        (lo, hi), (first, end) = span, run
        return _new(Item, (_SUM, step, lo, hi, first, 0, _NO_AGENT, end - first, 0))

    @staticmethod
    def piece(step: int, span: Range, run: Range, slice: int, slices: int) -> Item:
        """``run``: the leaves of the sum."""
        (lo, hi), (first, end) = span, run
        return _new(Item, (_PIECE, step, lo, hi, first, slice, _NO_AGENT, end - first, slices))

    @staticmethod
    def red(step: int, span: Range, slice: int, slices: int) -> Item:
        lo, hi = span
        return _new(Item, (_RED, step, lo, hi, 0, slice, _NO_AGENT, 0, slices))

    @staticmethod
    def vote(step: int, agent: AgentId) -> Item:
        return _new(Item, (_VOTE, step, 0, 0, 0, 0, agent, 0, 0))

    @staticmethod
    def commit(step: int) -> Item:
        return _new(Item, (_COMMIT, step, 0, 0, 0, 0, _NO_AGENT, 0, 0))

    @staticmethod
    def ver(step: int, layer: int) -> Item:
        return _new(Item, (_VER, step, layer, layer + 1, 0, 0, _NO_AGENT, 0, 0))

    @staticmethod
    def eval(step: int, layer: int, microbatch: int) -> Item:
        return _new(Item, (_EVAL, step, layer, 0, microbatch, 0, _NO_AGENT, 0, 0))

    @staticmethod
    def score(step: int, microbatch: int) -> Item:
        return _new(Item, (_SCORE, step, 0, 0, microbatch, 0, _NO_AGENT, 0, 0))

    @staticmethod
    def file(step: int, layer: int) -> Item:
        return _new(Item, (_FILE, step, layer, layer + 1, 0, 0, _NO_AGENT, 0, 0))

    @staticmethod
    def prefix(step: int, span: Range, microbatch: int, layers: int) -> Item:
        """``layers``: how many layers of the stage are done."""
        lo, hi = span
        return _new(Item, (_PREFIX, step, lo, hi, microbatch, layers, _NO_AGENT, 0, 0))

    @property
    def run(self) -> Range:
        """The leaves of a SUM or PIECE."""
        return self.index, self.index + self.leaves

    def __str__(self) -> str:
        """``out[4] m3``, ``sum[0:4] 8:12``, ``piece[0:4] 8:12 1/3``, ``red[0:4] 1/3``, ``vote a``;
        a step other than 0 follows as ``@3``."""
        kind, step, lo, hi, index, part, agent, leaves, slices = self
        if index and not (part or step or agent or leaves or slices) and (hi or lo):  # most
            return f"{_NAMES[kind]}[{lo}:{hi}] m{index}" if hi else f"{_NAMES[kind]}[{lo}] m{index}"
        text = _NAMES[kind]
        if hi:
            text += f"[{lo}:{hi}]"
        elif lo:
            text += f"[{lo}]"
        if leaves:
            text += f" {index}:{index + leaves}"
        elif index:
            text += f" m{index}"
        if slices:
            text += f" {part}/{slices}"
        elif part:
            text += f" #{part}"
        if agent:
            text += " " + agent
        return f"{text} @{step}" if step else text


@lru_cache(maxsize=512)  # in a large grid most items are slices, and each is named twice
def pieces_of(span: Range, step: int, run: Range, slices: int) -> tuple[Item, ...]:
    """All slices of one sum. run: its leaves."""
    return tuple([Item.piece(step, span, run, z, slices) for z in range(slices)])


@lru_cache(maxsize=512)
def addends(
    span: Range, step: int, z: int, slices: int, runs: tuple[Range, ...]
) -> tuple[Item, ...]:
    """Slice ``z`` of the sums of these runs of leaves."""
    return tuple([Item.piece(step, span, run, z, slices) for run in runs])


def numbered(items: Sequence[Item]) -> tuple[str, str, Sequence[int | str]] | None:
    """The parts of the texts of slices that differ in one word alone: what comes before it, what
    comes after it, and the word of each item.

    Thousands of items are slices of one sum, or the same slice of many sums. None: they differ
    otherwise, or are no slices.
    """
    kind, step, lo, hi, index, part, _, leaves, slices = items[0]
    kinds, steps, los, his, indices, parts, _, counts, numbers = zip(*items, strict=True)
    same = ((kinds, kind), (steps, step), (los, lo), (his, hi), (numbers, slices))
    if step or kind not in (_PIECE, _RED) or any(x.count(y) < len(items) for x, y in same):
        return None
    begin = f"{_NAMES[kind]}[{lo}:{hi}] "
    if kind is _RED:
        return begin, f"/{slices}", parts
    if parts.count(part) == len(items):
        runs = [f"{i}:{i + n}" for i, n in zip(indices, counts, strict=True)]
        return begin, f" {part}/{slices}", runs
    if indices.count(index) == len(items) == counts.count(leaves):
        return f"{begin}{index}:{index + leaves} ", f"/{slices}", parts
    return None


_NAMES = {kind: kind.name.lower() for kind in Kind}

# Hundreds of thousands of items are made for one plan: these spare Item.__new__ and the look-ups.
_new = tuple.__new__
_NO_AGENT = AgentId("")
_ACT, _OUT, _INGRAD, _PART, _SUM = Kind.ACT, Kind.OUT, Kind.INGRAD, Kind.PART, Kind.SUM
_PIECE, _RED, _VOTE, _COMMIT = Kind.PIECE, Kind.RED, Kind.VOTE, Kind.COMMIT
_VER, _EVAL, _SCORE, _FILE = Kind.VER, Kind.EVAL, Kind.SCORE, Kind.FILE
_PREFIX = Kind.PREFIX

_ITEM = re.compile(
    r"(?P<kind>[a-z]+)(?:\[(?P<lo>\d+)(?::(?P<hi>\d+))?\])?"
    r"(?: m(?P<index>\d+)| (?P<first>\d+):(?P<end>\d+))?"
    r"(?: #(?P<part>\d+)| (?P<slice>\d+)/(?P<slices>\d+))?"
    r"(?: (?P<agent>[a-z0-9][a-z0-9.-]*))?(?: @(?P<step>-?\d+))?"
)


def parse_item(text: str) -> Item:
    """Inverse of ``str(item)``. ValueError if the text is not an item."""
    match = _ITEM.fullmatch(text)
    if match is None or match["kind"].upper() not in Kind.__members__:
        raise ValueError(f"not an item: {text!r}")
    index = int(match["index"] or match["first"] or 0)
    return Item(
        kind=Kind[match["kind"].upper()],
        step=int(match["step"] or 0),
        lo=int(match["lo"] or 0),
        hi=int(match["hi"] or 0),
        index=index,
        part=int(match["part"] or match["slice"] or 0),
        agent=AgentId(match["agent"] or ""),
        leaves=max(0, int(match["end"] or 0) - index) if match["first"] else 0,
        slices=int(match["slices"] or 0),
    )
