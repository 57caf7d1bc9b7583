"""The two ends of a group, each alone: what they make, refuse, and no longer listen to."""

from __future__ import annotations

import queue
import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
from tests.agent.transport.process_group.pair import B, frame, limits, pair, switch

from bamboo_agent.transport import incoming
from bamboo_agent.transport.process_group.control import Control, ControlError, Do
from bamboo_agent.transport.process_group.maker import Maker, Tell
from bamboo_agent.transport.process_group.pump import Pump
from bamboo_agent.transport.process_group.receiver import Receiver
from bamboo_agent.transport.process_group.rendezvous import Rendezvous, RendezvousError
from bamboo_agent.transport.process_group.sender import Held, Sender, State
from bamboo_agent.transport.wire import WireError
from bamboo_core.model.ids import Fence

OLD, FIRST, SECOND = Fence(0, 1, 1), Fence(0, 1, 2), Fence(0, 1, 3)
LIMIT_S = 20.0
"""What takes longer hangs."""


class Idle:
    """A group whose operations end at once. discarded: whether it was."""

    def __init__(self, recipe=None) -> None:
        self.is_discarded = False

    def send(self, memory: torch.Tensor):
        return lambda: None

    receive = send

    def discard(self) -> None:
        self.is_discarded = True


class World:
    """What an end says to its peer, and what its threads want to tell it."""

    def __init__(self, **changed) -> None:
        self.said: list[Control] = []
        self.posts: queue.SimpleQueue = queue.SimpleQueue()
        self.taken = 0
        self.maker = Maker(
            "gloo", device=torch.device("cpu"), limits=limits(**changed), factory=Idle
        )
        self.tell = Tell(self.posts.put, self.said.append)

    def receiver(self) -> Receiver:
        return Receiver(self.maker, str, lambda: FIRST, self.tell, self._count)

    def sender(self) -> Sender:
        return Sender(self.maker, B, str, self.tell, lambda _: None)

    def _count(self, count: int) -> None:
        self.taken += count

    def hear(self) -> None:
        """The next word of a thread."""
        self.posts.get(timeout=LIMIT_S)()

    def kinds(self) -> list[Do]:
        return [message.do for message in self.said]


def offer(fence: Fence) -> Control:
    return Control(Do.OFFER, fence, backend="gloo")


def place(size: int):
    """Where a piece belongs."""
    assembly = SimpleNamespace(move=lambda: None)
    memory = memoryview(bytearray(size))
    return SimpleNamespace(assembly=assembly, memory=memory, size=size, fill=lambda: None)


# ---------------------------------------------------------------- the receiver


def test_an_offer_of_an_old_plan_is_refused():
    world = World()
    receiver = world.receiver()
    receiver.hear(offer(OLD))
    assert world.said == [Control(Do.REFUSE, OLD, why="its plan is old")]
    assert receiver._attempt is None


def test_a_receiver_with_too_many_threads_that_hang_refuses():
    world = World(max_abandoned=0)
    world.receiver().hear(offer(FIRST))
    assert world.said == [Control(Do.REFUSE, FIRST, why="0 abandoned groups still hang")]


def test_a_second_offer_before_the_end_of_the_first_group_is_junk():
    receiver = World().receiver()
    receiver.hear(offer(FIRST))
    with pytest.raises(ControlError, match="before the last group was dropped"):
        receiver.hear(offer(SECOND))
    receiver.end()


def test_keys_of_another_plan_do_not_reach_the_rendezvous():
    receiver = World().receiver()
    receiver.hear(offer(FIRST))
    store = receiver._attempt.store
    receiver.hear(Control(Do.SET, SECOND, key="theirs", value=b"1"))
    assert not store.check(["theirs"])
    receiver.hear(Control(Do.SET, FIRST, key="theirs", value=b"1"))
    assert store.check(["theirs"])
    receiver.end()


def test_the_end_of_another_plan_s_group_ends_no_group():
    world = World()
    receiver = world.receiver()
    receiver.hear(offer(SECOND))
    receiver.hear(Control(Do.DROP, FIRST, why="late"))
    assert Do.DROPPED not in {message.do for message in world.said}
    receiver.hear(Control(Do.DROP, SECOND, why="now"))
    assert Do.DROPPED in {message.do for message in world.said}


def test_a_piece_before_the_group_exists_is_junk():
    receiver = World().receiver()
    receiver.hear(offer(FIRST))
    with pytest.raises(ControlError, match="a group that does not exist yet"):
        receiver.expect(place(4))
    receiver.end()


def test_a_repair_of_another_size_is_junk():
    receiver = World().receiver()
    receiver.expect(place(4))
    with pytest.raises(WireError, match="a repair of 5 bytes for 4"):
        incoming._Repair(5, receiver)
    incoming._Repair(4, receiver)


def test_a_receiver_counts_the_pieces_of_one_group():
    world = World()
    receiver = world.receiver()
    for fence, pieces in ((FIRST, 2), (SECOND, 0)):
        receiver.hear(offer(fence))
        pump = receiver._attempt.pump
        receiver.made(pump)
        for _ in range(pieces):
            receiver.expect(place(4))
            receiver.done(pump)
        receiver.failed(pump, "by order")
        assert world.said[-1] == Control(Do.DROPPED, fence, pieces=pieces, why="by order")
    assert world.taken == 2


def test_a_receiver_does_not_listen_to_the_thread_of_its_last_group():
    world = World()
    receiver = world.receiver()
    receiver.hear(offer(FIRST))
    old = receiver._attempt.pump
    receiver.made(old)
    receiver.adopt(SECOND)
    receiver.hear(offer(SECOND))
    world.said.clear()
    receiver.made(old)
    receiver.failed(old, "late")
    assert not world.said
    with pytest.raises(ControlError):
        receiver.expect(place(4))  # its own thread has not made the group yet
    receiver.made(receiver._attempt.pump)
    receiver.expect(place(4))
    receiver.done(old)
    assert world.taken == 0
    receiver.end()


# ---------------------------------------------------------------- the sender


def active(world: World, fence: Fence = FIRST) -> Sender:
    """A sender whose group is used."""
    sender = world.sender()
    sender.takes(frame(0, fence=fence))
    sender.made(sender._attempt.pump)
    sender.hear(Control(Do.READY, fence))
    assert sender.takes(frame(1, fence=fence))
    return sender


def test_a_sender_makes_one_group_in_each_plan():
    world = World()
    sender = world.sender()
    for fence, offers in ((FIRST, 1), (FIRST, 1), (SECOND, 2)):
        for step in (0, 1):
            assert not sender.takes(frame(step, fence=fence))
        if sender.state is State.MAKING:
            sender.hear(Control(Do.REFUSE, fence, why="by order"))
        assert world.kinds().count(Do.OFFER) == offers
        assert sender.state is State.NONE


def test_a_sender_makes_no_group_while_pieces_of_the_last_one_are_to_be_sent_again():
    """The receiver takes repairs in the order of the pieces that it lacks."""
    world = World()
    sender = active(world)
    sender.put(Held(frame(1)), 0, memoryview(bytearray(4)))
    sender.hear(Control(Do.DROPPED, FIRST, pieces=0))
    sender.takes(frame(2, fence=SECOND))
    assert world.kinds().count(Do.OFFER) == 1
    assert sender.next_lost() is not None
    sender.takes(frame(2, 1, fence=SECOND))
    assert world.kinds().count(Do.OFFER) == 2
    sender.end()


def test_a_sender_does_not_listen_to_the_thread_of_its_last_group():
    world = World()
    sender = active(world)
    old = sender._attempt.pump
    sender.adopt(SECOND)
    sender.hear(Control(Do.DROPPED, FIRST))
    sender.takes(frame(0, fence=SECOND))
    sender.failed(old, "late")
    assert sender.state is State.MAKING
    sender.hear(Control(Do.READY, SECOND))
    sender.made(old)
    assert sender.state is State.MAKING
    sender.made(sender._attempt.pump)
    assert sender.state is State.READY
    sender.end()


# ---------------------------------------------------------------- threads


@pytest.mark.parametrize("is_used", [False, True])
def test_a_thread_discards_its_group_before_it_ends(is_used):
    """NCCL's kernels would run for ever."""
    world, group, over = World(), Idle(), threading.Event()
    heard: list[str] = []
    listener = SimpleNamespace(
        made=lambda pump: heard.append("made"),
        done=lambda pump: heard.append("done"),
        failed=lambda pump, why: heard.append(why),
        ended=lambda pump: heard.append(f"ended, discarded: {group.is_discarded}"),
    )
    pump = Pump(
        lambda: group, is_sender=False, listener=listener, post=world.posts.put, is_abandoned=over
    )
    world.hear()
    if is_used:
        pump.put(torch.zeros(1))
        world.hear()
    pump.abandon()
    world.hear()
    assert heard == ["made", *["done"] * is_used, "ended, discarded: True"]


def test_the_end_of_a_link_ends_the_thread_of_its_receiver():
    a, b = pair()
    switch(a, b)
    (link,) = b.transport._loop._incoming
    thread = link.group._attempt.pump._thread
    a.transport.close()
    b.wait(lambda: not thread.is_alive())
    b.wait(lambda: not b.maker._abandoned)
    b.transport.close()


def test_the_end_of_a_rendezvous_wakes_who_waits():
    store, failed = Rendezvous(lambda *_: None, 600), queue.SimpleQueue()

    def wait() -> None:
        try:
            store.get("theirs")
        except RendezvousError as error:
            failed.put(str(error))

    waiting = threading.Event()
    change = store._change.wait

    def noted(left: float) -> bool:
        waiting.set()
        return change(left)

    store._change.wait = noted
    threading.Thread(target=wait, daemon=True).start()
    assert waiting.wait(LIMIT_S)
    store.end()
    assert "abandoned" in failed.get(timeout=LIMIT_S)


def test_no_wait_is_longer_than_the_rendezvous_allows():
    store = Rendezvous(lambda *_: None, 0.01)
    with pytest.raises(RendezvousError, match=r"waited 0\.01 s"):
        store.wait(["theirs"], timedelta(seconds=600))
