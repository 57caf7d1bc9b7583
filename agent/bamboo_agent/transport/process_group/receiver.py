"""The receiving end of a link's groups: puts pieces into the frames that the link announced."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch

from bamboo_agent.transport.process_group.control import Control, ControlError, Do
from bamboo_agent.transport.process_group.maker import Attempt, Maker, Tell
from bamboo_agent.transport.process_group.pump import Pump
from bamboo_core.model.ids import Fence

log = logging.getLogger(__name__)


class Movable(Protocol):
    """A frame of which a group brings pieces."""

    def move(self) -> None:
        """Go on in other memory: a library may still write into the old one."""


class Place(Protocol):
    """Where a piece belongs. :class:`bamboo_agent.transport.wire.Place` is one."""

    @property
    def assembly(self) -> Movable:
        """The frame that the piece is of."""

    @property
    def size(self) -> int:
        """In bytes."""

    @property
    def memory(self) -> memoryview:
        """Where the bytes belong now."""

    def fill(self) -> None:
        """They have come."""


class Receiver:
    """All calls come from the transport's thread. No method blocks.

    fence: the newest that the agent has adopted. taken: called when pieces have arrived, with
    their number.
    """

    def __init__(
        self,
        maker: Maker,
        address: Callable[[], str],
        fence: Callable[[], Fence],
        tell: Tell,
        taken: Callable[[int], None],
    ) -> None:
        self._maker, self._address, self._fence = maker, address, fence
        self._tell, self._told_taken = tell, taken
        self._attempt: Attempt | None = None
        self._is_made = False
        self._count = 0
        self._expected: deque[Place] = deque()  # from the group
        self._lost: deque[Place] = deque()  # from the link, after the group

    # ------------------------------------------------------------ pieces

    def expect(self, place: Place) -> None:
        """The link has announced a piece. ControlError if there can be no group."""
        if self._attempt is None:
            self._lost.append(place)  # the sender learns soon that the group is gone
            return
        if not self._is_made:
            raise ControlError("a piece of a group that does not exist yet")
        self._expected.append(place)
        self._attempt.pump.put(torch.frombuffer(place.memory, dtype=torch.uint8))

    def next_lost(self) -> Place:
        """Where the link's repair goes. ControlError if nothing is missing."""
        if not self._lost:
            raise ControlError("a repair of nothing")
        return self._lost[0]

    def repaired(self) -> None:
        """The link has filled :meth:`next_lost`."""
        self._lost.popleft().fill()

    # ------------------------------------------------------------ what ends a group

    def adopt(self, fence: Fence) -> None:
        """A group belongs to one plan."""
        if self._attempt is not None and self._attempt.fence < fence:
            self._drop(f"{fence} is a new plan")

    def end(self) -> None:
        """The link is gone, and with it all frames that are not complete."""
        if self._attempt is not None:
            self._maker.abandon(self._attempt)
            self._attempt = None

    def _drop(self, why: str) -> None:
        """Leave the group, and let nothing that it still writes reach a frame."""
        if self._attempt is None:
            return
        fence = self._attempt.fence
        self._maker.abandon(self._attempt)
        self._attempt = None
        for assembly in {place.assembly for place in self._expected}:
            assembly.move()
        self._lost.extend(self._expected)
        self._expected.clear()
        self._tell.say(Control(Do.DROPPED, fence, pieces=self._count, why=why[:500]))

    # ------------------------------------------------------------ what the peer says

    def hear(self, message: Control) -> None:
        """A message of the sending end. ControlError if it cannot be."""
        match message.do:
            case Do.OFFER:
                self._answer(message)
            case Do.SET:
                if self._attempt is not None and self._attempt.fence == message.fence:
                    self._attempt.store.learn(message.key, message.value)
            case Do.DROP:
                if self._attempt is not None and self._attempt.fence == message.fence:
                    self._drop(f"the sender left: {message.why}")
            case _:
                raise ControlError(f"a sender does not say {message.do}")

    def _answer(self, offer: Control) -> None:
        if self._attempt is not None:
            raise ControlError("an offer before the last group was dropped")
        why = self._maker.refusal(offer)
        if offer.fence < self._fence():
            why = "its plan is old"
        if why:
            self._tell.say(Control(Do.REFUSE, offer.fence, why=why))
            return
        self._is_made, self._count = False, 0
        self._attempt = self._maker.make(
            offer.fence, self._address(), is_sender=False, listener=self, tell=self._tell
        )

    # ------------------------------------------------------------ what the pump says

    def made(self, pump: Pump) -> None:
        """See :class:`.pump.Listener`."""
        if self._attempt is not None and self._attempt.pump is pump:
            self._is_made = True
            self._tell.say(Control(Do.READY, self._attempt.fence))

    def done(self, pump: Pump) -> None:
        """See :class:`.pump.Listener`."""
        if self._attempt is not None and self._attempt.pump is pump:
            self._expected.popleft().fill()
            self._count += 1
            self._told_taken(1)

    def failed(self, pump: Pump, why: str) -> None:
        """See :class:`.pump.Listener`."""
        if self._attempt is not None and self._attempt.pump is pump:
            self._drop(why)

    def ended(self, pump: Pump) -> None:
        """See :class:`.pump.Listener`."""
        self._maker.ended(pump)
