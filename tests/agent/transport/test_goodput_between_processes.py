"""Two agents in two processes, and a link that the kernel lets pass so many bytes per second."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from bamboo_agent.payloads.frames import Frame
from bamboo_agent.transport import links, tcp
from bamboo_agent.transport.stream import make_identity
from bamboo_core.api.progress import Goodput
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item
from bamboo_core.protocol.messages import Peer

pytestmark = pytest.mark.timeout(120)

RECEIVER = Path(__file__).with_name("late_receiver.py")
A, B, FENCE = AgentId("a"), AgentId("b"), Fence(0, 1, 1)
RATE = 80_000_000  # bytes per second
FRAME_BYTES, FRAMES, WINDOW_BYTES = 16 << 20, 14, 32 << 20
SO_MAX_PACING_RATE = 47  # the kernel paces what TCP sends; Python has no name for it


@contextmanager
def receiver(address: str, pause_s: float, way: str) -> Iterator[Any]:
    arguments = [address, "key of a", str(FRAMES), str(pause_s), str(WINDOW_BYTES), way]
    with subprocess.Popen(
        [sys.executable, "-P", str(RECEIVER), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def transfer(
    monkeypatch: pytest.MonkeyPatch, pause_s: float, way: str
) -> tuple[Goodput | None, dict[str, Any]]:
    """All frames go to the other process. What both ends have measured."""
    connecting = links.connecting

    def paced(address: str) -> socket.socket:
        sock = connecting(address)
        sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, RATE)
        return sock

    monkeypatch.setattr(tcp, "connecting", paced)
    monkeypatch.setattr(links, "WINDOW_BYTES", WINDOW_BYTES)
    listening = socket.create_server(("127.0.0.1", 0))
    own = f"127.0.0.1:{listening.getsockname()[1]}"
    identity = make_identity() if way == "encrypted" else None
    transport = tcp.TcpTransport(job="job", agent=A, listening=listening, identity=identity)
    tensor = torch.zeros(FRAME_BYTES, dtype=torch.uint8)
    with receiver(own, pause_s, way) as process:
        peer = Peer(B, process.stdout.readline().strip(), "", b"key of b")
        transport.adopt(FENCE)
        transport.introduce(fence=FENCE, key=b"key of a", peers={B: peer})
        for index in range(FRAMES):
            transport.send(B, Frame(Item.out(0, 1, index), FENCE, tensors=(tensor,)))
        told = json.loads(process.stdout.readline())
        found = transport.goodput
        transport.close()
    return found, told


@pytest.mark.parametrize("way", ["plain", "encrypted"])
def test_both_ends_measure_the_rate_of_a_slow_link(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    found, told = transfer(monkeypatch, 0.0, way)
    assert found is not None
    assert found.sending == pytest.approx(RATE, rel=0.1)
    assert told["receiving"] == pytest.approx(RATE, rel=0.1)
    assert (found.receiving, told["sending"]) == (0.0, 0.0)
    assert [x.peer for x in found.slowest_to] == [B]
    assert found.slowest_to[0].rate == pytest.approx(RATE, rel=0.1)
    assert told["slowest_from"][0]["rate"] == pytest.approx(RATE, rel=0.1)


def test_a_receiver_that_takes_frames_late_does_not_make_the_link_look_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A frame needs 0.21 s on the link. The receiver takes one each 0.6 s, so the sender has no
    leave to send for two thirds of the time."""
    found, told = transfer(monkeypatch, 0.6, "plain")
    assert found is not None
    assert found.sending == pytest.approx(RATE, rel=0.1)
    assert told["receiving"] == pytest.approx(RATE, rel=0.1)
