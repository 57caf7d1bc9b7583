"""The `tcp` transport: one connection per direction of an agent pair, made on demand, kept across
epochs.

A separate thread reads and writes, so frames move while the worker computes. The sender dials, and
both sides authenticate (see `handshake`). A failed connection is reported once per fence and dialed
again only in the next one. Whatever the other end sends costs at most its own connection. If the
thread itself fails, the next :meth:`TcpTransport.poll` says so.

With a `process_group.maker.Maker`, process groups carry large tensors, once they are made: that is
the `process_group` channel.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from bamboo_agent.device.receive_buffers import ReceiveMemory
from bamboo_agent.ipc.mailbox import Mailbox
from bamboo_agent.ipc.shared_progress import MOST_PAIRS
from bamboo_agent.payloads.frames import Frame, Lane
from bamboo_agent.strangers import Refusals, Strangers
from bamboo_agent.transport.base import Arrived, Broken
from bamboo_agent.transport.goodput import Meter
from bamboo_agent.transport.handshake import Greeting, RefusedError, encode_line, new_nonce
from bamboo_agent.transport.incoming import Incoming
from bamboo_agent.transport.links import Outgoing, connecting, own_address, tune
from bamboo_agent.transport.process_group.control import ControlError
from bamboo_agent.transport.process_group.maker import Maker, Tell
from bamboo_agent.transport.process_group.receiver import Receiver
from bamboo_agent.transport.process_group.sender import Sender
from bamboo_agent.transport.stream import Identity, Plain
from bamboo_agent.transport.traffic import Arrivals, Traffic, Write
from bamboo_agent.transport.wire import WireError
from bamboo_core.api.progress import Goodput, Sent
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import Peer

log = logging.getLogger(__name__)

HANDSHAKE_S = 10.0
FLUSH_S = 2.0
_EXPECTED = (OSError, RefusedError, WireError, ControlError)


class TransportError(Exception):
    """The transport's thread has failed: nothing is sent or received any more."""


@dataclass(frozen=True)
class _Credit:
    """Bytes that the worker takes from a link: credit for the sender."""

    link: Incoming
    lane: Lane
    count: int


_Events = Mailbox[tuple[Arrived | Broken | TransportError, _Credit | None]]


class TcpTransport:
    """See :class:`bamboo_agent.transport.base.Transport`. ``listening``: bound, listening.

    job: UID of the job; only agents of it are let in. Called in the transport's thread: on_traffic
    while bytes come or go, on_arrival with what comes over each link, on_refused for each stranger
    that ends. groups: for large tensors. identity: encrypts all connections, as the peers must.
    """

    def __init__(
        self,
        *,
        job: str,
        agent: AgentId,
        listening: socket.socket,
        on_traffic: Callable[[], None] = lambda: None,
        on_arrival: Write = lambda *_: None,
        on_refused: Callable[[], None] = lambda: None,
        groups: Maker | None = None,
        identity: Identity | None = None,
    ) -> None:
        self._events: _Events = Mailbox()
        self._commands: Mailbox[Callable[[], None]] = Mailbox()
        self._loop = _Loop(
            job,
            agent,
            listening,
            self._events,
            self._commands,
            on_traffic,
            Arrivals(on_arrival, MOST_PAIRS),
            on_refused,
            groups,
            identity,
        )
        self._sent = 0
        self._thread = threading.Thread(target=self._run, name="tcp", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run()
        except Exception as error:
            failure = TransportError(f"the transport's thread has failed: {error!r}")
            failure.__cause__ = error
            self._events.put((failure, None))

    def adopt(self, fence: Fence) -> None:
        """Forget queued frames of lower fences; broken peers may be tried again."""
        self._commands.put(lambda: self._loop.adopt(fence))

    def introduce(self, *, fence: Fence, key: bytes, peers: Mapping[AgentId, Peer]) -> None:
        """Addresses and keys of a plan."""
        known = dict(peers)
        self._commands.put(lambda: self._loop.introduce(fence, key, known))

    def send(self, peer: AgentId, frame: Frame) -> None:
        """Hand over a frame."""
        self._sent += 1
        self._commands.put(lambda: self._loop.send(peer, frame))

    def poll(self) -> list[Arrived | Broken]:
        """Events since the last call. Taking a frame gives its sender credit. TransportError."""
        taken = self._events.take_all()
        credit = [
            _Credit(took.link, took.lane, due)
            for _, took in taken
            if took is not None and (due := took.link.take(took.lane, took.count))
        ]
        if credit:  # seldom: the transport's thread is not woken for each frame
            self._commands.put(lambda: self._loop.grant(credit))
        events: list[Arrived | Broken] = []
        for event, _ in taken:
            if isinstance(event, TransportError):
                raise event
            events.append(event)
        return events

    def fileno(self) -> int:
        """Readable while :meth:`poll` has something."""
        return self._events.fileno()

    @property
    def sent(self) -> tuple[Sent, ...]:
        """The bytes that have begun to leave until now, by zone, over links and groups."""
        return self._loop.traffic.sent()

    @property
    def goodput(self) -> Goodput | None:
        """How fast the network has been lately; None: not measured. Any thread may ask."""
        return self._loop.goodput.figures()

    @property
    def is_idle(self) -> bool:
        """Whether all frames handed over have left for the kernel, or will never."""
        return self._sent == self._loop.handled and self._loop.is_idle

    def close(self) -> None:
        """End all connections and the thread; what is queued gets FLUSH_S to leave."""
        self._commands.put(self._loop.end)
        self._thread.join()
        self._events.close()
        self._commands.close()


class _Loop:
    """The transport's thread."""

    def __init__(
        self,
        job: str,
        agent: AgentId,
        listening: socket.socket,
        events: _Events,
        commands: Mailbox[Callable[[], None]],
        on_traffic: Callable[[], None],
        arrivals: Arrivals,
        on_refused: Callable[[], None],
        groups: Maker | None,
        identity: Identity | None,
    ) -> None:
        self._groups, self._identity, self._on_refused = groups, identity, on_refused
        self._job, self._agent, self._listening = job, agent, listening
        self._events, self._commands, self._on_traffic = events, commands, on_traffic
        self._arrivals, self._memory = arrivals, ReceiveMemory()
        self._selector = selectors.DefaultSelector()
        self._fence = Fence()
        self._key, self._key_fence = b"", Fence()
        self._peers: dict[AgentId, Peer] = {}
        self._broken: set[AgentId] = set()
        self._outgoing: dict[AgentId, Outgoing] = {}
        self._strangers: Strangers[Incoming] = Strangers()
        self._refusals = Refusals(log)
        self._incoming: set[Incoming] = set()
        self._over_at: float | None = None
        self.traffic, self.goodput = Traffic(), Meter()
        self.handled = 0

    def run(self) -> None:
        """Serve until :meth:`end`."""
        self._listening.setblocking(False)
        self._selector.register(self._listening, selectors.EVENT_READ, None)
        self._selector.register(self._commands, selectors.EVENT_READ, None)
        try:
            while not self._is_over:
                self._serve_all()
        finally:
            self._close_all()

    def _serve_all(self) -> None:
        for key, mask in self._selector.select(self._timeout_s()):
            if key.fileobj is self._listening:
                self._accept()
            elif key.data is not None:
                self._serve(key.data, mask)
        for command in self._commands.take_all():
            command()
        self._expire_handshakes()

    @property
    def is_idle(self) -> bool:
        """Whether no frame waits."""
        return all(link.is_idle for link in list(self._outgoing.values()))

    @property
    def _is_over(self) -> bool:
        if self._over_at is None:
            return False
        return self.is_idle or time.monotonic() >= self._over_at

    # ------------------------------------------------------------ commands

    def adopt(self, fence: Fence) -> None:
        """See the transport."""
        if fence <= self._fence:
            return
        self._fence = fence
        self._broken.clear()
        for link in self._outgoing.values():
            link.purge(fence)
            if link.group is not None:
                link.group.adopt(fence)
            self._watch(link)
        for incoming in self._incoming:
            if incoming.group is not None:
                incoming.group.adopt(fence)
            self._watch(incoming)

    def introduce(self, fence: Fence, key: bytes, peers: dict[AgentId, Peer]) -> None:
        """See the transport. Answers greetings that waited for the plan."""
        if fence < self._key_fence:
            return
        self._key, self._key_fence, self._peers = key, fence, peers
        self.goodput.expect(peers)
        for link in self._strangers:
            if link.is_waiting_for_key:
                self._guarded(link, link.greet)
                self._watch(link)

    def send(self, peer: AgentId, frame: Frame) -> None:
        """See the transport."""
        self._queue(peer, frame)
        self.handled += 1

    def _queue(self, peer: AgentId, frame: Frame) -> None:
        if peer in self._broken or frame.fence < self._fence:
            frame.release()
            return
        link = self._outgoing.get(peer) or self._dial(peer)
        if link is None:
            frame.release()
            return
        link.queues[frame.lane].append(frame)
        self._guarded(link, link.on_writable)
        self._watch(link)

    def grant(self, credit: list[_Credit]) -> None:
        """The worker has taken frames of these links."""
        for taken in credit:
            taken.link.grant(taken.lane, taken.count)
            self._watch(taken.link)

    def end(self) -> None:
        """Leave the loop as soon as all is sent, or at the deadline."""
        self._over_at = time.monotonic() + FLUSH_S

    # ------------------------------------------------------------ links

    def _dial(self, peer: AgentId) -> Outgoing | None:
        known = self._peers.get(peer)
        if known is None:
            self._suspect(peer, "the plan has no address for it")
            return None
        try:
            sock = connecting(known.data_address)
        except (OSError, ValueError) as error:
            self._suspect(peer, str(error))
            return None
        greeting = Greeting(self._agent, peer, self._key_fence, new_nonce())
        stream = self._identity.dial(sock) if self._identity else Plain(sock)
        link = Outgoing(stream, self._job, greeting, known.key, self.traffic, known.zone)
        if self._groups is not None:
            tell = Tell(self._poster(link), link.say)
            carried = partial(self.traffic.add_by_group, known.zone)
            link.group = Sender(self._groups, peer, lambda: own_address(sock), tell, carried)
        self._outgoing[peer] = link
        return link

    def _accept(self) -> None:
        try:
            sock, address = self._listening.accept()
            tune(sock)
        except OSError:
            return  # the dialer has gone again
        link = Incoming(
            self._identity.accept(sock) if self._identity else Plain(sock),
            job=self._job,
            admit=self._admit,
            deliver=self._deliver,
            empty=self._memory.take,
        )
        if self._groups is not None:
            link.group = Receiver(
                self._groups,
                lambda: own_address(sock),
                lambda: self._fence,
                Tell(self._poster(link), link.say),
                link.taken,
            )
        until = time.monotonic() + HANDSHAKE_S
        gone = self._strangers.add(link, str(address[0]), until=until)
        if gone is not None:
            self._close_stream(gone)
            self._note_refusal(RefusedError("too many connections wait"))
        self._watch(link)

    def _admit(self, greeting: Greeting) -> bytes | None:
        if greeting.listener != self._agent:
            raise RefusedError("another agent has this address now")
        if not self._key or greeting.fence > self._key_fence:
            return None
        return self._key

    def _poster(self, link: Outgoing | Incoming) -> Callable[[Callable[[], None]], None]:
        """For the threads of a link's group: runs functions in this one."""

        def act(action: Callable[[], None]) -> None:
            self._on_traffic()
            self._guarded(link, action)
            if self._is_known(link):
                self._guarded(link, link.on_writable)
            self._note(link)
            self._watch(link)

        return lambda action: self._commands.put(lambda: act(action))

    def _deliver(self, link: Incoming, frame: Frame) -> None:
        taken = _Credit(link, frame.lane, frame.num_bytes)
        self._events.put((Arrived(link.peer, frame, time.monotonic()), taken))

    def _serve(self, link: Outgoing | Incoming, mask: int) -> None:
        if link.is_open:  # else a stranger could make a stuck worker look busy
            self._on_traffic()
        if mask & selectors.EVENT_READ:
            self._guarded(link, link.on_readable)
        if self._is_known(link):
            self._guarded(link, link.on_writable)
        if isinstance(link, Incoming) and link.is_open and link in self._strangers:
            self._strangers.discard(link)
            self._incoming.add(link)
        if isinstance(link, Incoming) and link.said_bye:
            self._forget(link)
        self._note(link)
        self._watch(link)

    def _note(self, link: Outgoing | Incoming) -> None:
        if isinstance(link, Incoming) and link in self._incoming:
            self._arrivals.note(link)
            now = time.monotonic()
            self.goodput.receiving.note(link, link.peer, link.received, now, is_busy=link.is_coming)

    def _measure(self, link: Outgoing) -> None:
        sending = self.goodput.sending
        if link.is_busy or sending.follows(link):
            peer, now = link.greeting.listener, time.monotonic()
            sending.note(link, peer, link.delivered, now, is_busy=link.is_busy)

    def _is_known(self, link: Outgoing | Incoming) -> bool:
        if isinstance(link, Outgoing):
            return self._outgoing.get(link.greeting.listener) is link
        return link in self._strangers or link in self._incoming

    def _guarded(self, link: Outgoing | Incoming, action: Callable[[], object]) -> None:
        """Whatever is wrong costs this link only: the other end chooses what we read."""
        try:
            action()
        except _EXPECTED as error:
            self._fail(link, error)
        except Exception as error:
            log.exception("a link has failed in an unexpected way")
            self._fail(link, WireError(f"unexpected: {error!r:.200}"))

    def _fail(self, link: Outgoing | Incoming, error: Exception) -> None:
        if not self._is_known(link):
            return
        if isinstance(link, Incoming) and not link.is_open:
            self._refuse(link, error)
            self._note_refusal(error)
        self._forget(link)
        if isinstance(link, Outgoing):
            link.drop_all()
            self._suspect(link.greeting.listener, str(error))
        elif link.peer:
            self._suspect(link.peer, str(error))

    @staticmethod
    def _refuse(link: Incoming, error: Exception) -> None:
        """Best effort: tell the dialer why."""
        if isinstance(error, RefusedError):
            try:
                link.stream.send([memoryview(encode_line({"refused": str(error)}))])
            except OSError:
                return

    def _note_refusal(self, error: Exception) -> None:
        self._refusals.note(error)
        self._on_refused()

    def _suspect(self, peer: AgentId, why: str) -> None:
        if peer not in self._broken:
            self._broken.add(peer)
            self._events.put((Broken(peer, self._fence, why), None))

    def _forget(self, link: Outgoing | Incoming) -> None:
        self._close_stream(link)
        if isinstance(link, Outgoing):
            del self._outgoing[link.greeting.listener]
            self.goodput.sending.forget(link)
        else:
            self.goodput.receiving.forget(link)
            self._strangers.discard(link)
            self._incoming.discard(link)
            self._arrivals.forget(link)

    def _close_stream(self, link: Outgoing | Incoming) -> None:
        self._watch_for(link, 0)
        link.stream.close()
        if isinstance(link, Incoming) and link.group is not None:
            link.group.end()

    def _watch(self, link: Outgoing | Incoming) -> None:
        if not self._is_known(link):
            return
        if isinstance(link, Outgoing):
            self._measure(link)
        mask = selectors.EVENT_WRITE if link.wants_write else 0
        # Who waits for a plan is not read, so what it sends must not wake us again and again.
        if isinstance(link, Outgoing) or not link.is_waiting_for_key:
            mask |= selectors.EVENT_READ
        self._watch_for(link, mask)

    def _watch_for(self, link: Outgoing | Incoming, mask: int) -> None:
        if mask == link.watched_for:
            return
        if not mask:
            self._selector.unregister(link.stream)
        elif link.watched_for:
            self._selector.modify(link.stream, mask, link)
        else:
            self._selector.register(link.stream, mask, link)
        link.watched_for = mask

    # ------------------------------------------------------------ deadlines

    def _timeout_s(self) -> float | None:
        due = [x for x in (self._strangers.next_deadline, self._over_at) if x is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _expire_handshakes(self) -> None:
        for link in self._strangers.expired(time.monotonic()):
            self._fail(link, RefusedError("the handshake took too long"))

    def _close_all(self) -> None:
        for link in list(self._outgoing.values()):
            link.say_bye()
            link.drop_all()
            self._forget(link)
        for incoming in [*self._strangers, *self._incoming]:
            self._forget(incoming)
        self._selector.close()
        self._listening.close()
