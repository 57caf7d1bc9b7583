"""When frames go by a group: from a step boundary on, once both ends have it; else over tcp."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.agent.transport.process_group.faulty import Orders
from tests.agent.transport.process_group.pair import FENCE, A, B, check, frame, limits, pair, switch

from bamboo_agent.payloads.frames import Frame, Lane
from bamboo_agent.transport import wire
from bamboo_agent.transport.process_group import groups, maker
from bamboo_agent.transport.process_group.sender import State
from bamboo_core.model.ids import Fence
from bamboo_sim.fleet.switches import group_switch


@pytest.fixture
def ends():
    made = pair()
    yield made
    for end in made:
        end.transport.close()


def test_a_pair_begins_on_tcp_and_switches_at_the_next_step(ends):
    a, b = ends
    switch(a, b)
    a.transport.send(B, frame(0, 1))
    b.frames(2)
    assert a.maker.sent_pieces == 0
    for index in range(5):
        a.transport.send(B, frame(1, index))
    for found in b.frames(7):
        check(found)
    assert a.maker.sent_pieces == 5
    a.wait(lambda: a.transport.is_idle)  # a group counts what the peer has confirmed
    (sent,) = a.transport.sent  # whatever carries it
    assert sent.boundary_bytes == sum(found.num_bytes for found in b.frames(7))
    assert sent.group_bytes == sum(found.num_bytes for found in b.frames(7)[2:])
    assert [found.item.index for found in b.frames(7)] == [900, 1, 0, 1, 2, 3, 4]


def test_both_directions_have_a_group_of_their_own(ends):
    a, b = ends
    switch(a, b)
    switch(b, a)
    for _ in range(3):
        a.transport.send(B, frame(1, 1))
        b.transport.send(A, frame(1, 2))
    for found in (*a.frames(4), *b.frames(4)):
        check(found)
    assert (a.maker.sent_pieces, b.maker.sent_pieces) == (3, 3)


def test_small_tensors_stay_on_tcp(ends):
    a, b = ends
    switch(a, b)
    a.transport.send(B, frame(1, 1, size=4))
    b.frames(2)
    assert a.maker.sent_pieces == 0


def test_a_pair_without_large_tensors_makes_no_group(ends):
    a, b = ends
    a.transport.send(B, frame(0, size=4))
    b.frames(1)
    assert a.sender(B).state is State.NONE


def test_buffers_are_given_back_when_the_peer_has_them(ends):
    a, b = ends
    switch(a, b)
    sent = [frame(1, index, bulk=True) for index in range(4)]
    for each in sent:
        a.transport.send(B, each)
    b.frames(5)
    a.wait(lambda: a.transport.is_idle)
    assert [each.owner.lent for each in sent] == [0, 0, 0, 0]


def test_groups_with_a_kill_switch_are_made_like_others(monkeypatch):
    """A fleet whose groups fail goes on over tcp, so its tests would not see that."""
    asked = []

    class Switch:
        def die_if_armed(self, text):
            asked.append(text)

    monkeypatch.setattr(groups, "FACTORIES", dict(groups.FACTORIES))
    monkeypatch.setattr(maker, "FACTORIES", groups.FACTORIES)
    monkeypatch.setattr(maker, "Rendezvous", maker.Rendezvous)
    group_switch.install(Switch())
    a, b = pair(backend="gloo")
    try:
        switch(a, b)
        a.transport.send(B, frame(1, 1))
        b.frames(2)
        assert a.maker.sent_pieces == 1
    finally:
        a.transport.close()
        b.transport.close()
    moments = {f"{moment} {name}" for moment in group_switch.MOMENTS for name in group_switch.NAMES}
    assert set(asked) >= {x for x in moments if "MAKE" in x}


FRAMES = st.lists(
    st.tuples(st.booleans(), st.lists(st.sampled_from([0, 1, 5, 1000, 3000]), max_size=3)),
    min_size=1,
    max_size=12,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(FRAMES)
def test_frames_of_any_kind_arrive_whole_and_in_the_order_of_their_lane(kinds):
    """Small and large tensors in one frame, split into pieces, while tcp carries the rest."""
    sent = []
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(wire, "PIECE_BYTES", (5000, 3000))
        a, b = pair(limits=limits(min_bytes=1000))
        switch(a, b)
        for index, (bulk, sizes) in enumerate(kinds):
            item = frame(1, index, size=1, bulk=bulk).item
            tensors = tuple(None if n == 5 else torch.arange(n) + index for n in sizes)
            sent.append(Frame(item, FENCE, meta={"n": index}, tensors=tensors))
            a.transport.send(B, sent[-1])
        found = b.frames(1 + len(sent))[1:]
    for lane in Lane:
        of_lane = [f for f in found if f.lane is lane]
        expected = [f for f in sent if f.lane is lane]
        assert [f.item for f in of_lane] == [f.item for f in expected]
        for one, other in zip(of_lane, expected, strict=True):
            for x, y in zip(one.tensors, other.tensors, strict=True):
                assert (x is None and y is None) or torch.equal(x, y)
    for end in (a, b):
        end.transport.close()


@pytest.mark.parametrize("late", [0, 1])
def test_a_group_that_is_not_ready_in_time_changes_nothing(late):
    orders = [Orders(), Orders()]
    orders[late].may_make.clear()
    a, b = pair(limits=limits(make_s=0.2))
    a.maker._factory, b.maker._factory = orders[0].factory, orders[1].factory
    for step in range(4):
        a.transport.send(B, frame(step))
    for found in b.frames(4):
        check(found)
    assert a.maker.sent_pieces == 0
    orders[late].may_make.set()
    for end in (a, b):
        end.transport.close()


def test_agents_that_share_a_gpu_stay_on_tcp():
    a, b = pair(gpu="GPU-1")
    a.transport.send(B, frame(0))
    b.frames(1)
    a.wait(lambda: a.sender(B)._spent == FENCE and a.sender(B).state is State.NONE)
    a.transport.send(B, frame(1))
    check(b.frames(2)[1])
    assert a.maker.sent_pieces == 0
    for end in (a, b):
        end.transport.close()


def test_a_new_plan_begins_on_tcp_again_and_makes_its_own_group(ends):
    a, b = ends
    switch(a, b)
    a.transport.send(B, frame(1))
    b.frames(2)
    later = Fence(0, 1, 2)
    a.join(b.peer, fence=later)
    b.join(a.peer, fence=later)
    a.transport.send(B, frame(2, fence=later))
    b.frames(3)
    assert a.maker.sent_pieces == 1
    a.wait(lambda: a.sender(B).state in (State.READY, State.NONE))
    if a.sender(B).state is State.NONE:  # the old group had not been settled yet
        a.transport.send(B, frame(3, fence=later))
        b.frames(4)
        a.reach(State.READY, B)
    a.transport.send(B, frame(9, fence=later))
    b.wait(lambda: b.events[-1].frame.item.step == 9)
    check(b.events[-1].frame)
    assert a.maker.sent_pieces == 2
