"""The transport interface: frames that carry one item each, and events for the worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

import torch

from bamboo_agent.compute.sums import Buffer
from bamboo_core.api.progress import Sent
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
        return Lane.BULK if self.item.kind in _BULK else Lane.BOUNDARY

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


@dataclass(frozen=True)
class Arrived:
    """A complete frame has arrived from ``peer``. at: when, by time.monotonic()."""

    peer: AgentId
    frame: Frame
    at: float


@dataclass(frozen=True)
class Broken:
    """The connection with ``peer`` has failed in this fence. Evidence, not proof."""

    peer: AgentId
    fence: Fence
    why: str


class Transport(Protocol):
    """No method blocks. Frames of one lane between two agents stay in order."""

    def adopt(self, fence: Fence) -> None:
        """Drop queued frames of lower fences. Failed peers may be dialed again."""

    def introduce(self, *, fence: Fence, key: bytes, peers: Mapping[AgentId, Peer]) -> None:
        """Set the plan's peers and this agent's own key."""

    def send(self, peer: AgentId, frame: Frame) -> None:
        """Queue a frame. Its tensors must not change until it has been sent."""

    def poll(self) -> list[Arrived | Broken]:
        """Events since the last call. An exception if the transport itself has failed."""

    def fileno(self) -> int:
        """Readable while :meth:`poll` has events."""

    @property
    def sent(self) -> tuple[Sent, ...]:
        """What has been sent until now, by zone. Any thread may ask."""

    @property
    def is_idle(self) -> bool:
        """Whether all frames have been sent or dropped."""

    def close(self) -> None:
        """Close all connections."""
