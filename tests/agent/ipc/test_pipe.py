"""The pipe between supervisor and worker, and the progress that they share."""

from __future__ import annotations

import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo_agent.ipc.pipe import MAX_MESSAGE_BYTES, Pipe, PipeClosedError
from bamboo_agent.ipc.shared_progress import SharedProgress


def pair() -> tuple[Pipe, Pipe]:
    left, right = socket.socketpair()
    return Pipe(left), Pipe(right)


@given(st.lists(st.binary(max_size=300), max_size=10))
def test_messages_come_whole_and_in_order(messages: list[bytes]) -> None:
    left, right = pair()
    for message in messages:
        left.send(message)
    assert right.receive() == messages
    left.close()
    with pytest.raises(PipeClosedError):
        right.receive()
    right.close()


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=5), st.integers(1, 7))
def test_messages_that_come_in_pieces(messages: list[bytes], size: int) -> None:
    raw, theirs = socket.socketpair()
    pipe = Pipe(theirs)
    stream = b"".join(len(m).to_bytes(4, "big") + m for m in messages)
    found: list[bytes] = []
    for at in range(0, len(stream), size):
        raw.send(stream[at : at + size])
        found += pipe.receive()
    assert found == messages
    raw.close()
    pipe.close()


def test_a_large_message_waits_until_it_is_read() -> None:
    left, right = pair()
    message = os.urandom(3 << 20)
    left.send(message)
    assert left.wants_write
    found: list[bytes] = []
    while not found:
        found += right.receive()
        left.flush()
    assert found == [message]
    assert not left.wants_write
    left.close()
    right.close()


def test_what_came_before_the_end_is_handed_out_first() -> None:
    left, right = pair()
    left.send(b"last words")
    left.close()
    assert right.receive() == [b"last words"]
    with pytest.raises(PipeClosedError):
        right.receive()
    right.close()


def test_sending_after_the_other_side_has_closed() -> None:
    left, right = pair()
    right.close()
    with pytest.raises(PipeClosedError):
        left.send(b"x")
    left.close()


def test_an_absurd_length_is_refused() -> None:
    raw, theirs = socket.socketpair()
    raw.send((MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"))
    pipe = Pipe(theirs)
    with pytest.raises(PipeClosedError, match="not the pipe"):
        pipe.receive()
    with pytest.raises(ValueError, match="at most"):
        pipe.send(bytes(MAX_MESSAGE_BYTES + 1))
    raw.close()
    pipe.close()


def test_progress_is_shared() -> None:
    ours = SharedProgress.create()
    theirs = SharedProgress(os.dup(ours.fd))
    theirs.progress, theirs.step, theirs.longest_s = 41, -1, 0.25
    assert (ours.progress, ours.step, ours.longest_s) == (41, -1, 0.25)
    ours.close()
    theirs.close()
