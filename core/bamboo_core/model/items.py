"""Items: the results of tasks, named by content.

Two agents that hold an item of the same name hold the same bits, so whoever
holds one may send it. Everything but PART and FOLDED is immutable. Sums and activations are named
by the layer range of the stage that made them, so that another cut of the model is another name.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple

from bamboo_core.model.ids import AgentId


class Kind(IntEnum):
    """What an item is. ``step`` is always the step; the other fields are as said here."""

    ACT = 1  # [lo:hi] m=index: what backward needs of one forward; never sent, but by a leaver
    OUT = 2  # [lo] m=index: activation that enters layer lo (output of layer lo-1)
    INGRAD = 3  # [lo] m=index: gradient of the loss by the input of layer lo
    PART = 4  # [lo:hi] leaf=index: unfinished leaf sum; ``part`` micro-batches are in it
    LEAF = 5  # [lo:hi] leaf=index: finished leaf sum
    FOLDED = 6  # [lo:hi] chunk=index: unfinished chunk; ``part`` of its leaves are in it
    CHUNK = 7  # [lo:hi] chunk=index, slice=part: finished chunk sum, cut in C slices
    RED = 8  # [lo:hi] slice=part: reduced gradient
    VOTE = 9  # agent: bound to the epoch in which it was cast
    COMMIT = 10  # the global scalars of the step
    VER = 11  # [lo:lo+1]: weights and optimizer state with which ``step`` may be computed
    EVAL = 12  # [lo] m=index: activation of a validation micro-batch that enters layer lo
    SCORE = 13  # m=index: loss of a validation micro-batch
    FILE = 14  # [lo:lo+1]: record (path, hash, bytes) of a saved layer of version ``step``

    __hash__ = int.__hash__  # Enum's own is a slow Python function


class Item(NamedTuple):
    """Name of a result. Unused fields are 0 (``agent``: empty), so that equal things are equal."""

    kind: Kind
    step: int
    lo: int = 0
    hi: int = 0
    index: int = 0  # type: ignore[assignment]
    part: int = 0
    agent: AgentId = AgentId("")

    def __str__(self) -> str:
        """``out[4] m3``, ``red[0:4] #1``, ``vote a``; the step stands as ``@k``."""
        where = f"[{self.lo}:{self.hi}]" if self.hi else (f"[{self.lo}]" if self.lo else "")
        words = [self.kind.name.lower() + where]
        if self.index:
            words.append(f"m{self.index}")
        if self.part:
            words.append(f"#{self.part}")
        if self.agent:
            words.append(self.agent)
        if self.step:
            words.append(f"@{self.step}")
        return " ".join(words)


_ITEM = re.compile(
    r"(?P<kind>[a-z]+)(?:\[(?P<lo>\d+)(?::(?P<hi>\d+))?\])?(?: m(?P<index>\d+))?"
    r"(?: #(?P<part>\d+))?(?: (?P<agent>[a-z0-9][a-z0-9.-]*))?(?: @(?P<step>-?\d+))?"
)


def parse_item(text: str) -> Item:
    """Inverse of ``str(item)``. ValueError if the text is no item."""
    match = _ITEM.fullmatch(text)
    if match is None or match["kind"].upper() not in Kind.__members__:
        raise ValueError(f"not an item: {text!r}")
    return Item(
        Kind[match["kind"].upper()],
        int(match["step"] or 0),
        int(match["lo"] or 0),
        int(match["hi"] or 0),
        int(match["index"] or 0),
        int(match["part"] or 0),
        AgentId(match["agent"] or ""),
    )
