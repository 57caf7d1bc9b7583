"""What a transport is: frames that carry one item each, and events for the worker's loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

import torch

from bamboo_agent.compute.sums import Buffer
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item, Kind
from bamboo_core.protocol.messages import CommitRecord, Peer


class Lane(IntEnum):
    """Boundary tensors and votes never wait behind bulk (sums, weights)."""

    BOUNDARY = 0
    BULK = 1


_BULK = frozenset({Kind.ACT, Kind.PART, Kind.LEAF, Kind.FOLDED, Kind.CHUNK, Kind.RED, Kind.VER})


@dataclass(frozen=True)
class Frame:
    """One item under way.

    meta: JSON object. tensors: contiguous, on the CPU; None stands for "no tensor here". owner:
    the buffer whose memory they are (its ``lent`` counts the frames that still read it), if any.
    """

    item: Item
    fence: Fence
    commit: CommitRecord | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    tensors: tuple[torch.Tensor | None, ...] = ()
    owner: Buffer | None = None

    @property
    def lane(self) -> Lane:
        """Where the frame queues."""
        return Lane.BULK if self.item.kind in _BULK else Lane.BOUNDARY

    def lend(self) -> None:
        """The frame is about to be handed to a transport."""
        if self.owner is not None:
            self.owner.lent += 1

    def release(self) -> None:
        """The transport has read the tensors for the last time."""
        if self.owner is not None:
            self.owner.lent -= 1

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors if t is not None)


@dataclass(frozen=True)
class Arrived:
    """A whole frame has come from ``peer``."""

    peer: AgentId
    frame: Frame


@dataclass(frozen=True)
class Broken:
    """The connection with ``peer`` has failed in this fence: a suspicion, no proof."""

    peer: AgentId
    fence: Fence
    why: str


class Transport(Protocol):
    """Nothing here blocks. Frames of one lane between two agents keep their order."""

    def adopt(self, fence: Fence) -> None:
        """Forget queued frames of lower fences; broken peers may be tried again."""

    def introduce(self, *, fence: Fence, key: bytes, peers: Mapping[AgentId, Peer]) -> None:
        """Who may be talked to from now on, and this agent's own key."""

    def send(self, peer: AgentId, frame: Frame) -> None:
        """Hand over a frame; its tensors must not change until it has been sent."""

    def poll(self) -> list[Arrived | Broken]:
        """What has happened since the last call."""

    def fileno(self) -> int:
        """Readable while :meth:`poll` has something."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing that was handed over still waits to be sent."""

    def close(self) -> None:
        """End all connections."""
