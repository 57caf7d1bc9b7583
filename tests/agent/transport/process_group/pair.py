"""Two agents in this process whose transports use process groups."""

from __future__ import annotations

import selectors
import socket
import time

import torch

from bamboo_agent.device.buffer_pool import Buffer
from bamboo_agent.payloads.frames import Frame
from bamboo_agent.transport.base import Arrived, Broken
from bamboo_agent.transport.process_group.maker import Limits, Maker
from bamboo_agent.transport.process_group.sender import State
from bamboo_agent.transport.tcp import TcpTransport
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item
from bamboo_core.protocol.messages import Peer

A, B = AgentId("a"), AgentId("b")
FENCE = Fence(0, 1, 1)
DEADLINE_S = 20.0
LARGE = 1 << 18
"""Numbers in a tensor that goes by a group, in one piece."""


class End:
    """One agent's transport. ``events``: all that it has reported."""

    def __init__(self, agent: AgentId, **options) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        host, port = listening.getsockname()
        self.agent, self.key = agent, agent.encode()
        self.peer = Peer(agent, f"{host}:{port}", "", self.key)
        options = {"backend": "gloo", "device": torch.device("cpu"), **options}
        self.maker = None if options["backend"] == "tcp" else Maker(**options)
        self.transport = TcpTransport(
            job="job", agent=agent, listening=listening, groups=self.maker
        )
        self.events: list[Arrived | Broken] = []

    def join(self, *peers: Peer, fence: Fence = FENCE) -> None:
        self.transport.adopt(fence)
        self.transport.introduce(fence=fence, key=self.key, peers={p.agent: p for p in peers})

    def wait(self, condition) -> None:
        """Poll until the condition holds. AssertionError at the deadline."""
        deadline = time.monotonic() + DEADLINE_S
        with selectors.DefaultSelector() as selector:
            selector.register(self.transport, selectors.EVENT_READ)
            while not condition():
                assert time.monotonic() < deadline, self.events[-5:]
                selector.select(0.01)
                self.events += self.transport.poll()

    def frames(self, count: int) -> list[Frame]:
        """The first frames, once so many have come; no event of another kind may have."""
        self.wait(lambda: len(self.events) >= count)
        assert all(isinstance(event, Arrived) for event in self.events), self.events
        return [event.frame for event in self.events]

    def sender(self, peer: AgentId):
        """The sending end of the link's groups."""
        return self.transport._loop._outgoing[peer].group

    def reach(self, state: State, peer: AgentId) -> None:
        self.wait(lambda: peer in self.transport._loop._outgoing)
        self.wait(lambda: self.sender(peer).state is state)


def frame(step: int, index: int = 0, *, size: int = LARGE, fence: Fence = FENCE, bulk=False):
    """A frame of ``size`` numbers that all say which one it is."""
    item = Item.sum(step, (1, 2), (index, index + 1)) if bulk else Item.out(step, 1, index)
    buffer = Buffer(torch.full((size,), float(step * 1000 + index)))
    made = Frame(item, fence, tensors=(buffer.tensor,), owner=buffer)
    made.lend()
    return made


def check(found: Frame) -> None:
    """AssertionError unless the frame has the numbers that :func:`frame` gave it."""
    item, (tensor,) = found.item, found.tensors
    assert tensor is not None
    assert torch.equal(tensor, torch.full_like(tensor, float(item.step * 1000 + item.index)))


def switch(a: End, b: End, *, fence: Fence = FENCE, step: int = 0) -> None:
    """Let frames from a to b go by a group, from ``step`` + 1 on."""
    already = len(b.events)
    a.transport.send(b.agent, frame(step, 900, fence=fence))
    b.frames(already + 1)
    a.reach(State.READY, b.agent)


def pair(**options) -> tuple[End, End]:
    a, b = End(A, **options), End(B, **options)
    a.join(b.peer)
    b.join(a.peer)
    return a, b


def limits(**changed) -> Limits:
    return Limits(**changed)
