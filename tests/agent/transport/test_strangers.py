"""What a stranger at the data port can learn or break: nothing."""

from __future__ import annotations

import json
import selectors
import socket
import struct
import time

import pytest
import torch

from bamboo_agent import strangers
from bamboo_agent.payloads.frames import Frame
from bamboo_agent.transport import handshake, tcp
from bamboo_agent.transport.base import Arrived, Broken
from bamboo_agent.transport.handshake import Greeting, encode_line, proof
from bamboo_agent.transport.wire import SEGMENT
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item
from bamboo_core.protocol.messages import Peer

A, B = AgentId("a"), AgentId("b")
FENCE = Fence(0, 1, 1)
JOB = "8a1d8a6e-job-uid"
DEADLINE_S = 10.0


class Port:
    """Agent b with a data port, and agent a that may dial it."""

    def __init__(self) -> None:
        self.refused = 0
        self.b, self.address = self._make(B, b"key of b")
        self.a, _ = self._make(A, b"key of a")

    def _make(self, agent, key):
        listening = socket.create_server(("127.0.0.1", 0))
        address = listening.getsockname()
        transport = tcp.TcpTransport(
            job=JOB, agent=agent, listening=listening, on_refused=self._count
        )
        transport.adopt(FENCE)
        host, port = address
        self.peer = self.__dict__.get("peer") or Peer(agent, f"{host}:{port}", "", key)
        transport.introduce(fence=FENCE, key=key, peers={B: self.peer})
        return transport, address

    def _count(self):
        self.refused += 1

    def send(self, index):
        frame = Frame(Item.out(0, 1, index), FENCE, tensors=(torch.full((4,), float(index)),))
        self.a.send(B, frame)

    def wait(self, transport=None):
        """The next event of b."""
        transport = transport or self.b
        with selectors.DefaultSelector() as selector:
            selector.register(transport, selectors.EVENT_READ)
            assert selector.select(DEADLINE_S)
            (event,) = transport.poll()
        return event

    def still_works(self, index=1):
        """Whether b takes a frame from a."""
        self.send(index)
        event = self.wait()
        return isinstance(event, Arrived) and event.frame.item.index == index

    def dial(self):
        sock = socket.create_connection(self.address)
        sock.settimeout(DEADLINE_S)
        return sock

    def enter(self):
        """A raw connection that has proved the key."""
        sock = self.dial()
        greeting = Greeting(A, B, FENCE, handshake.new_nonce())
        sock.sendall(greeting.line())
        nonce = json.loads(sock.recv(4096))["nonce"]
        mine = proof(b"key of b", "dial", JOB, greeting, nonce)
        sock.sendall(encode_line({"proof": mine}))
        assert b"welcome" in sock.recv(4096)
        return sock


@pytest.fixture
def port():
    made = Port()
    yield made
    for transport in (made.a, made.b):
        transport.close()


def everything(sock):
    """All bytes until the other end closes."""
    data = b""
    try:
        while piece := sock.recv(4096):
            data += piece
    except ConnectionResetError:
        pass
    return data


def greeting(**changes):
    values = {"bamboo": handshake.VERSION, "from": A, "to": B, "fence": [0, 1, 1]}
    values["nonce"] = "0" * 32
    return json.dumps(values | changes).encode() + b"\n"


HOSTILE = {
    "nested lists": b"[" * 4000 + b"\n",
    "nested objects": b'{"a":' * 800 + b"\n",
    "an endless number": greeting(fence=[float("inf"), 1, 1]),
    "no number": greeting(fence=[float("nan"), 1, 1]),
    "a huge number": b'{"bamboo": ' + b"9" * 4000 + b"}\n",
    "a fence with too many parts": greeting(fence=[0] * 9),
    "a fence of bools": greeting(fence=[True, True, True]),
    "a lone surrogate": greeting(nonce="\ud800"),
    "a name that is a list": greeting(to=["b"]),
    "bytes": bytes(range(128, 255)) + b"\n",
    "another agent": greeting(to="c"),
}


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE)
def test_no_line_ends_more_than_its_connection(port, line):
    with port.dial() as sock:
        sock.sendall(line)
        assert b"refused" in everything(sock)
    assert port.refused == 1
    assert port.still_works()


def test_a_lone_surrogate_as_proof(port):
    with port.dial() as sock:
        sock.sendall(greeting())
        sock.recv(4096)
        sock.sendall(b'{"proof": "\\ud800"}\n')
        assert b"refused" in everything(sock)
    assert port.still_works()


@pytest.mark.parametrize("line", [greeting(), greeting(to="c"), greeting(job="x"), b"[]\n"])
def test_no_answer_names_the_job(port, line):
    with port.dial() as sock:
        sock.sendall(line + b'{"proof": "00"}\n')
        said = everything(sock)
    assert said
    assert JOB.encode() not in said


def test_a_dialer_does_not_name_the_job_either(port):
    """It may have reached a stranger who has got the address."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        host, number = stranger.getsockname()
        later = Fence(0, 1, 2)
        port.a.adopt(later)
        port.a.introduce(
            fence=later, key=b"key of a", peers={B: Peer(B, f"{host}:{number}", "", b"key")}
        )
        port.a.send(B, Frame(Item.out(0, 1, 1), later, tensors=(torch.zeros(4),)))
        sock, _ = stranger.accept()
        with sock:
            assert JOB.encode() not in sock.recv(4096)
            sock.sendall(b"[" * 4000 + b"\n")
            assert isinstance(port.wait(port.a), Broken)


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 5000,
        b'{"i": "out[1]", "f": [1e999, 0, 0], "t": []}',
        b'{"i": "out[1]", "f": [0, 1, 1], "t": [["float32", [1e999]]]}',
        b'{"i": "out[1]", "f": [0, 1, 1], "t": [["float32", [' + b"9" * 40 + b"]]]}",
        b'{"i": "out[1]", "f": [0, 1, 1], "t": [["__name__", [1]]]}',
        b'{"i": "out[1]", "f": [0, 1, 1], "t": [["float32", [4611686018427387904]]]}',
        b'{"i": "out[1]", "f": [0, 1, 1], "c": {"step": 1}, "m": [], "t": 3}',
        b'{"i": {}, "f": "abc", "t": {"a": 1}}',
    ],
)
def test_a_peers_header_ends_its_connection_only(port, header):
    with port.enter() as sock:
        data = struct.pack(">I", len(header)) + header
        sock.sendall(SEGMENT.pack(0, len(data)) + data)
        event = port.wait()
    assert isinstance(event, Broken)
    assert event.peer == A
    later = Fence(0, 1, 2)
    for transport, key in ((port.a, b"key of a"), (port.b, b"key of b")):
        transport.adopt(later)
        transport.introduce(fence=later, key=key, peers={B: port.peer})
    port.a.send(B, Frame(Item.out(0, 1, 1), later, tensors=(torch.zeros(4),)))
    assert isinstance(port.wait(), Arrived)


def test_a_header_of_16_mb_is_not_waited_for(port):
    with port.enter() as sock:
        sock.sendall(SEGMENT.pack(0, 1 << 24) + struct.pack(">I", (1 << 24) - 4))
        event = port.wait()
    assert isinstance(event, Broken)
    assert "header" in event.why


def test_idle_connections_keep_no_peer_out(port):
    """The oldest of them ends when too many wait; a peer proves itself within milliseconds."""
    idle = [port.dial() for _ in range(3 * strangers.MOST_OF_AN_ADDRESS)]
    try:
        assert port.still_works()
        deadline = time.monotonic() + DEADLINE_S
        while len(port.b._loop._strangers) > strangers.MOST_OF_AN_ADDRESS:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    finally:
        for sock in idle:
            sock.close()


def test_a_flood_of_greetings_that_wait_for_a_plan_keeps_no_peer_out(port):
    flood = [port.dial() for _ in range(strangers.MOST_OF_AN_ADDRESS + 10)]
    try:
        for sock in flood:
            sock.sendall(greeting(fence=[2**40, 2**40, 2**40]))
        assert port.still_works()
    finally:
        for sock in flood:
            sock.close()


def test_bytes_after_a_greeting_that_waits_wake_nobody(port, monkeypatch):
    calls = []
    real = tcp.Incoming.on_readable
    monkeypatch.setattr(tcp.Incoming, "on_readable", lambda link: calls.append(1) or real(link))
    with port.dial() as sock:
        sock.sendall(greeting(fence=[0, 9, 9]) + b"more")
        sock.shutdown(socket.SHUT_WR)
        assert port.still_works()
        for index in range(20):
            assert port.still_works(index)
    assert len(calls) < 200


class Link:
    """Stands for a connection."""


def test_who_has_to_go_when_too_many_wait():
    waiting = strangers.Strangers()
    many = [Link() for _ in range(strangers.MOST_OF_AN_ADDRESS)]
    for at, link in enumerate(many):
        assert waiting.add(link, "10.0.0.1", until=float(at)) is None
    assert waiting.add(Link(), "10.0.0.1", until=100.0) is many[0]
    assert waiting.add(Link(), "10.0.0.2", until=101.0) is None
    assert len(waiting) == strangers.MOST_OF_AN_ADDRESS + 1


def test_an_address_with_few_connections_outlasts_those_with_many():
    waiting = strangers.Strangers()
    first = Link()
    assert waiting.add(first, "10.0.0.9", until=0.0) is None
    gone = [
        waiting.add(Link(), f"10.0.1.{at % 8}", until=1.0 + at) for at in range(2 * strangers.MOST)
    ]
    assert first not in gone
    assert len(waiting) == strangers.MOST


def test_strangers_are_over_in_order_of_their_deadlines():
    waiting, links = strangers.Strangers(), [Link(), Link()]
    for at, link in enumerate(links):
        waiting.add(link, "10.0.0.1", until=float(at))
    assert waiting.next_deadline == 0.0
    assert waiting.expired(0.5) == [links[0]]
    waiting.discard(links[0])
    waiting.discard(links[0])
    assert waiting.next_deadline == 1.0
    waiting.discard(links[1])
    assert waiting.next_deadline is None
