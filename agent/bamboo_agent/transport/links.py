"""TCP connections: `Outgoing` sends frames to a peer, `Incoming` receives a peer's frames.

Both run in the transport's thread and never block. Flow control is by credits: per lane, a sender
may have WINDOW_BYTES in flight that the receiver's worker has not taken yet.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Iterator

from bamboo_agent.transport import handshake
from bamboo_agent.transport.base import Frame, Lane
from bamboo_agent.transport.handshake import Greeting, RefusedError
from bamboo_agent.transport.wire import BYE, SEGMENT, LaneReader, WireError, segments
from bamboo_core.model.ids import AgentId, Fence

WINDOW_BYTES = 256 << 20
_SCRATCH_BYTES = 1 << 16
_TURN_BYTES = 16 << 20
_USER_TIMEOUT_MS = 5000
_IOV_MAX = 512


def tune(sock: socket.socket) -> None:
    """Non-blocking, no delay, and an error within seconds if the other machine vanishes."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)


class Lines:
    """Reads the handshake's lines, and no byte beyond them."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._data = bytearray()

    def next(self) -> bytes | None:
        """The next line. BlockingIOError if it is incomplete, RefusedError if it is too long."""
        while True:
            peeked = self._socket.recv(handshake.MAX_LINE_BYTES, socket.MSG_PEEK)
            if not peeked:
                raise ConnectionResetError("closed during the handshake")
            end = peeked.find(b"\n") + 1
            self._data += self._socket.recv(end or len(peeked))
            if end:
                line = bytes(self._data)
                self._data.clear()
                return line
            if len(self._data) > handshake.MAX_LINE_BYTES:
                raise RefusedError("it does not speak our protocol")


class Outgoing:
    """Sends frames to one peer. States: greeting -> proving -> open."""

    def __init__(self, sock: socket.socket, greeting: Greeting, key: bytes) -> None:
        self.socket, self.greeting = sock, greeting
        self.is_open = False
        self.queues: tuple[deque[Frame], deque[Frame]] = (deque(), deque())
        self._key = key
        self._lines = Lines(sock)
        self._is_proving = False
        self._control = bytearray(greeting.line())
        self._credits = bytearray()
        self._out = [0, 0]
        self._segment: list[memoryview] = []
        self._current: list[Iterator[list[memoryview]] | None] = [None, None]

    @property
    def wants_write(self) -> bool:
        """Whether there is something to write."""
        return bool(self._control or self._segment) or (self.is_open and self._has_frame())

    def _has_frame(self) -> bool:
        return any(self._current[lane] or self._may_start(lane) for lane in Lane)

    def _may_start(self, lane: Lane) -> bool:
        """Credits come in quarters of the window, so up to a quarter may be outstanding."""
        if not self.queues[lane]:
            return False
        under_way = self._out[lane]
        size = self.queues[lane][0].num_bytes
        return under_way <= WINDOW_BYTES // 4 or under_way + size <= WINDOW_BYTES

    @property
    def is_idle(self) -> bool:
        """Whether the kernel has all bytes."""
        return not (self._segment or any(self.queues) or any(self._current))

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
        self._segment = []
        self._current = [None, None]

    def on_writable(self) -> None:
        """Send as much as possible. OSError if the connection has failed."""
        try:
            while self._control:
                del self._control[: self.socket.send(self._control)]
            while self.is_open and self._next_segment():
                self._send_segment()
        except BlockingIOError:
            return

    def _next_segment(self) -> bool:
        """Choose the next segment: boundary frames first."""
        if self._segment:
            return True
        for lane in Lane:
            current = self._current[lane]
            if current is None and self._may_start(lane):
                current = self._begin(lane)
            if current is None:
                continue
            segment = next(current, None)
            if segment is not None:
                self._segment = segment
                return True
            self._current[lane] = None
            return self._next_segment()
        return False

    def _begin(self, lane: Lane) -> Iterator[list[memoryview]]:
        frame = self.queues[lane].popleft()
        self._out[lane] += frame.num_bytes

        def run() -> Iterator[list[memoryview]]:
            try:
                yield from segments(frame)
            finally:
                frame.release()

        self._current[lane] = run()
        return self._current[lane]  # type: ignore[return-value]

    def _send_segment(self) -> None:
        sent = self.socket.sendmsg(self._segment[:_IOV_MAX])
        while self._segment and sent >= len(self._segment[0]):
            sent -= len(self._segment.pop(0))
        if sent:
            self._segment[0] = self._segment[0][sent:]

    def on_readable(self) -> None:
        """Handshake answers, then credits. OSError, RefusedError."""
        try:
            while not self.is_open:
                line = self._lines.next()
                assert line is not None
                self._answer(handshake.decode_line(line))
            self._read_credits()
        except BlockingIOError:
            return

    def _answer(self, values: dict[str, object]) -> None:
        if self._is_proving:
            self.is_open = bool(values.get("welcome"))
            return
        nonce = str(values.get("nonce", ""))
        expected = handshake.proof(self._key, "listen", self.greeting, nonce)
        handshake.check(values.get("proof"), expected)
        mine = handshake.proof(self._key, "dial", self.greeting, nonce)
        self._control += handshake.encode_line({"proof": mine})
        self._is_proving = True

    def _read_credits(self) -> None:
        while True:
            data = self.socket.recv(4096)
            if not data:
                raise ConnectionResetError("closed by the peer")
            self._credits += data
            while len(self._credits) >= SEGMENT.size:
                lane, count = SEGMENT.unpack_from(self._credits)
                del self._credits[: SEGMENT.size]
                self._out[Lane(lane)] -= count

    def say_bye(self) -> None:
        """Best effort: tell the peer that this connection is closed on purpose."""
        if self.is_open and not self._segment:
            try:
                self.socket.send(SEGMENT.pack(BYE, 0))
            except OSError:
                return  # it is gone already


class Incoming:
    """Receives a peer's frames. ``admit(greeting)`` returns our key, or None if not known yet."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        admit: Callable[[Greeting], bytes | None],
        deliver: Callable[[Incoming, Frame], None],
    ) -> None:
        self.socket = sock
        self.peer = AgentId("")
        self.is_open = False
        self.said_bye = False
        self._admit, self._deliver = admit, deliver
        self._lines = Lines(sock)
        self._greeting: Greeting | None = None
        self._expected = ""
        self._out = bytearray()
        self._granted = [0, 0]
        self._lanes = (LaneReader(), LaneReader())
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._have = self._scratch[:0]
        self._prefix = bytearray()
        self._lane: LaneReader | None = None
        self._left = 0

    @property
    def wants_write(self) -> bool:
        """Whether there is an answer or credit to write."""
        return bool(self._out)

    @property
    def is_waiting_for_key(self) -> bool:
        """Whether a greeting waits for a plan with our key."""
        return self._greeting is not None and not self._expected

    def on_writable(self) -> None:
        """Send answers and credits. OSError if the connection has failed."""
        try:
            while self._out:
                del self._out[: self.socket.send(self._out)]
        except BlockingIOError:
            return

    def grant(self, lane: Lane, count: int) -> None:
        """The worker has taken ``count`` bytes. The sender gets credit per quarter window."""
        self._granted[lane] += count
        if self._granted[lane] >= WINDOW_BYTES // 4:
            self._out += SEGMENT.pack(lane, self._granted[lane])
            self._granted[lane] = 0

    def on_readable(self) -> None:
        """Handshake, then frames. OSError, RefusedError, WireError."""
        try:
            while not self.is_open:
                if self._greeting is not None and not self._expected:
                    return
                self._read_handshake()
            budget = _TURN_BYTES
            # the selector does not see the scratch buffer, so read it to its end
            while not self.said_bye and (budget > 0 or len(self._have)):
                budget -= self._read()
        except BlockingIOError:
            return

    def _read_handshake(self) -> None:
        line = self._lines.next()
        assert line is not None
        if self._greeting is None:
            self._greeting = handshake.read_greeting(line)
            self.greet()
            return
        handshake.check(handshake.decode_line(line).get("proof"), self._expected)
        self.peer, self.is_open = self._greeting.dialer, True
        self._out += handshake.encode_line({"welcome": True})

    def greet(self) -> None:
        """Answer the greeting if the key is known. RefusedError if it is not for us."""
        assert self._greeting is not None
        key = self._admit(self._greeting)
        if key is None:
            return
        nonce = handshake.new_nonce()
        self._expected = handshake.proof(key, "dial", self._greeting, nonce)
        mine = handshake.proof(key, "listen", self._greeting, nonce)
        self._out += handshake.encode_line({"nonce": nonce, "proof": mine})

    def _read(self) -> int:
        if self._lane is None:
            self._read_prefix()
            return 0
        target = self._lane.target()[: self._left]
        count = self._fill(target)
        self._left -= count
        frame = self._lane.filled(count)
        if not self._left:
            self._lane = None
        if frame is not None:
            self._deliver(self, frame)
        return count

    def _read_prefix(self) -> None:
        piece = self._scratch_bytes(SEGMENT.size - len(self._prefix))
        self._prefix += piece
        if len(self._prefix) < SEGMENT.size:
            return
        lane, self._left = SEGMENT.unpack(self._prefix)
        self._prefix.clear()
        if lane == BYE:
            self.said_bye = True
        elif lane < len(self._lanes) and self._left:
            self._lane = self._lanes[lane]
        else:
            raise WireError(f"a segment of lane {lane} with {self._left} bytes")

    def _fill(self, target: memoryview) -> int:
        """Read small pieces through the scratch buffer, large ones directly into the target."""
        if not len(self._have) and len(target) >= _SCRATCH_BYTES:
            return self._checked(self.socket.recv_into(target))
        piece = self._scratch_bytes(len(target))
        target[: len(piece)] = piece
        return len(piece)

    def _scratch_bytes(self, limit: int) -> memoryview:
        if not len(self._have):
            self._have = self._scratch[: self._checked(self.socket.recv_into(self._scratch))]
        piece = self._have[:limit]
        self._have = self._have[len(piece) :]
        return piece

    @staticmethod
    def _checked(count: int) -> int:
        if not count:
            raise ConnectionResetError("closed by the peer")
        return count
