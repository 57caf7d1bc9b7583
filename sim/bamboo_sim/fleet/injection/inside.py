"""Performs the fleet's orders inside an agent's process, in a thread of its own.

    {"do": "load"}                        read the state of all faults again
    {"do": "reset", "peers": [ADDRESS]}   reset these connections (null: all, the session included)
    {"do": "truncate", "peers": [AGENT]}  close the link to a peer in the middle of the next frame
                                          (null: close none any more)

Connections get the agent's own address at both ends, so that a filter can tell agents apart.
"""

from __future__ import annotations

import _socket
import asyncio
import json
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from bamboo_sim.fleet.injection import sockets, state
from bamboo_sim.fleet.injection.effects import Effect, Recorder, patched
from bamboo_sim.fleet.injection.state import State

_MAX_ORDER = 1 << 16
_LOOK_S = 0.05
"""Between two looks at the segments that sockets have lost: a socket that is closed takes its
number along."""


class Inside:
    """The faults that this process suffers."""

    def __init__(self, agent: str, role: str, folder: Path) -> None:
        self.agent = agent
        self.state = State()
        self.truncated: set[str] = set()
        self.count = Recorder(folder, agent, role).count
        self._folder = folder
        self._lost: dict[int, int] = {}  # segments of each socket that are counted; by inode
        self._orders = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._orders.bind(state.port(folder, agent, role))

    def start(self) -> None:
        """Read the present state, then serve."""
        patched(socket.socket, "connect", self._connecting(_socket.socket.connect))
        patched(socket.socket, "connect_ex", self._connecting(_socket.socket.connect_ex))
        self._load()
        threading.Thread(target=self._serve, name="faults", daemon=True).start()

    @property
    def late_s(self) -> float:
        """How much later this agent gets frames and heartbeats."""
        return self.state.late_s.get(self.agent, 0.0)

    def _serve(self) -> None:
        while True:
            self._orders.settimeout(_LOOK_S if self.state.lost_senders(self.agent) else None)
            try:
                self.obey_next()
            except TimeoutError:
                self._count_lost()

    def obey_next(self) -> None:
        """Wait for an order and perform it. TimeoutError."""
        match json.loads(self._orders.recv(_MAX_ORDER)):
            case {"do": "load"}:
                self._load()
            case {"do": "reset", "peers": peers}:
                self._reset(peers)
            case {"do": "truncate", "peers": None}:
                self.truncated.clear()
            case {"do": "truncate", "peers": peers}:
                self.truncated |= set(peers)

    def _load(self) -> None:
        if self.state.lost_senders(self.agent):
            self._count_lost()
        self.state = state.read(self._folder)  # first: sockets made from now on obey it
        lost = self.state.lost_senders(self.agent)
        self._lost.clear()
        for sock in sockets.own_connections():
            is_cut = sockets.may_hear(sock, lost)
            if is_cut:
                self._lost[_inode(sock)] = sockets.lost_segments(sock)
            sockets.drop_from(sock, lost if is_cut else ())

    def _count_lost(self) -> None:
        """Count the segments that the sockets that are cut have lost since the last look. Those of
        other peers lose segments, too, when the kernel has no room."""
        senders = self.state.lost_senders(self.agent)
        for sock in sockets.own_connections():
            if not sockets.may_hear(sock, senders):
                continue
            lost, counted = sockets.lost_segments(sock), self._lost.get(_inode(sock), 0)
            for _ in range(counted, lost):
                self.count(Effect.LOST_SEGMENT)
            self._lost[_inode(sock)] = lost

    def _reset(self, peers: list[str] | None) -> None:
        for sock in sockets.own_connections():
            peer = sockets.peer_of(sock)
            if peer and (peers is None or peer in peers) and sockets.reset(sock):
                self.count(Effect.RESET)

    def _connecting(self, connect: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def bound(sock: Any, address: Any) -> Any:
            own = self.state.addresses.get(self.agent)
            if own and sock.family is socket.AF_INET and not sock.getsockname()[1]:
                sock.bind((own, 0))
                sockets.drop_from(sock, self.state.lost_senders(self.agent))
            return connect(sock, address)

        return bound


def _inode(sock: socket.socket) -> int:
    return os.fstat(sock.fileno()).st_ino


def begin(role: str) -> Inside:
    """Serve orders in this process from now on. role: "worker", "supervisor"."""
    inside = Inside(os.environ["BAMBOO_AGENT"], role, Path(os.environ[state.FOLDER_VARIABLE]))
    inside.start()
    return inside


class Later:
    """Calls functions in order, each after a delay, in a thread of its own."""

    def __init__(self) -> None:
        self._calls: deque[tuple[float, Callable[[], None]]] = deque()
        self._change = threading.Condition()
        threading.Thread(target=self._work, name="later", daemon=True).start()

    @property
    def is_busy(self) -> bool:
        """Whether a call is still to come; a new one must not overtake it."""
        return bool(self._calls)

    def call(self, delay_s: float, action: Callable[[], None]) -> None:
        """Call the action after all others."""
        with self._change:
            self._calls.append((time.monotonic() + delay_s, action))
            self._change.notify()

    def _work(self) -> None:
        while True:
            with self._change:
                while not self._calls or self._calls[0][0] > time.monotonic():
                    due = self._calls[0][0] - time.monotonic() if self._calls else None
                    self._change.wait(due)
                self._calls[0][1]()
                self._calls.popleft()


def install_in_worker(inside: Inside) -> None:
    """Let the tcp transport of this process be late, close links in mid-frame, and send few bytes
    per second; let its checkpoint storage be slow, and fail."""
    from bamboo_agent.transport import links, tcp
    from bamboo_sim.fleet.injection import disk

    disk.install(lambda: inside.state.disk, inside.count)

    deliver, send, later = tcp._Loop._deliver, links.Outgoing._send_segment, Later()

    def deliver_late(self: Any, link: Any, frame: Any) -> None:
        if inside.late_s:
            inside.count(Effect.LATE_FRAME)
        if inside.late_s or later.is_busy:
            later.call(inside.late_s, lambda: deliver(self, link, frame))
        else:
            deliver(self, link, frame)

    def send_part(self: Any) -> None:
        if self.greeting.listener not in inside.truncated:
            return send(self)
        data, ends = b"".join(self._segment), set(accumulate(map(len, self._segment)))
        half = len(data) // 2
        half += half in ends  # two frames of one size would be cut between them
        sent = self.stream.send([memoryview(data[:half])])
        inside.truncated.discard(self.greeting.listener)
        if 0 < sent < len(data):
            inside.count(Effect.CUT_FRAME)
        raise ConnectionResetError("closed in the middle of a frame, by order of the fleet")

    patched(tcp._Loop, "_deliver", deliver_late)
    patched(links.Outgoing, "_send_segment", send_part)
    _install_trickle(inside)


def _install_trickle(inside: Inside) -> None:
    """Let links of this process pass few bytes per second, without a loop that asks all the time
    whether they may."""
    from bamboo_agent.transport import links, tcp
    from bamboo_sim.fleet.injection.trickle import TricklingSocket

    dial, watch_for, later = tcp._Loop._dial, tcp._Loop._watch_for, Later()
    paused = set[Any]()  # links whose next bytes may leave later

    def dial_slowly(self: Any, peer: str) -> Any:
        link = dial(self, peer)  # type: ignore[arg-type]
        if link is not None:
            rate = partial(lambda receiver: inside.state.rate(inside.agent, receiver), peer)
            stream: Any = link.stream
            stream._socket = TricklingSocket(stream._socket, rate, inside.count)
        return link

    def go_on(self: Any, link: Any) -> None:
        paused.discard(link)
        if self._is_known(link):
            self._guarded(link, link.on_writable)
            self._watch(link)

    def watch_slowly(self: Any, link: Any, mask: int) -> None:
        stream: Any = link.stream
        wait_s = stream._socket.wait_s if isinstance(link, links.Outgoing) else 0.0
        if mask & selectors.EVENT_WRITE and wait_s:
            mask &= ~selectors.EVENT_WRITE
            if link not in paused:
                paused.add(link)
                later.call(wait_s, lambda: self._commands.put(lambda: go_on(self, link)))
        watch_for(self, link, mask)

    patched(tcp._Loop, "_dial", dial_slowly)
    patched(tcp._Loop, "_watch_for", watch_slowly)


def install_in_supervisor(inside: Inside) -> None:
    """Let heartbeats of peers be late."""
    from bamboo_agent.supervisor import liveness

    receive = liveness.Link.data_received

    def receive_late(self: Any, data: bytes) -> None:
        if not self._is_closed:
            receive(self, data)

    def received(self: Any, data: bytes) -> None:
        if inside.late_s and self._is_proven:
            inside.count(Effect.LATE_HEARTBEAT)
            loop = asyncio.get_running_loop()
            loop.call_later(inside.late_s, receive_late, self, data)
        else:
            receive(self, data)

    patched(liveness.Link, "data_received", received)
