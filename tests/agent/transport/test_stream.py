"""Streams: bytes over one connection, plain and encrypted."""

from __future__ import annotations

import itertools
import random
import select
import socket

import pytest

from bamboo_agent.transport import stream
from bamboo_agent.transport.stream import Plain, Stream

SEEDS = range(8)


@pytest.fixture(scope="module")
def identity():
    return stream.make_identity()


def sockets():
    """Two ends of one connection with small buffers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        dialed = socket.socket()
        for sock in (listening, dialed):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        dialed.setblocking(False)
        dialed.connect_ex(listening.getsockname())
        accepted, _ = listening.accept()
    accepted.setblocking(False)
    return dialed, accepted


@pytest.fixture(params=["plain", "secure"])
def ends(request, identity):
    dialed, accepted = sockets()
    if request.param == "plain":
        made = [Plain(dialed), Plain(accepted)]
    else:
        made = [identity.dial(dialed), identity.accept(accepted)]
    yield made
    for end in made:
        end.close()


class Sender:
    """Sends pieces whenever it can."""

    def __init__(self, end: Stream, data: bytes, chance: random.Random) -> None:
        self.end, self.chance = end, chance
        cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(6)))
        edges = [0, *cuts, len(data)]
        view = memoryview(data)
        self.pieces = [view[a:b] for a, b in itertools.pairwise(edges) if b > a]

    def go_on(self) -> None:
        try:
            self.end.flush()
            while self.pieces:
                count = self.end.send(self.pieces)
                while self.pieces and count >= len(self.pieces[0]):
                    count -= len(self.pieces.pop(0))
                if count:
                    self.pieces[0] = self.pieces[0][count:]
        except BlockingIOError:
            return


class Reader:
    """Reads whatever comes, in places of random sizes."""

    def __init__(self, end: Stream, chance: random.Random) -> None:
        self.end, self.chance, self.data = end, chance, bytearray()

    def go_on(self) -> None:
        try:
            while True:
                place = memoryview(bytearray(self.chance.choice((1, 100, 70_000))))
                count = self.end.receive(place)
                if not count:
                    return
                self.data += place[:count]
        except BlockingIOError:
            return


def exchange(ends, sizes, chance):
    """Each end sends so many random bytes. What each has received, and what was sent."""
    data = [chance.randbytes(size) for size in sizes]
    senders = [Sender(end, each, chance) for end, each in zip(ends, data, strict=True)]
    readers = [Reader(end, chance) for end in ends]
    while any(len(reader.data) < size for reader, size in zip(readers, sizes[::-1], strict=True)):
        writers = [s.end for s in senders if s.end.wants_write(has_more=bool(s.pieces))]
        ready = select.select(ends, writers, [], 20)
        assert any(ready), "both ends wait for each other"
        for sender, reader in zip(senders, readers, strict=True):
            if sender.end in ready[0]:
                reader.go_on()
            sender.go_on()
    return [bytes(reader.data) for reader in readers], data


@pytest.mark.parametrize("seed", SEEDS)
def test_all_bytes_arrive_in_order(ends, seed):
    chance = random.Random(seed)
    sizes = [chance.choice((1, 5000, 600_000)) for _ in ends]
    found, sent = exchange(ends, sizes, chance)
    assert found == sent[::-1]


def test_both_ends_name_the_same_certificate(identity):
    dialed, accepted = sockets()
    ends = [identity.dial(dialed), identity.accept(accepted)]
    exchange(ends, [10, 10], random.Random(0))
    assert ends[0].binding == ends[1].binding != b""
    assert stream.make_identity().certificate != identity.certificate
    for end in ends:
        end.close()


def test_nothing_that_is_sent_can_be_read_on_the_wire(identity):
    """A relay between the ends sees no part of what they say."""
    dialed, relay_in = sockets()
    relay_out, accepted = sockets()
    ends = [identity.dial(dialed), identity.accept(accepted)]
    relays = {relay_in: relay_out, relay_out: relay_in}
    secret, seen = b"the weights of the model" * 10, bytearray()
    sender = Sender(ends[0], secret, random.Random(0))
    reader = Reader(ends[1], random.Random(0))
    sender.go_on()
    while len(reader.data) < len(secret):
        ready, _, _ = select.select([*relays, *ends], [], [], 20)
        assert ready
        for one, other in relays.items():
            if one in ready:
                data = one.recv(1 << 16)
                seen += data
                other.sendall(data)
        Reader(ends[0], random.Random(0)).go_on()
        sender.go_on()
        reader.go_on()
    assert bytes(reader.data) == secret
    assert len(seen) > len(secret)
    assert b"weights" not in seen
    for end in [*ends, *relays]:
        end.close()


def test_an_end_that_closes_is_seen(ends):
    exchange(ends, [10, 10], random.Random(0))
    ends[1].close()
    with select.epoll() as waiter:
        waiter.register(ends[0].fileno(), select.EPOLLIN)
        assert waiter.poll(20)
    assert ends[0].receive(memoryview(bytearray(10))) == 0


def test_an_end_that_does_not_speak_tls_is_an_error(identity):
    dialed, accepted = sockets()
    end, stranger = identity.accept(accepted), Plain(dialed)
    stranger.send([memoryview(b"GET / HTTP/1.1\r\n\r\n" * 100)])
    assert select.select([end], [], [], 20)[0]
    with pytest.raises(OSError, match="SSL"):
        end.receive(memoryview(bytearray(10)))
    end.close()
    stranger.close()
