"""Both ends of a link over a pipe that passes any number of bytes at a time, and ends anywhere."""

from __future__ import annotations

from collections import deque

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bamboo_agent.payloads.frames import Frame, Lane
from bamboo_agent.transport import links
from bamboo_agent.transport.handshake import Greeting
from bamboo_agent.transport.incoming import Incoming
from bamboo_agent.transport.links import Outgoing
from bamboo_agent.transport.traffic import Traffic
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item

A, B = AgentId("a"), AgentId("b")
FENCE = Fence(0, 1, 1)
KEY = b"key of b"
WINDOW_BYTES = 1 << 12


class End:
    """One end of a connection. ``sent`` is on its way until the pipe passes it on."""

    has_received, is_flushed, binding, is_partial = False, True, b"", False

    def __init__(self) -> None:
        self.sent, self.here = bytearray(), bytearray()
        self.received, self.is_closed = 0, False

    def send(self, pieces: list[memoryview]) -> int:
        data = b"".join(pieces)[:700]  # a part, as a full socket takes
        self.sent += data
        return len(data)

    def receive(self, into: memoryview) -> int:
        if not self.here and not self.is_closed:
            raise BlockingIOError
        count = min(len(into), len(self.here))
        into[:count] = self.here[:count]
        del self.here[:count]
        self.received += count
        return count

    def wants_write(self, *, has_more: bool) -> bool:
        return has_more

    def flush(self) -> None: ...
    def close(self) -> None: ...
    def fileno(self) -> int:
        return -1


class Link:
    """A sender, a receiver, and what lies between them."""

    def __init__(self) -> None:
        self.left, self.right = End(), End()
        greeting = Greeting(A, B, FENCE, "nonce")
        self.sender = Outgoing(self.left, "job", greeting, KEY, Traffic(), "")
        self.arrived = deque[Frame]()
        self.receiver = Incoming(
            self.right, job="job", admit=lambda _: KEY, deliver=lambda _, x: self.arrived.append(x)
        )

    def turn(self) -> None:
        """Do as the transport's thread does at both ends."""
        self.sender.on_readable()
        self.sender.on_writable()
        self.receiver.on_readable()
        self.receiver.on_writable()

    def carry(self, count: int) -> None:
        """Pass so many bytes on, in each direction."""
        for source, target in ((self.left, self.right), (self.right, self.left)):
            target.here += source.sent[:count]
            del source.sent[:count]
        self.turn()

    def queue(self, frame: Frame) -> None:
        self.sender.queues[frame.lane].append(frame)
        self.sender.on_writable()

    def take(self) -> list[Frame]:
        """The worker takes what has come."""
        taken = list(self.arrived)
        self.arrived.clear()
        for frame in taken:
            due = self.receiver.take(frame.lane, frame.num_bytes)
            if due:
                self.receiver.grant(frame.lane, due)
        return taken

    def settle(self) -> list[Frame]:
        """All that comes while nothing is in the way any more."""
        taken = self.take()
        for _ in range(1000):
            self.carry(1 << 20)
            taken += self.take()
        return taken


def frame(lane: Lane, index: int, floats: int) -> Frame:
    item = Item.sum(0, (1, 2), (index, index + 1)) if lane is Lane.BULK else Item.out(0, 1, index)
    made = Frame(item, FENCE, tensors=(torch.full((floats,), float(index)),))
    assert made.lane is lane
    return made


class Links(RuleBasedStateMachine):
    """Frames of a lane arrive whole, in order and once, or not at all because the link has ended.

    While nothing is half-way, nothing is said to be; what is half-way is said to be so.
    """

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(links, "WINDOW_BYTES", WINDOW_BYTES)
        self.link = Link()
        self.queued: dict[Lane, list[Frame]] = {lane: [] for lane in Lane}
        self.taken: dict[Lane, list[Frame]] = {lane: [] for lane in Lane}
        self.is_cut = False
        self.number = 0

    @precondition(lambda self: not self.is_cut)
    @rule(lane=st.sampled_from(list(Lane)), floats=st.integers(0, 900))
    def send(self, lane: Lane, floats: int) -> None:
        self.number += 1
        made = frame(lane, self.number, floats)
        self.queued[lane].append(made)
        self.link.queue(made)

    @precondition(lambda self: not self.is_cut)
    @rule(count=st.one_of(st.integers(1, 9), st.integers(1, 5000)))
    def carry(self, count: int) -> None:
        self.link.carry(count)

    @rule()
    def take(self) -> None:
        self.note(self.link.take())

    @precondition(lambda self: not self.is_cut)
    @rule(count=st.integers(0, 3000))
    def cut(self, count: int) -> None:
        """The connection ends after so many bytes more."""
        self.is_cut = True
        right = self.link.right
        right.here += self.link.left.sent[:count]
        right.is_closed = True
        with pytest.raises(ConnectionResetError):
            self.link.receiver.on_readable()

    def note(self, frames: list[Frame]) -> None:
        for found in frames:
            self.taken[found.lane].append(found)

    @invariant()
    def frames_are_whole_and_in_order(self) -> None:
        for lane in Lane:
            taken = self.taken[lane]
            assert [x.item for x in taken] == [x.item for x in self.queued[lane][: len(taken)]]
            for found in taken:
                (tensor,) = found.tensors
                assert tensor is not None
                assert bool((tensor == float(found.item.index)).all())

    @invariant()
    def bytes_are_counted(self) -> None:
        assert self.link.receiver.received == self.link.right.received

    def teardown(self) -> None:
        if not self.is_cut:
            self.note(self.link.settle())
            for lane in Lane:
                assert len(self.taken[lane]) == len(self.queued[lane]), "a frame waits for ever"
            assert not self.link.receiver.is_coming
            assert self.link.sender.is_idle
        self.patch.undo()


TestLinks = Links.TestCase
TestLinks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_part_of_a_frame_is_coming_at_every_byte_but_the_last() -> None:
    link = Link()
    link.settle()
    for lane in Lane:
        link.queue(frame(lane, 7, 30))
        size = len(link.left.sent)
        assert size > 120
        assert not link.receiver.is_coming
        for n in range(1, size + 1):
            link.carry(1)
            assert link.receiver.is_coming is (n < size), n
        assert [x.item.index for x in link.take()] == [7]


def test_a_frame_of_more_than_half_a_window_comes_after_one_of_a_third(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Credit for the first one is due as soon as it is taken, else the second one never begins."""
    monkeypatch.setattr(links, "WINDOW_BYTES", WINDOW_BYTES)
    link = Link()
    link.settle()
    for index, share in enumerate((0.35, 0.7, 0.35, 0.9)):
        link.queue(frame(Lane.BULK, index, int(share * WINDOW_BYTES) // 4))
        assert [x.item.index for x in link.settle()] == [index]
