"""The tcp transport between two agents of one process: handshake, lanes, fences, failures."""

from __future__ import annotations

import contextlib
import json
import select
import selectors
import socket
import threading
import time
from dataclasses import replace

import pytest
import torch

from bamboo_agent.device.buffer_pool import Buffer
from bamboo_agent.payloads.frames import Frame
from bamboo_agent.transport import tcp
from bamboo_agent.transport.base import Arrived, Broken
from bamboo_agent.transport.handshake import Greeting, encode_line, proof
from bamboo_agent.transport.stream import make_identity
from bamboo_agent.transport.wire import SEGMENT
from bamboo_core.api.progress import Sent
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item, Kind
from bamboo_core.protocol.messages import Peer

A, B = AgentId("a"), AgentId("b")
FENCE = Fence(0, 1, 1)
DEADLINE_S = 20.0


class End:
    """One agent's transport."""

    def __init__(self, agent, *, key, job="job", identity=None):
        listening = socket.create_server(("127.0.0.1", 0))
        host, port = listening.getsockname()
        self.agent, self.key, self.address = agent, key, (host, port)
        self.peer = Peer(agent, f"{host}:{port}", "", key)
        self.traffic = 0
        self.table: dict[int, tuple[AgentId, int, bool]] = {}
        self.transport = tcp.TcpTransport(
            job=job,
            agent=agent,
            listening=listening,
            on_traffic=self.count,
            on_arrival=self.note,
            identity=identity,
        )

    def count(self):
        self.traffic += 1

    def note(self, place, *found):
        self.table[place] = found

    def join(self, *peers, fence=FENCE):
        self.transport.adopt(fence)
        self.transport.introduce(fence=fence, key=self.key, peers={p.agent: p for p in peers})

    def wait(self, count=1):
        """The next events. AssertionError at the deadline."""
        events, deadline = [], time.monotonic() + DEADLINE_S
        with selectors.DefaultSelector() as selector:
            selector.register(self.transport, selectors.EVENT_READ)
            while len(events) < count:
                assert selector.select(deadline - time.monotonic()), events
                events += self.transport.poll()
        return events


@pytest.fixture(params=["plain", "encrypted"])
def ends(request):
    yield from pair(is_encrypted=request.param == "encrypted")


@pytest.fixture
def plain_ends():
    yield from pair(is_encrypted=False)


@pytest.fixture
def encrypted_ends():
    yield from pair(is_encrypted=True)


def pair(*, is_encrypted):
    keys = {A: b"key of a", B: b"key of b"}
    made = [End(x, key=keys[x], identity=make_identity() if is_encrypted else None) for x in keys]
    yield made
    for end in made:
        end.transport.close()


def frame(kind=Kind.OUT, *, index=0, size=4, fence=FENCE, owner=None):
    item = Item.sum(0, (1, 2), (index, index + 1)) if kind is Kind.SUM else Item.out(0, 1, index)
    tensor = torch.full((size,), float(index)) if owner is None else owner.tensor
    return Frame(item, fence, tensors=(tensor,), owner=owner)


def introduce(a, b):
    a.join(b.peer)
    b.join(a.peer)


def test_a_frame_is_received_into_memory_that_an_earlier_one_has_left(ends):
    a, b = ends
    introduce(a, b)
    kept, places = [], []
    for index in range(6):
        a.transport.send(B, frame(index=index, size=1 << 18))
        (event,) = b.wait()
        (tensor,) = event.frame.tensors
        places.append(tensor.data_ptr())
        if index < 3:
            kept.append(tensor)
        del event, tensor
    assert len(set(places[:4])) == 4
    assert places[4:] == [places[3]] * 2
    for index, tensor in enumerate(kept):
        assert torch.equal(tensor, torch.full_like(tensor, float(index)))


def test_what_is_sent_is_counted_by_zone_and_lane(ends):
    a, b = ends
    introduce(a, b)
    a.join(replace(b.peer, zone="zone-b"), fence=Fence(0, 1, 2))
    b.join(a.peer, fence=Fence(0, 1, 2))
    assert a.transport.sent == ()
    for kind, size in ((Kind.OUT, 4), (Kind.SUM, 8), (Kind.OUT, 1)):
        a.transport.send(B, frame(kind, size=size, fence=Fence(0, 1, 2)))
    a.transport.send(B, frame())  # of a fence that is over
    b.wait(3)
    assert a.transport.sent == (Sent("zone-b", boundary_bytes=20, sum_bytes=32),)
    assert b.transport.sent == ()


def test_small_frames_go_to_the_kernel_together_and_end_once_it_has_them(ends, monkeypatch):
    a, b = ends
    introduce(a, b)
    a.transport.send(B, frame(index=1000))
    b.wait()
    calls, real = [], tcp.Outgoing._send_segment

    def count(link):
        calls.append(sum(map(len, link._segment)))
        real(link)

    monkeypatch.setattr(tcp.Outgoing, "_send_segment", count)
    owners = [Buffer(torch.full((4,), float(index))) for index in range(100)]
    made = [frame(index=index, owner=owner) for index, owner in enumerate(owners)]
    for each in made:
        each.lend()
    link = a.transport._loop._outgoing[B]

    def queue_all():
        link.queues[made[0].lane].extend(made)
        link.on_writable()

    a.transport._commands.put(queue_all)
    events = b.wait(100)
    assert [event.frame.item.index for event in events] == list(range(100))
    assert len(calls) == 1
    a.transport.close()  # the thread has ended
    assert [owner.lent for owner in owners] == [0] * 100


def test_a_large_frame_is_traffic_long_before_it_is_complete(ends):
    """The worker, which polls for whole frames, cannot tell a slow transfer from none."""
    a, b = ends
    introduce(a, b)
    a.transport.send(B, frame(index=1))
    b.wait()
    before = b.traffic
    a.transport.send(B, frame(Kind.SUM, size=16 << 20))
    (event,) = b.wait()
    assert event.frame.num_bytes == 64 << 20
    assert b.traffic - before > 3
    assert a.traffic > 3


def test_what_comes_from_each_peer_is_counted(ends):
    a, b = ends
    introduce(a, b)
    a.transport.send(B, frame(index=1))
    b.wait()
    (link,) = b.transport._loop._incoming
    before = link.received
    wait_until(lambda: b.table[0] == (A, before, False))
    a.transport.send(B, frame(index=2, size=1 << 20))
    b.wait()
    after = link.received
    wait_until(lambda: b.table[0] == (A, after, False))
    assert 4 << 20 < after - before < 5 << 20
    a.transport.close()
    wait_until(lambda: b.table[0] == ("", 0, False))


def test_a_part_of_an_encrypted_record_is_a_part_of_a_frame():
    """One byte a second: no byte of a frame can be read before its record is whole."""
    one, other = socket.socketpair()
    with one, other:
        for sock in (one, other):
            sock.setblocking(False)
        sender, receiver = make_identity().dial(one), make_identity().accept(other)
        place = memoryview(bytearray(4096))
        for _ in range(4):
            for end in (sender, receiver):
                with contextlib.suppress(BlockingIOError):
                    end.send([memoryview(b"x" * 9)]) if end is sender else end.receive(place)
                with contextlib.suppress(BlockingIOError):
                    end.receive(place)
        before = receiver.received
        assert not receiver.is_partial
        raw, real = bytearray(), sender._socket
        sender._socket = type("Raw", (), {"send": lambda _, data: raw.extend(data) or len(data)})()
        sender.send([memoryview(b"y" * 100)])
        sender._socket = real
        for n, byte in enumerate(raw, start=1):
            real.send(bytes([byte]))
            with contextlib.suppress(BlockingIOError):
                assert receiver.receive(place) == 100
            assert receiver.received == before + n
            assert receiver.is_partial is (n < len(raw))


def test_frames_go_both_ways_in_order(ends):
    a, b = ends
    begun = time.monotonic()
    introduce(a, b)
    for i in range(50):
        a.transport.send(B, frame(index=i))
    b.transport.send(A, frame(index=7))
    assert [event.frame.item.index for event in b.wait(50)] == list(range(50))
    (answer,) = a.wait()
    assert isinstance(answer, Arrived)
    assert answer.peer == B
    assert begun < answer.at < time.monotonic()
    assert torch.equal(answer.frame.tensors[0], torch.full((4,), 7.0))


def test_boundary_frames_overtake_bulk_ones(ends, monkeypatch):
    a, b = ends
    buffer = Buffer(torch.arange(8.0 * (1 << 20)))
    a.join(b.peer)
    for bulk in (frame(Kind.SUM, index=1, owner=buffer), frame(Kind.SUM, index=2, owner=buffer)):
        bulk.lend()
        a.transport.send(B, bulk)
    a.transport.send(B, frame(index=3))
    b.join(a.peer)
    events = b.wait(3)
    assert [event.frame.item.index for event in events][-1] == 2
    assert torch.equal(events[-1].frame.tensors[0], buffer.tensor)
    wait_until(lambda: buffer.lent == 0)


def wait_until(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_credits_hold_a_sender_back_until_the_receiver_takes(ends, monkeypatch):
    monkeypatch.setattr("bamboo_agent.transport.links.WINDOW_BYTES", 1 << 16)
    a, b = ends
    introduce(a, b)
    for i in range(64):
        a.transport.send(B, frame(index=i, size=1 << 12))
    assert [event.frame.item.index for event in b.wait(64)] == list(range(64))


def test_a_greeting_waits_for_the_plan_that_brings_the_key(ends):
    a, b = ends
    a.join(b.peer)
    a.transport.send(B, frame(index=5))
    assert not b.transport.poll()
    b.join()
    assert b.wait()[0].frame.item.index == 5


def test_a_wrong_key_is_refused_and_suspected_once(ends):
    a, b = ends
    a.join(Peer(B, b.peer.data_address, "", b"another key"))
    b.join(a.peer)
    a.transport.send(B, frame())
    (event,) = a.wait()
    assert isinstance(event, Broken)
    assert event.peer == B
    assert "key" in event.why
    a.transport.send(B, frame())
    assert not a.transport.poll()
    assert not b.transport.poll()


def test_a_stranger_without_the_key_gets_nothing(plain_ends):
    _, b = plain_ends
    b.join()
    with socket.create_connection(b.address) as sock:
        greeting = Greeting(A, B, FENCE, "nonce")
        sock.sendall(greeting.line())
        assert b"proof" in sock.recv(4096)
        sock.sendall(encode_line({"proof": proof(b"guess", "dial", "job", greeting, "x")}))
        assert b"refused" in sock.recv(4096)
        assert sock.recv(4096) == b""
    assert not b.transport.poll()


@pytest.mark.parametrize(
    ("greeting", "answer"),
    [
        (b"hello\n", b"protocol"),
        (b"[]\n", b"protocol"),
        (b'{"bamboo": 1}\n', b"version 1"),
        (b'{"bamboo": 2}\n', b"malformed"),
        (Greeting(B, A, FENCE, "x").line(), b"another agent has this address"),
        (b"x" * 9000, b"protocol"),
    ],
)
def test_a_wrong_greeting_is_refused(plain_ends, greeting, answer):
    _, b = plain_ends
    b.join()
    with socket.create_connection(b.address) as sock:
        sock.sendall(greeting)
        assert answer in sock.recv(4096)


def test_a_handshake_has_a_deadline(monkeypatch):
    monkeypatch.setattr(tcp, "HANDSHAKE_S", 0.05)
    end = End(B, key=b"key")
    with socket.create_connection(end.address) as sock:
        assert b"too long" in sock.recv(4096)
    end.transport.close()


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"])
def test_a_handshake_of_tls_has_a_deadline(monkeypatch, said):
    monkeypatch.setattr(tcp, "HANDSHAKE_S", 0.05)
    end = End(B, key=b"key", identity=make_identity())
    with socket.create_connection(end.address) as sock:
        sock.sendall(said)
        sock.settimeout(DEADLINE_S)
        assert sock.recv(4096) == b""
    end.transport.close()


def enter(end):
    """A raw connection that has proved the key, as agent a."""
    sock = socket.create_connection(end.address)
    greeting = Greeting(A, B, FENCE, "nonce")
    sock.sendall(greeting.line())
    nonce = json.loads(sock.recv(4096))["nonce"]
    sock.sendall(encode_line({"proof": proof(end.key, "dial", "job", greeting, nonce)}))
    assert b"welcome" in sock.recv(4096)
    return sock


def test_a_peer_that_dies_in_mid_message_is_suspected_and_its_frame_forgotten(plain_ends):
    _, b = plain_ends
    b.join()
    sock = enter(b)
    sock.sendall(SEGMENT.pack(0, 1000) + b"\x00\x00\x00\x10{")
    sock.close()
    (event,) = b.wait()
    assert isinstance(event, Broken)
    assert (event.peer, event.fence) == (A, FENCE)


@pytest.mark.parametrize("junk", [SEGMENT.pack(9, 4), SEGMENT.pack(0, 8) + b"\x00\x00\x00\x04null"])
def test_a_peer_that_sends_junk_is_suspected(plain_ends, junk):
    _, b = plain_ends
    b.join()
    with enter(b) as sock:
        sock.sendall(junk)
        (event,) = b.wait()
    assert isinstance(event, Broken)


def test_a_peer_that_says_bye_is_not_suspected(ends):
    a, b = ends
    introduce(a, b)
    a.transport.send(B, frame(index=1))
    b.wait()
    wait_until(lambda: a.transport.is_idle)
    a.transport.close()
    b.transport.send(A, frame(index=2))  # this way it is seen that a has gone
    (event,) = b.wait()
    assert isinstance(event, Broken)
    assert "refused" in event.why.lower() or "reset" in event.why.lower()


def test_nobody_at_the_address_is_a_suspicion_and_the_next_fence_tries_again(ends):
    a, b = ends
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = "{}:{}".format(*gone.getsockname())
    a.join(Peer(B, address, "", b.key))
    a.transport.send(B, frame())
    assert isinstance(a.wait()[0], Broken)
    later = Fence(0, 1, 2)
    a.join(b.peer, fence=later)
    b.join(a.peer, fence=later)
    a.transport.send(B, frame(index=3, fence=later))
    assert b.wait()[0].frame.item.index == 3


def test_a_broken_peer_is_not_dialed_again_within_its_fence(ends):
    """Frames in between are lost for certain, so all that follow must be, too."""
    a, b = ends
    introduce(a, b)
    a.transport.send(B, frame(index=1))
    b.wait()
    loop = b.transport._loop
    b.transport._commands.put(lambda: [loop._forget(link) for link in set(loop._incoming)])
    assert isinstance(a.wait()[0], Broken)
    a.transport.send(B, frame(index=2))
    wait_until(lambda: a.transport.is_idle)
    later = Fence(0, 1, 2)
    for one, other in ((a, b), (b, a)):
        one.join(other.peer, fence=later)
    a.transport.send(B, frame(index=3, fence=later))
    assert b.wait()[0].frame.item.index == 3


def test_a_peer_without_an_address_is_a_suspicion(ends):
    a, _ = ends
    a.join()
    a.transport.send(B, frame())
    assert "no address" in a.wait()[0].why


def test_queued_frames_of_a_lower_fence_are_forgotten(ends):
    a, b = ends
    buffer = Buffer(torch.zeros(4))
    a.join(b.peer)
    old = frame(Kind.SUM, index=1, owner=buffer)
    old.lend()
    a.transport.send(B, old)
    later = Fence(0, 1, 2)
    a.transport.adopt(later)
    a.transport.send(B, frame(index=2, fence=later))
    a.transport.send(B, frame(index=3, fence=FENCE))
    b.join(a.peer, fence=later)
    assert [e.frame.item.index for e in b.wait()] == [2]
    wait_until(lambda: buffer.lent == 0)


def test_the_end_of_the_transports_thread_is_an_error(ends):
    a, b = ends
    introduce(a, b)
    a.transport._commands.put(lambda: [].pop())
    with pytest.raises(tcp.TransportError, match="thread has failed: IndexError"):
        a.wait()
    b.transport.send(A, frame())
    (event,) = b.wait()
    assert isinstance(event, Broken)


class Between:
    """Someone between two agents, who decrypts what the dialer says and encrypts it again."""

    def __init__(self, address):
        self.identity, self.target = make_identity(), address
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self.listening.getsockname())
        self.heard = bytearray()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        dialer, _ = self.listening.accept()
        with dialer, socket.create_connection(self.target) as listener:
            for sock in (dialer, listener):
                sock.setblocking(False)
            ends = [self.identity.accept(dialer), self.identity.dial(listener)]
            relay(ends, self.heard)
        self.listening.close()


def relay(ends, heard):
    """Pass on what each end says until one of them closes."""
    waiting, place = [b"", b""], memoryview(bytearray(4096))
    while True:
        writers = [
            end for end, x in zip(ends, waiting, strict=True) if end.wants_write(has_more=bool(x))
        ]
        if not any(select.select(ends, writers, [], DEADLINE_S)):
            return
        for number, end in enumerate(ends):
            with contextlib.suppress(BlockingIOError):
                end.flush()
                if waiting[number]:
                    waiting[number] = waiting[number][end.send([memoryview(waiting[number])]) :]
            try:
                count = end.receive(place)
            except BlockingIOError:
                continue
            except OSError:
                return
            if not count:
                return
            heard += place[:count]
            waiting[1 - number] += bytes(place[:count])


def test_someone_in_between_is_refused_and_learns_nothing_but_names(encrypted_ends):
    a, b = encrypted_ends
    between = Between(b.address)
    a.join(Peer(B, between.address, "", b.key))
    b.join(a.peer)
    a.transport.send(B, frame(index=7))
    (event,) = a.wait()
    assert isinstance(event, Broken)
    assert "does not know the plan's key" in event.why
    between.thread.join(DEADLINE_S)
    lines = between.heard.splitlines()
    assert [sorted(json.loads(line)) for line in lines] == [
        ["bamboo", "fence", "from", "nonce", "to"],
        ["nonce", "proof"],
    ]
    assert not b.transport.poll()


def test_an_agent_that_encrypts_hears_none_that_does_not(encrypted_ends):
    _, b = encrypted_ends
    plain = End(A, key=b"key of a")
    plain.join(b.peer)
    b.join(plain.peer)
    plain.transport.send(B, frame())
    assert isinstance(plain.wait()[0], Broken)
    assert not b.transport.poll()
    plain.transport.close()


def test_what_an_encrypted_link_carries_cannot_be_read(encrypted_ends, monkeypatch):
    a, b = encrypted_ends
    introduce(a, b)
    sent, real = bytearray(), socket.socket.send
    monkeypatch.setattr(
        socket.socket, "send", lambda sock, data: (sent.extend(data), real(sock, data))[1]
    )
    a.transport.send(B, frame(index=3, size=1000))
    assert torch.equal(b.wait()[0].frame.tensors[0], torch.full((1000,), 3.0))
    assert len(sent) > 4000
    assert torch.full((8,), 3.0).numpy().tobytes() not in sent
