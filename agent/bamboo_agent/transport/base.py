"""The transport interface: it takes frames, and has events for the worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from bamboo_agent.payloads.frames import Frame
from bamboo_core.api.progress import Goodput, Sent
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import Peer


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
        """The bytes sent until now, by zone. Any thread may ask."""

    @property
    def goodput(self) -> Goodput | None:
        """How fast the network has been lately; None: not measured. Any thread may ask."""

    @property
    def is_idle(self) -> bool:
        """Whether all frames have been sent or dropped."""

    def close(self) -> None:
        """Close all connections."""
