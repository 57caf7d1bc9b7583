"""Questions from node to node: do you see these files?

They travel between agents as frames beside the items of the program. The executor never sees them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from bamboo_agent.payloads.frames import Frame
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item, Kind

_NO_STEP = -1
"""Their items are votes of this step: an agent of an earlier version drops them as stale."""


@dataclass(frozen=True)
class Look:
    """A question: is there a file of each layer in the checkpoint's folder?"""

    attempt: int
    step: int
    sizes: tuple[int, ...]  # bytes of each layer's file


@dataclass(frozen=True)
class Seen:
    """The answer."""

    attempt: int
    step: int
    missing: str  # path of the first file that is not there; empty: all are


def to_frame(word: Look | Seen, agent: AgentId, fence: Fence) -> Frame:
    """A frame from this agent, in its fence."""
    return Frame(Item.vote(_NO_STEP, agent), fence, meta=asdict(word))


def of_frame(frame: Frame) -> Look | Seen | None:
    """The question or answer; None if the frame has an item of the program, or is malformed."""
    if frame.item.kind is not Kind.VOTE or frame.item.step != _NO_STEP:
        return None
    meta: dict[str, Any] = frame.meta
    try:  # no word of another agent ends this one
        attempt, step = _number(meta["attempt"]), _number(meta["step"])
        if "sizes" in meta:
            return Look(attempt, step, tuple(map(_number, meta["sizes"])))
        return Seen(attempt, step, str(meta["missing"]))
    except (KeyError, TypeError):
        return None


def _number(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise TypeError(f"{value!r} is no number")
    return value
