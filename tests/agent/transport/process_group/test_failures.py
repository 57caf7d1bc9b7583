"""Groups that hang or fail, and peers that die: nothing waits, nothing is lost, no bit changes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import pytest
import torch
from tests.agent.transport.process_group.faulty import Orders
from tests.agent.transport.process_group.pair import (
    DEADLINE_S,
    A,
    B,
    End,
    check,
    frame,
    limits,
    pair,
    switch,
)

from bamboo_agent.transport.base import Arrived, Broken
from bamboo_agent.transport.process_group import groups
from bamboo_agent.transport.process_group.sender import UNDER_WAY_BYTES, State
from bamboo_core.model.ids import Fence
from bamboo_core.protocol.messages import Peer
from bamboo_sim.workers import process_fleet

LATER = Fence(0, 1, 2)


def faulty(one: Orders, other: Orders) -> tuple[End, End]:
    """Ends with a group that is ready and begins with the next step."""
    a, b = pair()
    a.maker._factory, b.maker._factory = one.factory, other.factory
    switch(a, b)
    return a, b


def close(*ends: End) -> None:
    for end in ends:
        begun = time.monotonic()
        end.transport.close()
        assert time.monotonic() - begun < DEADLINE_S / 4


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("end", ["sender", "receiver"])
def test_a_group_that_fails_is_replaced_by_tcp_and_nothing_is_lost(end, at):
    bad = Orders(fails=at)
    a, b = faulty(*((bad, Orders()) if end == "sender" else (Orders(), bad)))
    sent = [frame(1, index, bulk=index % 2 == 0) for index in range(8)]
    for each in sent:
        a.transport.send(B, each)
    for found in b.frames(9):
        check(found)
    a.wait(lambda: a.transport.is_idle)
    assert [each.owner.lent for each in sent] == [0] * 8
    before = a.maker.sent_pieces
    a.transport.send(B, frame(2))
    check(b.frames(10)[9])
    assert a.maker.sent_pieces == before
    assert not a.events
    close(a, b)


@pytest.mark.parametrize("end", ["sender", "receiver"])
def test_a_new_plan_in_the_middle_of_a_message_abandons_the_group(end):
    """The old frame comes over tcp, so its link stays whole; the new plan's follow."""
    stuck = Orders(hangs=1, writes_late=True)
    a, b = faulty(*((stuck, Orders()) if end == "sender" else (Orders(), stuck)))
    for index in range(3):
        a.transport.send(B, frame(1, index))
    b.frames(2)
    b.wait(stuck.is_hanging.is_set)
    begun = time.monotonic()
    a.join(b.peer, fence=LATER)
    b.join(a.peer, fence=LATER)
    a.transport.send(B, frame(2, fence=LATER))
    assert time.monotonic() - begun < DEADLINE_S / 4  # nobody waits for the one that hangs
    b.wait(lambda: b.events[-1].frame.fence == LATER)
    stuck.go_on.set()
    a.wait(lambda: not (a.maker._abandoned or b.maker._abandoned))
    assert stuck.written or end == "sender"
    for event in b.events:
        check(event.frame)
    assert not a.events
    close(a, b)


def test_what_an_abandoned_thread_writes_reaches_no_frame():
    stuck = Orders(hangs=0, writes_late=True)
    a, b = faulty(Orders(fails=0, after=stuck), stuck)
    for index in range(6):
        a.transport.send(B, frame(1, index))
    _let_go(stuck, a, b, frames=7)


def _let_go(stuck, a, b, *, frames):
    """The abandoned thread writes once these frames have come. They must not change."""
    found = b.frames(frames)
    stuck.go_on.set()
    b.wait(lambda: not b.maker._abandoned)
    assert stuck.written
    for each in found:
        check(each)
    close(a, b)


def test_memory_that_an_abandoned_thread_may_write_is_not_used_again():
    """Its frame has moved and is gone; frames of the same size come, then the thread writes."""
    stuck = Orders(hangs=0, writes_late=True)
    a, b = faulty(Orders(fails=0, after=stuck), stuck)
    b.events.clear()
    for index in range(3):
        a.transport.send(B, frame(1, index))
        check(b.frames(1).pop())
        b.events.clear()
    later = [frame(2, index) for index in range(3)]
    for each in later:
        a.transport.send(B, each)
    _let_go(stuck, a, b, frames=3)


@pytest.mark.parametrize("bulk", [False, True])
def test_only_so_much_is_under_way_before_the_peer_confirms(bulk):
    stuck = Orders(hangs=0)
    a, b = faulty(Orders(), stuck)
    limit, piece = UNDER_WAY_BYTES[int(bulk)], 1 << 20
    for index in range(limit // piece + 8):
        a.transport.send(B, frame(1, index, bulk=bulk))
    small = frame(1, 901, size=4, bulk=not bulk)
    a.transport.send(B, small)
    b.wait(lambda: b.events[-1].frame.item == small.item)  # the other lane does not wait
    under_way = sum(len(each.memory) for each in a.sender(B)._under_way)
    assert under_way == limit
    stuck.go_on.set()
    for end in (a, b):
        end.join(*[other.peer for other in (a, b) if other is not end], fence=LATER)
    close(a, b)


def test_a_buffer_stays_lent_while_an_abandoned_thread_may_read_it():
    """The link broke, and the peer may not know that when the thread's bytes reach it."""
    stuck = Orders(hangs=0)
    a, b = faulty(stuck, Orders())
    sent = frame(1)
    a.transport.send(B, sent)
    a.wait(lambda: stuck.operations == 1)
    b.transport.close()
    a.wait(lambda: a.events)
    assert isinstance(a.events[0], Broken)
    assert sent.owner.lent == 1
    stuck.go_on.set()
    a.wait(lambda: sent.owner.lent == 0)
    close(a)


def test_abandoned_threads_are_few():
    stuck = Orders(hangs=0)
    a, b = pair(limits=limits(max_abandoned=1))
    a.maker._factory = stuck.factory
    switch(a, b)
    a.transport.send(B, frame(1))
    a.wait(lambda: stuck.operations == 1)
    for epoch in (2, 3):
        fence = Fence(0, 1, epoch)
        a.join(b.peer, fence=fence)
        b.join(a.peer, fence=fence)
        for step in (2, 3):
            a.transport.send(B, frame(step, fence=fence))
            b.wait(lambda at=(fence, step): (at[0], at[1]) == place(b.events[-1]))
        assert a.sender(B).state is State.NONE
    assert len(a.maker._abandoned) == 1
    stuck.go_on.set()
    close(a, b)


def place(event: Arrived) -> tuple[Fence, int]:
    return event.frame.fence, event.frame.item.step


def serve(pipe) -> None:
    """An agent b in a process of its own. It takes what comes until it is killed."""
    torch.set_num_threads(1)
    b = End(B)
    pipe.send(b.peer)
    b.join(pipe.recv())
    while True:
        b.transport.poll()
        time.sleep(0.001)


def test_a_peer_killed_in_the_middle_of_a_message_is_noticed_at_once(monkeypatch):
    """gloo itself may wait for its time-out. tcp sees the death."""
    monkeypatch.setattr(groups, "OPERATION_S", 3.0)
    ours, theirs = multiprocessing.Pipe()
    process = process_fleet.context().Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    peer: Peer = ours.recv()
    a = End(A)
    ours.send(a.peer)
    a.join(peer)
    a.transport.send(B, frame(0))
    a.reach(State.READY, B)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    sent = [frame(1, index, size=8 << 20, bulk=True) for index in range(2)]
    for each in sent:
        a.transport.send(B, each)
    a.wait(lambda: a.sender(B)._under_way)
    begun = time.monotonic()
    os.kill(process.pid, signal.SIGKILL)
    a.wait(lambda: a.events)
    noticed_s = time.monotonic() - begun
    (event,) = a.events
    assert isinstance(event, Broken)
    assert noticed_s < DEADLINE_S / 2  # long before the group's own time-out
    process.join()
    a.wait(lambda: not a.maker._abandoned)  # the thread ends, at the latest at its time-out
    assert [each.owner.lent for each in sent] == [0, 0]
    close(a)
