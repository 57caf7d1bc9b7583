"""Liveness sockets between supervisors: one that closes shows at once that a process has died.

There is one TCP connection per pair. The agent with the smaller name dials. Each side proves with
the other's nonce that it knows its key from the plan. Then both send one byte per heartbeat.

    dialer:   hello NAME NONCE
    acceptor: proof NONCE MAC(acceptor's key)
    dialer:   proof MAC(dialer's key)

If the acceptor's plan does not name the dialer yet, the dialer waits: directives do not arrive
everywhere at the same time. Connections that have proved nothing are bounded in number and time.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import socket
from collections.abc import Callable

from bamboo_agent.addresses import split_address
from bamboo_agent.strangers import Refusals, Strangers
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Peer

log = logging.getLogger(__name__)

HANDSHAKE_S = 5.0
"""Deadline for the handshake, in seconds."""
REDIAL_S = 0.2
_MAX_LINE = 1024
_BEAT = b"."


class Liveness:
    """The liveness sockets of one supervisor. Calls ``on_heard`` and ``on_closed`` with peers."""

    def __init__(
        self,
        agent: AgentId,
        *,
        on_heard: Callable[[AgentId], None],
        on_closed: Callable[[AgentId], None],
    ) -> None:
        self.agent = agent
        self.on_heard = on_heard
        self.on_closed = on_closed
        self.key = b""
        self._peers: dict[AgentId, Peer] = {}
        self._links: dict[AgentId, Link] = {}
        self._waiting: set[Link] = set()
        self._strangers: Strangers[Link] = Strangers()
        self._refusals = Refusals(log)
        self._dialers: dict[AgentId, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None

    @property
    def connected(self) -> frozenset[AgentId]:
        """Peers with an authenticated connection."""
        return frozenset(self._links)

    @property
    def refused(self) -> int:
        """Connections that have broken the rules of the handshake, or were too many."""
        return self._refusals.count

    async def start(self, sock: socket.socket) -> None:
        """Accept connections on a bound socket."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Link(self, None), sock=sock)

    def watch(self, peers: tuple[Peer, ...], key: bytes) -> None:
        """Keep connections to exactly these peers. Existing ones stay open."""
        self.key = key
        self._peers = {p.agent: p for p in peers if p.agent != self.agent}
        for agent in [a for a in self._links if a not in self._peers]:
            self._links.pop(agent).close()
        for agent in [a for a in self._dialers if a not in self._peers]:
            self._dialers.pop(agent).cancel()
        for link in tuple(self._waiting):
            link.resume()
        for agent in self._peers:
            self._dial(agent)

    def beat(self) -> None:
        """Send a heartbeat to all peers."""
        for link in self._links.values():
            link.beat()

    async def close(self) -> None:
        for task in self._dialers.values():
            task.cancel()
        for link in (*self._links.values(), *self._waiting):
            link.close()
        self._peers.clear()
        self._links.clear()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    # ------------------------------------------------------------ called by links

    def peer(self, agent: AgentId) -> Peer | None:
        """The peer, if the plan has it."""
        return self._peers.get(agent)

    def unproven(self, link: Link, address: str | None) -> None:
        """A connection has been made and is not authenticated yet. address: None if we dialed."""
        self._waiting.add(link)
        if address is None:
            return
        until = asyncio.get_running_loop().time() + HANDSHAKE_S
        gone = self._strangers.add(link, address, until=until)
        if gone is not None:
            self.refuse(gone, "too many connections wait")

    def refuse(self, link: Link, why: object) -> None:
        """End a connection that breaks the rules."""
        self._refusals.note(why)
        link.close()

    def proven(self, link: Link, agent: AgentId) -> None:
        """The connection is that peer's. It replaces an older one."""
        self._waiting.discard(link)
        self._strangers.discard(link)
        old = self._links.get(agent)
        self._links[agent] = link
        if old is not None:
            old.close()
        self.on_heard(agent)

    def lost(self, link: Link, agent: AgentId | None) -> None:
        """A connection has ended."""
        self._waiting.discard(link)
        self._strangers.discard(link)
        if agent is not None and self._links.get(agent) is link:
            del self._links[agent]
            self.on_closed(agent)
            self._dial(agent)

    # ------------------------------------------------------------ dialling

    def _dial(self, agent: AgentId) -> None:
        if agent < self.agent or agent in self._links or agent in self._dialers:
            return
        task = asyncio.create_task(self._dial_until_proven(agent))
        self._dialers[agent] = task
        task.add_done_callback(lambda done: self._dialed(agent, done))

    def _dialed(self, agent: AgentId, task: asyncio.Task[None]) -> None:
        if self._dialers.get(agent) is task:
            del self._dialers[agent]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("dialling %s failed: %r", agent, error)

    async def _dial_until_proven(self, agent: AgentId) -> None:
        loop = asyncio.get_running_loop()
        while (peer := self._peers.get(agent)) is not None:
            try:
                host, port = split_address(peer.liveness_address)
                _, link = await loop.create_connection(lambda: Link(self, agent), host, port)
                if await link.outcome:
                    return
            except ConnectionRefusedError:
                self.on_closed(agent)
            except (OSError, ValueError) as error:
                log.warning("cannot reach %s at %s: %s", agent, peer.liveness_address, error)
            await asyncio.sleep(REDIAL_S)


class Link(asyncio.Protocol):
    """One connection. ``dialed``: the peer that we dialed; None if it dialed us."""

    def __init__(self, owner: Liveness, dialed: AgentId | None) -> None:
        loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[bool] = loop.create_future()
        self._owner = owner
        self._dialed = dialed
        self._other = dialed
        self._nonce = secrets.token_hex(16)
        self._their_nonce = ""
        self._line = bytearray()
        self._is_proven = False
        self._is_closed = False
        self._transport: asyncio.Transport | None = None
        self._deadline = loop.call_later(HANDSHAKE_S, self.close)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        address = transport.get_extra_info("peername") or ("unknown",)
        self._owner.unproven(self, None if self._dialed is not None else str(address[0]))
        if self._dialed is not None:
            self._say("hello", self._owner.agent, self._nonce)

    def data_received(self, data: bytes) -> None:
        """Heartbeats, or lines of the handshake."""
        if self._is_proven:
            assert self._other is not None
            self._owner.on_heard(self._other)
            return
        try:
            self._shake_hands(data)
        except Exception as error:  # the other end chooses what we read
            self._owner.refuse(self, repr(error))

    def _shake_hands(self, data: bytes) -> None:
        self._line += data
        while not self._is_proven and not self._is_closed and b"\n" in self._line:
            line, _, rest = bytes(self._line).partition(b"\n")
            self._line = bytearray(rest)
            self._take(line.decode("ascii", "replace").split(" "))
        if len(self._line) > _MAX_LINE and not self._is_closed:
            self._owner.refuse(self, "a line of the handshake is too long")

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the owner, unless we closed the connection."""
        self._settle(False)
        if not self._is_closed:
            self._is_closed = True
            self._owner.lost(self, self._other if self._is_proven else None)

    def beat(self) -> None:
        if self._transport is not None:
            self._transport.write(_BEAT)

    def close(self) -> None:
        """Close the connection without notifying the owner."""
        self._is_closed = True
        self._owner.lost(self, None)
        self._settle(False)
        if self._transport is not None:
            self._transport.abort()

    def resume(self) -> None:
        """The plan has changed: answer a dialer that it now names."""
        if self._dialed is None and self._other is not None and not self._is_proven:
            self._answer()

    # ------------------------------------------------------------ handshake

    def _take(self, words: list[str]) -> None:
        match words:
            case ["hello", name, nonce] if self._dialed is None and self._other is None:
                self._other, self._their_nonce = AgentId(name), nonce
                self._answer()
            case ["proof", nonce, mac] if self._dialed is not None:
                self._their_nonce = nonce
                if self._check("accept", mac):
                    self._say("proof", self._mac("dial", self._owner.key))
                    self._prove()
            case ["proof", mac] if self._dialed is None and self._other is not None:
                if self._check("dial", mac):
                    self._prove()
            case _:
                self._owner.refuse(self, "it does not speak the liveness protocol")

    def _answer(self) -> None:
        assert self._other is not None
        if self._owner.peer(self._other) is not None:
            self._say("proof", self._nonce, self._mac("accept", self._owner.key))

    def _check(self, role: str, mac: str) -> bool:
        """Whether the peer knows its key. Otherwise close the connection."""
        peer = self._owner.peer(self._other) if self._other is not None else None
        is_text = mac.isascii()  # compare_digest takes no other
        if peer and peer.key and is_text and hmac.compare_digest(mac, self._mac(role, peer.key)):
            return True
        self._owner.refuse(self, f"{ascii(self._other)[:100]} did not prove its key")
        return False

    def _mac(self, role: str, key: bytes) -> str:
        mine, theirs = (self._owner.agent, self._nonce), (self._other or "", self._their_nonce)
        dialer, acceptor = (mine, theirs) if self._dialed is not None else (theirs, mine)
        text = " ".join(("bamboo-liveness", role, *dialer, *acceptor))
        return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()

    def _prove(self) -> None:
        assert self._other is not None
        self._is_proven = True
        self._settle(True)
        self._owner.proven(self, self._other)

    def _settle(self, is_proven: bool) -> None:
        self._deadline.cancel()
        if not self.outcome.done():
            self.outcome.set_result(is_proven)

    def _say(self, *words: str) -> None:
        if self._transport is not None:
            self._transport.write((" ".join(words) + "\n").encode("ascii"))
