"""TCP connections: `Outgoing` sends frames to a peer; the peer's end is `incoming.Incoming`.

Both run in the transport's thread and never block. Flow control is by credits: per lane, a sender
may have WINDOW_BYTES in flight that the receiver's worker has not taken yet.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from bamboo_agent.addresses import split_address
from bamboo_agent.payloads.frames import Frame, Lane
from bamboo_agent.transport import handshake
from bamboo_agent.transport.handshake import Greeting, RefusedError
from bamboo_agent.transport.process_group.control import MAX_CONTROL_BYTES, Control, decode, encode
from bamboo_agent.transport.process_group.sender import Held, Sender
from bamboo_agent.transport.stream import Stream
from bamboo_agent.transport.traffic import Traffic
from bamboo_agent.transport.wire import (
    BYE,
    CONTROL,
    GROUP,
    REPAIR,
    SEGMENT,
    TAKEN,
    WireError,
    segments,
)
from bamboo_core.model.ids import Fence

WINDOW_BYTES = 256 << 20
_USER_TIMEOUT_MS = 5000
_LANES = tuple(Lane)  # to walk over an enum takes three times as long
_TOGETHER_BYTES = 64 << 10
"""Segments smaller than this go to the kernel together: each call wakes the other end."""


def tune(sock: socket.socket) -> None:
    """Non-blocking, no delay, and an error within seconds if the other machine vanishes."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)


def connecting(address: str) -> socket.socket:
    """A socket that connects; an error of the connection appears at the first write.

    OSError, ValueError: the address is not one.
    """
    host, port = split_address(address)
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        tune(sock)
        sock.connect_ex((host, port))
    except BaseException:
        sock.close()
        raise
    return sock


def own_address(sock: socket.socket) -> str:
    """Where the other end of the connection reaches this machine."""
    return str(sock.getsockname()[0])


class Lines:
    """Reads the handshake's lines. ``rest``: what has come after the last one."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._place = memoryview(bytearray(handshake.MAX_LINE_BYTES))
        self.rest = bytearray()

    def next(self) -> bytes:
        """The next line. BlockingIOError if it is incomplete, RefusedError if it is too long."""
        while (end := self.rest.find(b"\n") + 1) == 0:
            if len(self.rest) > handshake.MAX_LINE_BYTES:
                raise RefusedError("it does not speak our protocol")
            count = self._stream.receive(self._place)
            if not count:
                raise ConnectionResetError("closed during the handshake")
            self.rest += self._place[:count]
        line = bytes(self.rest[:end])
        del self.rest[:end]
        return line


@dataclass
class _Current:
    """A frame of which segments have been sent."""

    held: Held
    segments: Iterator[list[memoryview]]
    in_group: bool  # a group carries its large tensors


class Outgoing:
    """Sends frames to one peer. States: greeting -> proving -> open.

    ``group``: carries large tensors, once there is one; None: nothing but this link does.
    """

    def __init__(
        self, stream: Stream, job: str, greeting: Greeting, key: bytes, traffic: Traffic, zone: str
    ) -> None:
        """job: UID of the job that both ends must belong to. key, zone: the peer's."""
        self.stream, self.greeting = stream, greeting
        self._job, self._traffic, self._zone = job, traffic, zone
        self.is_open = False
        self.watched_for = 0  # events; kept by the loop
        self.group: Sender | None = None
        self.queues: tuple[deque[Frame], deque[Frame]] = (deque(), deque())
        self._key = key
        self._lines = Lines(stream)
        self._is_proving = False
        self._control = bytearray(greeting.line())
        self._credits, self._place = bytearray(), memoryview(bytearray(4096))
        self._out = [0, 0]
        self._segment: list[memoryview] = []
        self._current: list[_Current | None] = [None, None]
        self._ending: list[Held] = []  # to be let go once the segment is sent

    @property
    def wants_write(self) -> bool:
        """Whether there is something to write."""
        has_more = bool(self._control or self._segment) or (self.is_open and self._has_frame())
        return self.stream.wants_write(has_more=has_more)

    def _has_frame(self) -> bool:
        if self.group is not None and not self.group.is_repaired:
            return True
        return any(self._may_go_on(lane) for lane in _LANES)

    def _may_go_on(self, lane: Lane) -> bool:
        current = self._current[lane]
        if current is None:
            return self._may_start(lane)
        return not (current.in_group and self.group is not None and self.group.is_full(lane))

    def _may_start(self, lane: Lane) -> bool:
        """Credits come in quarters of the window, so up to a quarter may be outstanding."""
        if not self.queues[lane]:
            return False
        under_way = self._out[lane]
        size = self.queues[lane][0].num_bytes
        return under_way <= WINDOW_BYTES // 4 or under_way + size <= WINDOW_BYTES

    @property
    def is_idle(self) -> bool:
        """Whether the kernel has all bytes, and the peer has those that went by a group."""
        is_empty = not (self._segment or self._ending or any(self.queues) or any(self._current))
        return is_empty and self.stream.is_flushed and (self.group is None or self.group.is_idle)

    @property
    def is_busy(self) -> bool:
        """Whether the network has not taken all that may leave now."""
        waits = self.wants_write or (self.group is not None and not self.group.is_idle)
        return self.is_open and waits

    @property
    def delivered(self) -> int:
        """Bytes that the peer's machine has got, in the life of the link."""
        by_group = self.group.taken_bytes if self.group is not None else 0
        return self.stream.delivered + by_group

    def purge(self, fence: Fence) -> None:
        """Drop frames of lower fences that have not been started."""
        for queue in self.queues:
            kept = [frame for frame in queue if frame.fence >= fence]
            for frame in queue:
                if frame.fence < fence:
                    frame.release()
            queue.clear()
            queue.extend(kept)

    def drop_all(self) -> None:
        """The link has failed: release all frames."""
        for queue in self.queues:
            for frame in queue:
                frame.release()
            queue.clear()
        for current in self._current:
            if current is not None:
                current.held.let_go()
        self._let_go()
        if self.group is not None:
            self.group.end()
        self._segment = []
        self._current = [None, None]

    def on_writable(self) -> None:
        """Send as much as possible. OSError if the connection has failed."""
        try:
            self.stream.flush()
            self._send_control()
            while self.is_open and self._next_segment():
                self._send_segment()
                self._send_control()
        except BlockingIOError:
            return

    def _send_control(self) -> None:
        """Between segments only."""
        while self._control and not self._segment:
            del self._control[: self.stream.send([memoryview(bytes(self._control))])]

    def _next_segment(self) -> bool:
        """Choose what is sent next: first what a group has lost, then boundary frames."""
        if self._segment:
            return True
        self._let_go()
        if self.group is not None and (piece := self.group.next_lost()) is not None:
            prefix = SEGMENT.pack(REPAIR, len(piece.memory))
            self._segment = [memoryview(prefix), piece.memory]
            self._ending.append(piece.held)
            return True
        size = 0
        while size < _TOGETHER_BYTES and (segment := self._take_segment()):
            self._segment += segment
            size += sum(map(len, segment))
        if not self._segment:
            self._let_go()
        return bool(self._segment)

    def _let_go(self) -> None:
        for held in self._ending:
            held.let_go()
        self._ending.clear()

    def _take_segment(self) -> list[memoryview] | None:
        """The next one of any lane."""
        for lane in _LANES:
            if (segment := self._take_of(lane)) is not None:
                return segment
        return None

    def _take_of(self, lane: Lane) -> list[memoryview] | None:
        """The lane's next segment, if it has one."""
        while self._may_go_on(lane):
            current = self._current[lane] or self._begin(lane)
            segment = next(current.segments, None)
            if segment is not None:
                return self._divert(current, lane, segment)
            self._current[lane] = None
            self._ending.append(current.held)
        return None

    def _divert(self, current: _Current, lane: Lane, segment: list[memoryview]) -> list[memoryview]:
        """The part of a segment that the link itself carries. The group gets the rest."""
        mark, size = SEGMENT.unpack(segment[0])
        if not mark & GROUP:
            return segment
        if self.group is not None and self.group.is_active:
            self.group.put(current.held, lane, segment[1])
            return segment[:1]
        return [memoryview(SEGMENT.pack(lane, size)), *segment[1:]]

    def _begin(self, lane: Lane) -> _Current:
        frame = self.queues[lane].popleft()
        count = frame.num_bytes
        self._out[lane] += count
        self._traffic.add(self._zone, frame.item.kind, count)
        group = self.group
        in_group = group is not None and group.takes(frame)
        floor = group.piece_floor if in_group and group is not None else 0
        current = _Current(Held(frame), segments(frame, floor), in_group)
        self._current[lane] = current
        return current

    def _send_segment(self) -> None:
        sent = self.stream.send(self._segment)
        while self._segment and sent >= len(self._segment[0]):
            sent -= len(self._segment.pop(0))
        if sent:
            self._segment[0] = self._segment[0][sent:]

    def on_readable(self) -> None:
        """Handshake answers, then credits. OSError, RefusedError."""
        try:
            while not self.is_open:
                self._answer(handshake.decode_line(self._lines.next()))
            self._credits += self._lines.rest
            self._lines.rest.clear()
            self._read_credits()
        except BlockingIOError:
            return

    def _answer(self, values: dict[str, object]) -> None:
        if self._is_proving:
            self.is_open = bool(values.get("welcome"))
            return
        nonce = handshake.read_nonce(values)
        bound = self.stream.binding
        expected = handshake.proof(self._key, "listen", self._job, self.greeting, nonce, bound)
        handshake.check(values.get("proof"), expected)
        mine = handshake.proof(self._key, "dial", self._job, self.greeting, nonce, bound)
        self._control += handshake.encode_line({"proof": mine})
        self._is_proving = True

    def _read_credits(self) -> None:
        while True:
            self._take_credits()
            count = self.stream.receive(self._place)
            if not count:
                raise ConnectionResetError("closed by the peer")
            self._credits += self._place[:count]

    def _take_credits(self) -> None:
        while len(self._credits) >= SEGMENT.size:
            kind, count = SEGMENT.unpack_from(self._credits)
            size = count if kind == CONTROL else 0
            if size > MAX_CONTROL_BYTES:
                raise WireError(f"a message of {count} bytes about a group")
            end = SEGMENT.size + size
            if len(self._credits) < end:
                return
            content = bytes(self._credits[SEGMENT.size : end])
            del self._credits[:end]
            self._hear(kind, count, content)

    def _hear(self, kind: int, count: int, content: bytes) -> None:
        if kind < len(Lane):
            self._out[kind] -= count
        elif self.group is None or kind not in (CONTROL, TAKEN):
            raise WireError(f"an answer of kind {kind}")
        elif kind == TAKEN:
            self.group.taken(count)
        else:
            self.group.hear(decode(content))

    def say(self, message: Control) -> None:
        """Tell the peer something about the group, before the next segment."""
        data = encode(message)
        self._control += SEGMENT.pack(CONTROL, len(data)) + data

    def say_bye(self) -> None:
        """Best effort: tell the peer that this connection is closed on purpose."""
        if self.is_open and not (self._segment or self._control):
            try:
                self.stream.send([memoryview(SEGMENT.pack(BYE, 0))])
            except OSError:
                return  # it is gone already
