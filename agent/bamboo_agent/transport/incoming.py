"""The receiving end of a TCP connection. See `links`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bamboo_agent.payloads.frames import Frame, Lane
from bamboo_agent.transport import handshake, links
from bamboo_agent.transport.handshake import Greeting
from bamboo_agent.transport.links import Lines
from bamboo_agent.transport.process_group.control import MAX_CONTROL_BYTES, Control, decode, encode
from bamboo_agent.transport.process_group.receiver import Receiver
from bamboo_agent.transport.stream import Stream
from bamboo_agent.transport.wire import (
    BYE,
    CONTROL,
    GROUP,
    REPAIR,
    SEGMENT,
    TAKEN,
    Allocate,
    LaneReader,
    WireError,
    allocate,
)
from bamboo_core.model.ids import AgentId

_SCRATCH_BYTES = 1 << 16
_TURN_BYTES = 16 << 20


class _Target(Protocol):
    """Where the data of a segment goes."""

    def target(self) -> memoryview:
        """Memory for the next bytes; never empty."""

    def filled(self, count: int) -> list[Frame]:
        """``count`` bytes have come. Frames that are complete now."""


class _Message:
    """Collects a message about the group."""

    def __init__(self, size: int, hear: Callable[[Control], None]) -> None:
        if not 0 < size <= MAX_CONTROL_BYTES:
            raise WireError(f"a message of {size} bytes about a group")
        self._data, self._at, self._hear = bytearray(size), 0, hear

    def target(self) -> memoryview:
        """See :class:`_Target`."""
        return memoryview(self._data)[self._at :]

    def filled(self, count: int) -> list[Frame]:
        """See :class:`_Target`."""
        self._at += count
        if self._at == len(self._data):
            self._hear(decode(bytes(self._data)))
        return []


class _Repair:
    """Fills the oldest place that a group has left empty."""

    def __init__(self, size: int, receiver: Receiver) -> None:
        self._receiver, self._at, self._size = receiver, 0, size
        if receiver.next_lost().size != size:
            raise WireError(f"a repair of {size} bytes for {receiver.next_lost().size}")

    def target(self) -> memoryview:
        """See :class:`_Target`."""
        return self._receiver.next_lost().memory[self._at :]

    def filled(self, count: int) -> list[Frame]:
        """See :class:`_Target`."""
        self._at += count
        if self._at == self._size:
            self._receiver.repaired()
        return []


class Incoming:
    """Receives a peer's frames. ``admit(greeting)`` returns our key, or None if not known yet.

    job: UID of the job that both ends must belong to. empty: makes the tensors. ``group``: brings
    large ones, once there is one; None: all comes over this link.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        job: str,
        admit: Callable[[Greeting], bytes | None],
        deliver: Callable[[Incoming, Frame], None],
        empty: Allocate = allocate,
    ) -> None:
        self.stream = stream
        self.peer = AgentId("")
        self.is_open = False
        self.watched_for = 0  # events; kept by the loop
        self.said_bye = False
        self.group: Receiver | None = None
        self._job, self._admit, self._deliver = job, admit, deliver
        self._lines = Lines(stream)
        self._greeting: Greeting | None = None
        self._expected = ""
        self._out = bytearray()
        self._by_group = 0  # bytes that the group has brought
        self._taken = [0, 0]  # by the worker, without credit for it yet
        self._lanes = (LaneReader(empty), LaneReader(empty))
        self._scratch = memoryview(b"")  # a stranger gets none
        self._have = self._scratch
        self._prefix = bytearray()
        self._lane: _Target | None = None
        self._left = 0

    @property
    def wants_write(self) -> bool:
        """Whether there is an answer or credit to write."""
        return self.stream.wants_write(has_more=bool(self._out))

    @property
    def is_waiting_for_key(self) -> bool:
        """Whether a greeting waits for a plan with our key."""
        return self._greeting is not None and not self._expected

    @property
    def received(self) -> int:
        """Bytes that have come, those of a group with the last one of their piece."""
        return self.stream.received + self._by_group

    @property
    def is_coming(self) -> bool:
        """Whether a part of a frame is here: the rest is on its way."""
        is_begun = self._lane is not None or bool(self._prefix) or self.stream.is_partial
        return is_begun or not all(lane.is_between_frames for lane in self._lanes)

    def on_writable(self) -> None:
        """Send answers and credits. OSError if the connection has failed."""
        try:
            self.stream.flush()
            while self._out:
                del self._out[: self.stream.send([memoryview(bytes(self._out))])]
        except BlockingIOError:
            return

    def take(self, lane: Lane, count: int) -> int:
        """The worker has taken ``count`` bytes. Credit that is due now: the sender gets it per
        quarter window. The only method that is called in the worker's thread."""
        self._taken[lane] += count
        if self._taken[lane] < links.WINDOW_BYTES // 4:
            return 0
        due, self._taken[lane] = self._taken[lane], 0
        return due

    def grant(self, lane: Lane, count: int) -> None:
        """Give the sender credit."""
        self._out += SEGMENT.pack(lane, count)

    def on_readable(self) -> None:
        """Handshake, then frames. OSError, RefusedError, WireError."""
        try:
            while not self.is_open:
                if self._greeting is not None and not self._expected:
                    return
                self._read_handshake()
            budget = _TURN_BYTES
            # the selector sees neither buffer, so read them to their end
            while not self.said_bye and (budget > 0 or self._has_more):
                budget -= self._read()
        except BlockingIOError:
            return

    @property
    def _has_more(self) -> bool:
        return bool(len(self._have)) or self.stream.has_received

    def _read_handshake(self) -> None:
        line = self._lines.next()
        if self._greeting is None:
            self._greeting = handshake.read_greeting(line)
            self.greet()
            return
        handshake.check(handshake.decode_line(line).get("proof"), self._expected)
        self.peer, self.is_open = self._greeting.dialer, True
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._have = memoryview(bytes(self._lines.rest))
        self._out += handshake.encode_line({"welcome": True})

    def greet(self) -> None:
        """Answer the greeting if the key is known. RefusedError if it is not for us."""
        assert self._greeting is not None
        key = self._admit(self._greeting)
        if key is None:
            return
        nonce = handshake.new_nonce()
        bound = self.stream.binding
        self._expected = handshake.proof(key, "dial", self._job, self._greeting, nonce, bound)
        mine = handshake.proof(key, "listen", self._job, self._greeting, nonce, bound)
        self._out += handshake.encode_line({"nonce": nonce, "proof": mine})

    def _read(self) -> int:
        if self._lane is None:
            self._read_prefix()
            return 0
        target = self._lane.target()[: self._left]
        count = self._fill(target)
        self._left -= count
        frames = self._lane.filled(count)
        if not self._left:
            if isinstance(self._lane, _Repair):
                self.deliver_complete()
            self._lane = None
        for frame in frames:
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
        elif self.group is None:
            raise WireError(f"a segment of lane {lane} with {self._left} bytes")
        elif lane == CONTROL:
            self._lane = _Message(self._left, self.group.hear)
        elif lane == REPAIR:
            self._lane = _Repair(self._left, self.group)
        elif lane & GROUP and lane - GROUP < len(self._lanes):
            self.group.expect(self._lanes[lane - GROUP].reserve(self._left))
        else:
            raise WireError(f"a segment of lane {lane} with {self._left} bytes")

    def deliver_complete(self) -> None:
        """Hand on the frames that are complete now that a group or a repair has brought bytes."""
        for lane in self._lanes:
            for frame in lane.complete():
                self._deliver(self, frame)

    def say(self, message: Control) -> None:
        """Tell the peer something about the group."""
        data = encode(message)
        self._out += SEGMENT.pack(CONTROL, len(data)) + data

    def taken(self, count: int) -> None:
        """Pieces have come by the group: tell the sender, and hand on what is complete."""
        self._out += SEGMENT.pack(TAKEN, count)
        self._by_group += count
        self.deliver_complete()

    def _fill(self, target: memoryview) -> int:
        """Read small pieces through the scratch buffer, large ones directly into the target."""
        if not len(self._have) and len(target) >= _SCRATCH_BYTES:
            return self._checked(self.stream.receive(target))
        piece = self._scratch_bytes(len(target))
        target[: len(piece)] = piece
        return len(piece)

    def _scratch_bytes(self, limit: int) -> memoryview:
        if not len(self._have):
            self._have = self._scratch[: self._checked(self.stream.receive(self._scratch))]
        piece = self._have[:limit]
        self._have = self._have[len(piece) :]
        return piece

    @staticmethod
    def _checked(count: int) -> int:
        if not count:
            raise ConnectionResetError("closed by the peer")
        return count
