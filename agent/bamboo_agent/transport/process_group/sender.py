"""The sending end of a link's groups: which frames use them, and what becomes of their pieces."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

import torch

from bamboo_agent.payloads.frames import Frame, Lane
from bamboo_agent.transport.process_group.control import Control, ControlError, Do
from bamboo_agent.transport.process_group.maker import Attempt, Maker, Tell
from bamboo_agent.transport.process_group.pump import Pump
from bamboo_core.model.ids import AgentId, Fence

log = logging.getLogger(__name__)

UNDER_WAY_BYTES = (48 << 20, 16 << 20)
"""By lane: no piece is put while so many bytes or more are under way. A confirmation takes some ms
where all cores are busy, and a smaller amount would be over before. Boundary frames wait for bulk
of this amount and one piece at most, so bulk has less."""


class State(Enum):
    """Of the group of the present plan, if any."""

    NONE = auto()
    MAKING = auto()  # offered; an end or both do not have it yet
    READY = auto()  # used from the next step on
    ACTIVE = auto()
    DROPPING = auto()  # the receiver has not said yet what it got


class Held:
    """A frame of which the link or a group still reads. Released when nothing does."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self._count = 1

    def hold(self) -> None:
        """One more piece of it is under way."""
        self._count += 1

    def let_go(self) -> None:
        """One reader less."""
        self._count -= 1
        if not self._count:
            self.frame.release()


@dataclass(frozen=True)
class Piece:
    """Bytes that the link has announced and a group carries."""

    held: Held
    lane: int
    memory: memoryview


class Sender:
    """All calls come from the transport's thread. No method blocks."""

    def __init__(
        self,
        maker: Maker,
        peer: AgentId,
        address: Callable[[], str],
        tell: Tell,
        carried: Callable[[int], None],
    ) -> None:
        """address: of this agent, as the peer reaches it. carried: hears of bytes that the peer has
        got through a group."""
        self.state = State.NONE
        self._maker, self._peer, self._address, self._tell = maker, peer, address, tell
        self._carried = carried
        self._attempt: Attempt | None = None
        self._spent = Fence()  # the plan of the last attempt
        self._is_made = self._is_peer_ready = False
        self._fence, self._newest = Fence(), -1
        self._under_way: deque[Piece] = deque()
        self._under_way_bytes = [0 for _ in Lane]
        self._taken = 0
        self.taken_bytes = 0  # that the peer has got, by all groups of the link
        self._lost: deque[Piece] = deque()  # to be sent again, over the link
        self._abandoned: dict[Pump, list[Piece]] = {}  # that a thread may still read
        self._last: Pump | None = None  # to be abandoned

    # ------------------------------------------------------------ frames

    @property
    def piece_floor(self) -> int:
        """Tensors of fewer bytes stay on the link."""
        return self._maker.limits.min_bytes

    def takes(self, frame: Frame) -> bool:
        """Whether the frame's large tensors go by the group. Makes one for the first that could."""
        is_large = any(t is not None and t.nbytes >= self.piece_floor for t in frame.tensors)
        begins_step = self._newest < frame.item.step
        is_first = self._fence != frame.fence
        self._fence, self._newest = frame.fence, max(self._newest, frame.item.step)
        if is_first:
            self._newest = frame.item.step
        if is_large and self.state is State.NONE:
            self._offer(frame.fence)
        if self.state is State.READY and begins_step and not is_first:
            log.info("%s goes over %s from %s on", self._peer, self._maker.backend, frame.item)
            self.state = State.ACTIVE
        return is_large and self.state is State.ACTIVE

    def _offer(self, fence: Fence) -> None:
        maker = self._maker
        if fence <= self._spent or self._lost or not maker.has_room:
            return
        self._spent, self.state, self._taken = fence, State.MAKING, 0
        self._is_made = self._is_peer_ready = False
        self._tell.say(Control(Do.OFFER, fence, backend=maker.backend, device=maker.gpu))
        self._attempt = maker.make(
            fence, self._address(), is_sender=True, listener=self, tell=self._tell
        )

    @property
    def is_active(self) -> bool:
        """Whether pieces may be put."""
        return self.state is State.ACTIVE

    def is_full(self, lane: int) -> bool:
        """Whether enough pieces of the lane are under way."""
        return self.is_active and self._under_way_bytes[lane] >= UNDER_WAY_BYTES[lane]

    def put(self, held: Held, lane: int, memory: memoryview) -> None:
        """Send a piece that the link announces next."""
        assert self._attempt is not None
        held.hold()
        self._under_way.append(Piece(held, lane, memory))
        self._under_way_bytes[lane] += len(memory)
        self._attempt.pump.put(torch.frombuffer(memory, dtype=torch.uint8))
        self._maker.sent_pieces += 1

    def next_lost(self) -> Piece | None:
        """The oldest piece that the link must send after all. Let go of it once it is sent."""
        return self._lost.popleft() if self._lost else None

    @property
    def is_repaired(self) -> bool:
        """Whether :meth:`next_lost` has nothing."""
        return not self._lost

    @property
    def is_idle(self) -> bool:
        """Whether the peer has all pieces."""
        return not (self._under_way or self._lost)

    # ------------------------------------------------------------ what ends a group

    def adopt(self, fence: Fence) -> None:
        """A group belongs to one plan."""
        if self._attempt is not None and self._attempt.fence < fence:
            self._drop(f"{fence} is a new plan")

    def end(self) -> None:
        """The link is gone. What a thread still reads is let go when that thread has ended.

        Its buffer must not change before: the receiver may not know yet that the link is gone.
        """
        if self._attempt is not None:
            self._abandon()
        read = self._abandoned.get(self._last) if self._last is not None else None
        if read is None:
            self._lost.extend(self._under_way)
        else:
            read.extend(self._under_way)
        for piece in self._lost:
            piece.held.let_go()
        self._forget_under_way()
        self._lost.clear()
        self.state = State.NONE

    def _drop(self, why: str) -> None:
        """Leave the group. The receiver's answer says which pieces it lacks."""
        if self._attempt is None:
            return
        fence = self._attempt.fence
        log.info("%s no longer goes over %s: %s", self._peer, self._maker.backend, why)
        self._abandon()
        self.state = State.DROPPING
        self._tell.say(Control(Do.DROP, fence, why=why[:500]))

    def _abandon(self) -> None:
        assert self._attempt is not None
        self._last = self._attempt.pump
        self._abandoned[self._last] = []
        self._maker.abandon(self._attempt)
        self._attempt = None

    # ------------------------------------------------------------ what the peer says

    def hear(self, message: Control) -> None:
        """A message of the receiving end. ControlError if it cannot be."""
        if message.fence != self._spent or self.state is State.NONE:
            return
        match message.do:
            case Do.SET:
                if self._attempt is not None:
                    self._attempt.store.learn(message.key, message.value)
            case Do.READY:
                self._is_peer_ready = True
                self._check_ready()
            case Do.REFUSE | Do.DROPPED:
                log.info("%s stays on the link: %s", self._peer, message.why)
                self._settle(message.pieces)
            case _:
                raise ControlError(f"a receiver does not say {message.do}")

    def taken(self, count: int) -> None:
        """The peer has got so many more pieces. ControlError if that is more than were sent."""
        if not 0 <= count <= len(self._under_way):
            raise ControlError(f"{count} pieces taken of {len(self._under_way)} sent")
        for _ in range(count):
            piece = self._under_way[0]
            self.taken_bytes += len(piece.memory)
            self._carried(len(piece.memory))  # first: who finds us idle may read the count
            self._under_way.popleft()
            self._under_way_bytes[piece.lane] -= len(piece.memory)
            piece.held.let_go()
        self._taken += count

    def _settle(self, pieces: int) -> None:
        """The receiver has left the group, with so many pieces."""
        if self._attempt is not None:
            self._abandon()
        self.state = State.NONE
        self.taken(pieces - self._taken)
        self._lost.extend(self._under_way)
        self._forget_under_way()

    def _forget_under_way(self) -> None:
        self._under_way.clear()
        self._under_way_bytes = [0 for _ in Lane]

    # ------------------------------------------------------------ what the pump says

    def made(self, pump: Pump) -> None:
        """See :class:`.pump.Listener`."""
        if self._is_mine(pump):
            self._is_made = True
            self._check_ready()

    def done(self, pump: Pump) -> None:
        """Not called for sends: the peer's own word counts."""

    def failed(self, pump: Pump, why: str) -> None:
        """See :class:`.pump.Listener`."""
        if self._is_mine(pump):
            self._drop(why)

    def ended(self, pump: Pump) -> None:
        """See :class:`.pump.Listener`."""
        self._maker.ended(pump)
        for piece in self._abandoned.pop(pump, []):
            piece.held.let_go()

    def _is_mine(self, pump: Pump) -> bool:
        return self._attempt is not None and self._attempt.pump is pump

    def _check_ready(self) -> None:
        if self.state is State.MAKING and self._is_made and self._is_peer_ready:
            self.state = State.READY
