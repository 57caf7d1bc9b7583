"""Connects agents in one process through queues. For tests and single-process runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from bamboo_agent.ipc.mailbox import Mailbox
from bamboo_agent.payloads.frames import Frame
from bamboo_agent.transport.base import Arrived, Broken
from bamboo_agent.transport.traffic import Traffic
from bamboo_core.api.progress import Goodput, Sent
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import Peer


class MemoryHub:
    """Connects the agents of one process by name."""

    def __init__(self) -> None:
        self.boxes: dict[AgentId, Mailbox[Arrived | Broken]] = {}

    def join(self, agent: AgentId) -> MemoryTransport:
        """The transport of an agent."""
        box: Mailbox[Arrived | Broken] = Mailbox()
        self.boxes[agent] = box
        return MemoryTransport(self, agent, box)


class MemoryTransport:
    """See :class:`bamboo_agent.transport.base.Transport`. Tensors are copied."""

    def __init__(self, hub: MemoryHub, agent: AgentId, box: Mailbox[Arrived | Broken]) -> None:
        self._hub, self._agent, self._box = hub, agent, box
        self._fence = Fence()
        self._broken: set[AgentId] = set()
        self._zones: dict[AgentId, str] = {}
        self._traffic = Traffic()

    def adopt(self, fence: Fence) -> None:
        """Broken peers may be tried again."""
        self._fence = fence
        self._broken.clear()

    def introduce(self, *, fence: Fence, key: bytes, peers: Mapping[AgentId, Peer]) -> None:
        """Everybody in the process is known; only their zones are not."""
        self._zones.update({agent: peer.zone for agent, peer in peers.items()})

    def send(self, peer: AgentId, frame: Frame) -> None:
        """Copy the frame into the peer's queue."""
        frame.release()
        box = self._hub.boxes.get(peer)
        if box is None:
            if peer not in self._broken:
                self._broken.add(peer)
                self._box.put(Broken(peer, self._fence, "no such agent in this process"))
            return
        self._traffic.add(self._zones.get(peer, ""), frame.item.kind, frame.num_bytes)
        tensors = tuple(None if t is None else t.clone() for t in frame.tensors)
        copy = replace(frame, tensors=tensors, owner=None)
        box.put(Arrived(self._agent, copy, time.monotonic()))

    def poll(self) -> list[Arrived | Broken]:
        """Frames that have come since the last call."""
        return self._box.take_all()

    def fileno(self) -> int:
        """Readable while something has come."""
        return self._box.fileno()

    @property
    def sent(self) -> tuple[Sent, ...]:
        """The bytes sent until now, by zone."""
        return self._traffic.sent()

    @property
    def goodput(self) -> Goodput | None:
        """There is no network."""
        return None

    @property
    def is_idle(self) -> bool:
        """Frames are with their receiver at once."""
        return True

    def close(self) -> None:
        """Leave the hub."""
        self._hub.boxes.pop(self._agent, None)
        self._box.close()
