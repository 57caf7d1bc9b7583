"""Items: the results of tasks, named by content.

Two agents that hold an item of the same name hold the same bits, so either may send it. All items
but PART and FOLDED are immutable. Sums and activations carry the layer range of the stage that made
them: under another cut of the model they have other names.
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
    LEAF = 5  # finished sum of a leaf
    FOLDED = 6  # unfinished sum of a chunk
    CHUNK = 7  # one slice of the finished sum of a chunk
    RED = 8  # one slice of the reduced gradient
    VOTE = 9  # an agent's vote; valid only in the epoch in which it was cast
    COMMIT = 10  # the global scalars of the step
    VER = 11  # weights and optimizer state of a layer, ready to compute ``step``
    EVAL = 12  # activation of a validation micro-batch that enters a layer
    SCORE = 13  # loss of a validation micro-batch
    FILE = 14  # record (path, hash, bytes) of a saved layer of version ``step``
    PREFIX = 15  # a forward by a replica, up to some layer of the stage; never sent

    __hash__ = int.__hash__  # Enum's own is a slow Python function


class Item(NamedTuple):
    """Name of a result. Use the constructors below; unused fields keep their defaults.

    ``span`` is the layer range of a stage. ``lo`` alone stands for one layer boundary.
    """

    kind: Kind
    step: int
    lo: int = 0
    hi: int = 0
    index: int = 0  # type: ignore[assignment]  # micro-batch, leaf or chunk
    # slice; PART, FOLDED: how many micro-batches or leaves the sum contains; PREFIX: layers done
    part: int = 0
    agent: AgentId = AgentId("")

    @staticmethod
    def act(step: int, span: Range, microbatch: int) -> Item:
        lo, hi = span
        return _new(Item, (_ACT, step, lo, hi, microbatch, 0, _NO_AGENT))

    @staticmethod
    def out(step: int, layer: int, microbatch: int) -> Item:
        return _new(Item, (_OUT, step, layer, 0, microbatch, 0, _NO_AGENT))

    @staticmethod
    def ingrad(step: int, layer: int, microbatch: int) -> Item:
        return _new(Item, (_INGRAD, step, layer, 0, microbatch, 0, _NO_AGENT))

    @staticmethod
    def partial(step: int, span: Range, leaf: int, microbatches: int) -> Item:
        """PART. ``microbatches``: how many the sum contains."""
        lo, hi = span
        return _new(Item, (_PART, step, lo, hi, leaf, microbatches, _NO_AGENT))

    @staticmethod
    def leaf(step: int, span: Range, leaf: int) -> Item:
        lo, hi = span
        return _new(Item, (_LEAF, step, lo, hi, leaf, 0, _NO_AGENT))

    @staticmethod
    def folded(step: int, span: Range, chunk: int, leaves: int) -> Item:
        """``leaves``: how many leaves of the chunk the sum contains."""
        lo, hi = span
        return _new(Item, (_FOLDED, step, lo, hi, chunk, leaves, _NO_AGENT))

    @staticmethod
    def chunk(step: int, span: Range, chunk: int, slice: int) -> Item:
        lo, hi = span
        return _new(Item, (_CHUNK, step, lo, hi, chunk, slice, _NO_AGENT))

    @staticmethod
    def red(step: int, span: Range, slice: int) -> Item:
        lo, hi = span
        return _new(Item, (_RED, step, lo, hi, 0, slice, _NO_AGENT))

    @staticmethod
    def vote(step: int, agent: AgentId) -> Item:
        return _new(Item, (_VOTE, step, 0, 0, 0, 0, agent))

    @staticmethod
    def commit(step: int) -> Item:
        return _new(Item, (_COMMIT, step, 0, 0, 0, 0, _NO_AGENT))

    @staticmethod
    def ver(step: int, layer: int) -> Item:
        return _new(Item, (_VER, step, layer, layer + 1, 0, 0, _NO_AGENT))

    @staticmethod
    def eval(step: int, layer: int, microbatch: int) -> Item:
        return _new(Item, (_EVAL, step, layer, 0, microbatch, 0, _NO_AGENT))

    @staticmethod
    def score(step: int, microbatch: int) -> Item:
        return _new(Item, (_SCORE, step, 0, 0, microbatch, 0, _NO_AGENT))

    @staticmethod
    def file(step: int, layer: int) -> Item:
        return _new(Item, (_FILE, step, layer, layer + 1, 0, 0, _NO_AGENT))

    @staticmethod
    def prefix(step: int, span: Range, microbatch: int, layers: int) -> Item:
        """``layers``: how many layers of the stage are done."""
        lo, hi = span
        return _new(Item, (_PREFIX, step, lo, hi, microbatch, layers, _NO_AGENT))

    def __str__(self) -> str:
        """``out[4] m3``, ``red[0:4] #1``, ``vote a``; a step other than 0 follows as ``@3``."""
        kind, step, lo, hi, index, part, agent = self
        if index and not (part or step or agent) and (hi or lo):  # these are the most
            return f"{_NAMES[kind]}[{lo}:{hi}] m{index}" if hi else f"{_NAMES[kind]}[{lo}] m{index}"
        text = _NAMES[kind]
        if hi:
            text += f"[{lo}:{hi}]"
        elif lo:
            text += f"[{lo}]"
        if index:
            text += f" m{index}"
        if part:
            text += f" #{part}"
        if agent:
            text += " " + agent
        return f"{text} @{step}" if step else text


@lru_cache(maxsize=512)  # in a large grid most items are slices, and each is named twice
def slices_of(cut: Range, step: int, chunk: int, chunks: int) -> tuple[Item, ...]:
    """All slices of the sum of one chunk; there are as many as chunks."""
    return tuple([Item.chunk(step, cut, chunk, z) for z in range(chunks)])


@lru_cache(maxsize=512)
def addends(cut: Range, step: int, z: int, chunks: int) -> tuple[Item, ...]:
    """Slice ``z`` of the sums of all chunks."""
    return tuple([Item.chunk(step, cut, c, z) for c in range(chunks)])


def numbered(items: Sequence[Item]) -> tuple[str, str, Sequence[int]] | None:
    """The parts of the items' texts if these differ in one number alone: what comes before it, what
    comes after it, and the number of each item. The text of an item whose number is 0 is shorter.

    Thousands of items are slices of one sum, or the same slice of many sums. None: they differ
    otherwise.
    """
    *others, indices, parts, agents = zip(*items, strict=True)
    kind, step, lo, hi, index, part, agent = items[0]
    same = zip((*others, agents), (kind, step, lo, hi, agent), strict=True)
    if not hi or step or agent or any(values.count(x) < len(items) for values, x in same):
        return None
    begin = f"{_NAMES[kind]}[{lo}:{hi}]"
    if indices.count(index) == len(items):
        return (f"{begin} m{index} #" if index else f"{begin} #"), "", parts
    if parts.count(part) == len(items):
        return f"{begin} m", (f" #{part}" if part else ""), indices
    return None


_NAMES = {kind: kind.name.lower() for kind in Kind}

# Hundreds of thousands of items are made for one plan: these spare Item.__new__ and the look-ups.
_new = tuple.__new__
_NO_AGENT = AgentId("")
_ACT, _OUT, _INGRAD, _PART, _LEAF = Kind.ACT, Kind.OUT, Kind.INGRAD, Kind.PART, Kind.LEAF
_FOLDED, _CHUNK, _RED, _VOTE, _COMMIT = Kind.FOLDED, Kind.CHUNK, Kind.RED, Kind.VOTE, Kind.COMMIT
_VER, _EVAL, _SCORE, _FILE = Kind.VER, Kind.EVAL, Kind.SCORE, Kind.FILE
_PREFIX = Kind.PREFIX

_ITEM = re.compile(
    r"(?P<kind>[a-z]+)(?:\[(?P<lo>\d+)(?::(?P<hi>\d+))?\])?(?: m(?P<index>\d+))?"
    r"(?: #(?P<part>\d+))?(?: (?P<agent>[a-z0-9][a-z0-9.-]*))?(?: @(?P<step>-?\d+))?"
)


def parse_item(text: str) -> Item:
    """Inverse of ``str(item)``. ValueError if the text is not an item."""
    match = _ITEM.fullmatch(text)
    if match is None or match["kind"].upper() not in Kind.__members__:
        raise ValueError(f"not an item: {text!r}")
    return Item(
        kind=Kind[match["kind"].upper()],
        step=int(match["step"] or 0),
        lo=int(match["lo"] or 0),
        hi=int(match["hi"] or 0),
        index=int(match["index"] or 0),
        part=int(match["part"] or 0),
        agent=AgentId(match["agent"] or ""),
    )
