"""Files and frames of a worker move the counter by which its supervisor sees that they do."""

from __future__ import annotations

import selectors
import socket
import time
from dataclasses import replace

import pytest
import torch
from tests.agent.supervisor.fake_operator import WELCOME

from bamboo_agent.ipc.pipe import Pipe
from bamboo_agent.ipc.shared_progress import SharedProgress
from bamboo_agent.payloads.frames import Frame
from bamboo_agent.transport.stream import make_identity
from bamboo_agent.transport.tcp import TcpTransport
from bamboo_agent.worker.main import _Process
from bamboo_core.api.spec import to_json
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item
from bamboo_core.protocol.messages import Peer
from bamboo_sim.workers.jobs import tiny_gpt

A, B = AgentId("a"), AgentId("b")
FENCE = Fence(0, 1, 1)
DEADLINE_S = 20.0


class Set:
    """A worker's process that has built model and data, in this process."""

    def __init__(self, uri: str = "") -> None:
        self.shared = SharedProgress.create()
        self._ours, self._theirs = socket.socketpair()
        self.listening = socket.create_server(("127.0.0.1", 0))
        self._process = _Process(A, Pipe(self._ours), self.listening, self.shared)
        self._process._set_up(replace(WELCOME, spec_json=to_json(tiny_gpt(uri=uri))))
        assert self._process._worker is not None
        self.worker = self._process._worker

    def close(self) -> None:
        self.worker.close()
        self._process._selector.close()
        self._ours.close()
        self._theirs.close()
        self.shared.close()


def peer(agent: AgentId, listening: socket.socket) -> Peer:
    host, port = listening.getsockname()
    return Peer(agent, f"{host}:{port}", "", agent.encode())


def test_files_are_traffic(tmp_path):
    """The worker tries the folder before it is ready. No other agent is here."""
    made = Set(f"file://{tmp_path}")
    assert made.shared.traffic > 0
    made.close()


@pytest.fixture
def ends():
    made, listening = Set(), socket.create_server(("127.0.0.1", 0))
    peers = {A: peer(A, made.listening), B: peer(B, listening)}
    other = TcpTransport(
        job=WELCOME.job_uid, agent=B, listening=listening, identity=make_identity()
    )
    for transport, agent in ((made.worker._transport, A), (other, B)):
        transport.adopt(FENCE)
        transport.introduce(fence=FENCE, key=agent.encode(), peers=peers)
    yield made, other
    other.close()
    made.close()


def test_frames_are_traffic(ends):
    made, other = ends
    assert made.shared.traffic == 0
    other.send(A, Frame(Item.out(0, 1, 0), FENCE, tensors=(torch.ones(4),)))
    deadline = time.monotonic() + DEADLINE_S
    transport = made.worker._transport
    with selectors.DefaultSelector() as selector:
        selector.register(transport, selectors.EVENT_READ)
        while not transport.poll():
            assert selector.select(deadline - time.monotonic())
    assert made.shared.traffic > 0
