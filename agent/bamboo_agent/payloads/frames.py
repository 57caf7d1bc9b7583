"""Frames: one item each, with its header and its tensors, on the way from agent to agent."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import torch

from bamboo_agent.device.buffer_pool import Buffer
from bamboo_core.model.ids import Fence
from bamboo_core.model.items import BULK, Item
from bamboo_core.protocol.messages import CommitRecord


class Lane(IntEnum):
    """Boundary tensors and votes never wait behind bulk (sums, weights)."""

    BOUNDARY = 0
    BULK = 1


@dataclass(frozen=True)
class Frame:
    """One item in transit."""

    item: Item
    fence: Fence
    commit: CommitRecord | None = None
    meta: dict[str, Any] = field(default_factory=dict)  # a JSON object
    tensors: tuple[torch.Tensor | None, ...] = ()  # contiguous, on the CPU
    owner: Buffer | None = None  # has their memory; ``lent`` counts frames that still read it

    @property
    def lane(self) -> Lane:
        """The lane that the frame is queued in."""
        return Lane.BULK if self.item.kind in BULK else Lane.BOUNDARY

    def lend(self) -> None:
        """Call before handing the frame to a transport."""
        if self.owner is not None:
            self.owner.lent += 1

    def release(self) -> None:
        """The transport no longer reads the tensors."""
        if self.owner is not None:
            self.owner.lent -= 1

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors if t is not None)
