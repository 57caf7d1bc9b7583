"""Liveness sockets: heartbeats, lost connections, and the handshake."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from tests.agent.supervisor.fake_operator import until

from bamboo_agent import strangers
from bamboo_agent.addresses import join_address
from bamboo_agent.supervisor import liveness
from bamboo_agent.supervisor.liveness import Liveness
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Peer

A, B, C = AgentId("a-0"), AgentId("b-0"), AgentId("c-0")


class End:
    """One supervisor's sockets and what they reported."""

    def __init__(self, name: AgentId) -> None:
        self.name = name
        self.key = f"key of {name}".encode()
        self.heard: list[AgentId] = []
        self.closed: list[AgentId] = []
        self.sockets = Liveness(name, on_heard=self.heard.append, on_closed=self.closed.append)
        self._listening = socket.create_server(("127.0.0.1", 0))
        host, port = self._listening.getsockname()
        self.port: int = port
        self.peer = Peer(name, "", join_address(host, port), self.key)

    async def start(self) -> End:
        await self.sockets.start(self._listening)
        return self

    def watch(self, *others: End) -> None:
        self.sockets.watch(tuple(other.peer for other in (self, *others)), self.key)


Make = Callable[[AgentId], Awaitable[End]]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    ends: list[End] = []

    async def begin(name: AgentId) -> End:
        ends.append(await End(name).start())
        return ends[-1]

    yield begin
    for end in ends:
        await end.sockets.close()


async def connected(*ends: End) -> None:
    names = {end.name for end in ends}
    await until(lambda: all(end.sockets.connected == names - {end.name} for end in ends))


async def test_peers_hear_each_other(make: Make) -> None:
    ends = [await make(name) for name in (A, B, C)]
    for end in ends:
        end.watch(*(other for other in ends if other is not end))
    await connected(*ends)
    for end in ends:
        end.heard.clear()
    ends[0].sockets.beat()
    await until(lambda: ends[1].heard == [A] and ends[2].heard == [A])
    assert not ends[0].heard
    assert not any(end.closed for end in ends)


async def test_directives_need_not_arrive_together(make: Make) -> None:
    """A connection from an agent that the plan does not name yet waits, and is not reported."""
    a, b = await make(A), await make(B)
    a.watch(b)
    await until(lambda: any(True for _ in b.sockets._waiting))
    assert not a.sockets.connected
    b.watch(a)
    await connected(a, b)
    assert not a.closed
    assert not b.closed


@pytest.mark.parametrize("dead", [0, 1])
async def test_a_closed_end_is_reported_at_once(make: Make, dead: int) -> None:
    ends = [await make(A), await make(B)]
    ends[0].watch(ends[1])
    ends[1].watch(ends[0])
    await connected(*ends)
    await ends[dead].sockets.close()
    await until(lambda: ends[1 - dead].name not in ends[1 - dead].closed != [], deadline_s=1.0)
    assert ends[1 - dead].closed[0] == ends[dead].name


async def test_no_server_at_the_address(make: Make) -> None:
    a, b = await make(A), await make(B)
    await b.sockets.close()
    a.watch(b)
    await until(lambda: a.closed != [])
    assert set(a.closed) == {B}


async def test_a_malformed_address_is_logged(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    a = await make(A)
    a.sockets.watch((Peer(B, "", "nonsense", b"key"),), a.key)
    await until(lambda: "'nonsense' is not host:port" in caplog.text)
    assert not a.closed


async def test_a_new_plan_keeps_open_links(make: Make) -> None:
    a, b, c = await make(A), await make(B), await make(C)
    a.watch(b)
    b.watch(a)
    await connected(a, b)
    link = a.sockets._links[B]
    a.watch(b, c)
    b.watch(a, c)
    c.watch(a, b)
    await connected(a, b, c)
    assert a.sockets._links[B] is link
    a.watch(b)
    await until(lambda: A in c.closed)
    assert not a.closed
    assert not b.closed


@pytest.mark.parametrize("liar", [0, 1])
async def test_a_wrong_key_is_refused_on_either_side(
    make: Make, liar: int, caplog: pytest.LogCaptureFixture
) -> None:
    ends = [await make(A), await make(B)]
    ends[liar].key = b"another key"
    ends[0].watch(ends[1])
    ends[1].watch(ends[0])
    await until(lambda: "did not prove its key" in caplog.text)
    assert not ends[1 - liar].sockets.connected
    assert ends[liar].name not in ends[1 - liar].heard


async def test_a_plan_without_keys_lets_no_peer_in(make: Make) -> None:
    a, b = await make(A), await make(B)
    a.key = b.key = b""
    a.peer = Peer(A, "", a.peer.liveness_address, b"")
    b.peer = Peer(B, "", b.peer.liveness_address, b"")
    a.watch(b)
    b.watch(a)
    await asyncio.sleep(2 * liveness.REDIAL_S)
    assert not a.sockets.connected
    assert not b.sockets.connected


async def test_a_broken_link_is_redialled(make: Make) -> None:
    a, b = await make(A), await make(B)
    a.watch(b)
    b.watch(a)
    await connected(a, b)
    transport = b.sockets._links[A]._transport
    assert transport is not None
    transport.abort()
    await until(lambda: a.closed == [B] and b.closed == [A])
    await connected(a, b)


@pytest.mark.parametrize(
    "words", [b"GET / HTTP/1.1\r\n", b"proof abc\n", b"hello only\n", b"\xff\xfe\n", b"x" * 5000]
)
async def test_strangers_are_disconnected(make: Make, words: bytes) -> None:
    a = await make(A)
    reader, writer = await asyncio.open_connection("127.0.0.1", a.port)
    writer.write(words)
    assert await hung_up(reader, writer)
    assert not a.heard


async def hung_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Wait for the end of the connection; whether it closed without sending anything."""
    try:
        return await asyncio.wait_for(reader.read(), 5.0) == b""
    except ConnectionResetError:
        return True
    finally:
        writer.close()


async def test_a_silent_handshake_times_out(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "HANDSHAKE_S", 0.1)
    a = await make(A)
    assert await hung_up(*await asyncio.open_connection("127.0.0.1", a.port))


async def everything(port: int, data: bytes) -> bytes:
    """The answer that a stranger gets to these bytes, until the other end closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    said = b""
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionResetError):
            said = await reader.read()
    writer.close()
    return said


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 4000,
        b"hello \xff\xfe\xfd nonce\nproof \xff\n",
        b"hello b-0 0\nproof \xff\n",
        b"proof 1 2\n",
        b"\n",
        bytes(range(256)) * 5,
    ],
)
async def test_no_bytes_end_more_than_their_connection(make: Make, data: bytes) -> None:
    a, b = await make(A), await make(B)
    a.watch(b)
    b.watch(a)
    await connected(a, b)
    await everything(a.port, data)
    assert a.sockets.refused == 1
    assert a.sockets.connected == {B}
    assert not a.closed


async def test_idle_connections_keep_no_peer_out(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "MOST_OF_AN_ADDRESS", 4)
    a, b = await make(A), await make(B)
    idle = [await asyncio.open_connection("127.0.0.1", b.port) for _ in range(12)]
    a.watch(b)
    b.watch(a)
    await connected(a, b)
    assert len(b.sockets._waiting) <= 4
    for _, writer in idle:
        writer.close()
