"""The parts of a group's life: messages, the rendezvous, and what a link refuses."""

from __future__ import annotations

import sys
import threading
from datetime import timedelta

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.transport.process_group.pair import FENCE, A, B, End
from tests.agent.transport.test_tcp import enter

from bamboo_agent.transport.base import Broken
from bamboo_agent.transport.process_group.control import Control, ControlError, Do, decode, encode
from bamboo_agent.transport.process_group.groups import is_read_by_gloo
from bamboo_agent.transport.process_group.maker import Maker, Tell
from bamboo_agent.transport.process_group.rendezvous import Rendezvous, RendezvousError
from bamboo_agent.transport.process_group.sender import Sender
from bamboo_agent.transport.wire import CONTROL, GROUP, REPAIR, SEGMENT
from bamboo_core.model.ids import Fence

CONTROLS = st.builds(
    Control,
    st.sampled_from(Do),
    st.builds(Fence, *[st.integers(0, 1 << 40)] * 3),
    backend=st.text(max_size=9),
    device=st.text(max_size=9),
    key=st.text(max_size=9),
    value=st.binary(max_size=99),
    pieces=st.integers(0, 1 << 40),
    why=st.text(max_size=9),
)


@given(CONTROLS)
def test_messages_survive_the_wire(message):
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "data",
    [
        b"no json",
        b"[]",
        b'{"do":"dance","fence":[0,0,0]}',
        b'{"do":"drop"}',
        b'{"do":"drop","fence":[0,0,0,0]}',
        b'{"do":"set","fence":[0,0,0],"value":"%"}',
    ],
)
def test_malformed_messages_are_refused(data):
    with pytest.raises(ControlError, match="malformed"):
        decode(data)


OFFER = encode(Control(Do.OFFER, Fence(0, 1, 1), backend="other"))
READY = encode(Control(Do.READY, Fence(0, 1, 1)))


def control(data: bytes) -> bytes:
    return SEGMENT.pack(CONTROL, len(data)) + data


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (control(b"{}"), "malformed"),
        (control(READY), "does not say ready"),
        (SEGMENT.pack(CONTROL, 1 << 20), "1048576 bytes about a group"),
        (SEGMENT.pack(REPAIR, 4), "repair of nothing"),
        (SEGMENT.pack(GROUP, 4), "before its frame's header"),
        (SEGMENT.pack(9, 4), "segment of lane 9"),
    ],
)
def test_a_peer_that_sends_junk_is_suspected(data, why):
    b = End(B)
    b.address = b.transport._loop._listening.getsockname()
    b.join()
    with enter(b) as sock:
        sock.sendall(data)
        b.wait(lambda: b.events)
    (event,) = b.events
    assert isinstance(event, Broken)
    assert (event.peer, why in event.why) == (A, True), event.why
    b.transport.close()


def test_an_offer_of_another_backend_is_refused():
    b = End(B)
    b.address = b.transport._loop._listening.getsockname()
    b.join()
    with enter(b) as sock:
        sock.sendall(control(OFFER))
        answer = b""
        while b"not other" not in answer:
            answer += sock.recv(4096)
    assert b"refuse" in answer
    b.transport.close()


NUMBER = (1).to_bytes(8, sys.byteorder)
SOUND = NUMBER + b"h" + NUMBER + b"a" + NUMBER * 2


@pytest.mark.parametrize(
    "value",
    [
        b"",
        SOUND[:-1],
        SOUND + b"x",
        NUMBER * 2,
        bytes(8) + SOUND[8:],
        b"\xff" * 8 + SOUND[8:],
        SOUND[:9] + b"\xff" * 8 + SOUND[17:],
    ],
    ids=["empty", "short", "long", "no address", "no name", "huge name", "huge address"],
)
def test_a_value_that_gloo_would_misread_is_not_given_to_it(value):
    """It reads as far as the sizes in the value say: the process would end."""
    assert is_read_by_gloo(SOUND)
    b = End(B)
    b.address = b.transport._loop._listening.getsockname()
    b.join()
    with enter(b) as sock:
        offer = Control(Do.OFFER, FENCE, backend="gloo")
        sock.sendall(control(encode(offer)))
        sock.sendall(control(encode(Control(Do.SET, FENCE, key="0/0", value=value))))
        answer = b""
        while b"cannot be read" not in answer:
            answer += sock.recv(4096)
    assert b"dropped" in answer
    b.transport.close()


def test_taken_pieces_that_were_never_sent_are_junk():
    maker = Maker("gloo", device=torch.device("cpu"))
    sender = Sender(maker, B, str, Tell(lambda _: None, lambda _: None), lambda _: None)
    with pytest.raises(ControlError, match="1 pieces taken of 0 sent"):
        sender.taken(1)


# ---------------------------------------------------------------- the rendezvous


def test_a_rank_sees_what_either_has_set():
    told = []
    store = Rendezvous(lambda key, value: told.append((key, value)), 20)
    store.set("mine", b"1")
    threading.Timer(0.01, lambda: store.learn("theirs", b"2")).start()
    assert store.get("theirs") == b"2"
    assert (store.get("mine"), told) == (b"1", [("mine", b"1")])
    assert store.check(["mine", "theirs"])
    assert not store.check(["mine", "other"])
    assert (store.add("n", 2), store.add("n", 3), store.num_keys()) == (2, 5, 3)
    assert (store.delete_key("n"), store.delete_key("n")) == (True, False)


def test_a_rank_waits_for_a_bounded_time():
    store = Rendezvous(lambda *_: None, 20)
    with pytest.raises(RendezvousError, match=r"no value for theirs: waited 0\.01 s"):
        store.wait(["theirs"], timedelta(seconds=0.01))
    threading.Timer(0.01, store.end).start()
    with pytest.raises(RendezvousError, match="abandoned"):
        store.get("theirs")


def test_a_peer_cannot_fill_the_memory():
    store = Rendezvous(lambda *_: None, 20)
    for number in range(256):
        store.learn(str(number), b"")
    with pytest.raises(ControlError, match="256 keys"):
        store.learn("one more", b"")
