"""Frames as bytes: round trip under any cutting, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bamboo_agent.payloads.frames import Frame, Lane
from bamboo_agent.transport.wire import (
    SEGMENT,
    LaneReader,
    WireError,
    decode_header,
    encode_header,
    segments,
)
from bamboo_core.model.ids import Fence
from bamboo_core.model.items import Item
from bamboo_core.protocol.messages import CommitRecord

OUT = Item.out(3, 2, 5)
SUM = Item.sum(3, (2, 4), (5, 6))


def example(item, numbers=7):
    tensors = (
        torch.arange(float(numbers)).reshape(-1, 1),
        None,
        torch.tensor(3, dtype=torch.int64),
    )
    commit = CommitRecord(2, 0.1, 1 / 3, True, 0.7)
    return Frame(item, Fence(1, 2, 3), commit, {"losses": {"1": 0.1}}, tensors)


def test_a_commit_says_only_what_an_older_agent_knows_unless_there_is_more():
    plain = json.loads(encode_header(example(Item.commit(2)))[4:])["c"]
    assert plain.keys() == {
        *("step", "loss", "grad_norm", "finite", "validation_loss", "culprit"),
        *("skipped", "skipped_in_row"),
    }
    commit = CommitRecord(2, 0.1, targets=0, metrics={"a": 0.5}, validation_metrics={"b": 1 / 3})
    commit = replace(commit, group_norms=(0.5, 1 / 3))
    again = decode_header(encode_header(Frame(Item.commit(2), Fence(1, 2, 3), commit))[4:])
    assert again.commit == commit


def assert_same(a, b):
    assert (a.item, a.fence, a.commit, a.meta) == (b.item, b.fence, b.commit, b.meta)
    for x, y in zip(a.tensors, b.tensors, strict=True):
        assert (x is None and y is None) or (torch.equal(x, y) and x.dtype == y.dtype)


def feed(data, cuts):
    """Give the bytes of one lane to a reader, at most ``cuts`` bytes at a time."""
    reader, at, frames = LaneReader(), 0, []
    while at < len(data):
        for limit in cuts:
            target = reader.target()[: min(limit, len(data) - at)]
            target[:] = data[at : at + len(target)]
            at += len(target)
            frames += reader.filled(len(target))
            if at == len(data):
                break
    return reader, frames


def lane_bytes(frame):
    return b"".join(bytes(piece) for segment in segments(frame) for piece in segment[1:])


@given(st.lists(st.integers(1, 40), min_size=1, max_size=9))
def test_frames_survive_any_cutting(cuts):
    sent = [example(OUT), example(OUT, 0), example(OUT, 100)]
    reader, frames = feed(b"".join(map(lane_bytes, sent)), cuts)
    for a, b in zip(sent, frames, strict=True):
        assert_same(a, b)
    assert reader.is_between_frames


def test_bulk_is_cut_and_boundary_is_not():
    big = 1_000_000
    assert example(SUM).lane is Lane.BULK
    assert len(list(segments(example(SUM, big)))) > 3
    assert len(list(segments(example(OUT, big)))) == 1
    for segment in segments(example(SUM, big)):
        _, length = SEGMENT.unpack(segment[0])
        assert length == sum(map(len, segment[1:]))
    assert_same(feed(lane_bytes(example(SUM, big)), [1 << 16])[1][0], example(SUM, big))


@pytest.mark.parametrize(
    "header",
    [
        b"no json",
        b"[]",
        b'{"i":"out[2] m5 @3"}',
        b'{"i":"nothing","f":[0,0,0],"t":[]}',
        b'{"i":"out[2] @3","f":[0,0,0],"t":[["save",[1]]]}',
        b'{"i":"out[2] @3","f":[0,0,0],"t":[["float32",[-1]]]}',
        b'{"i":"out[2] @3","f":[0,0],"t":[],"c":{"nonsense":1}}',
    ],
)
def test_a_malformed_header_is_refused(header):
    with pytest.raises(WireError, match="malformed"):
        decode_header(header)


def test_an_absurd_length_is_refused():
    reader = LaneReader()
    reader.target()[:] = b"\xff\xff\xff\xff"
    with pytest.raises(WireError, match="claims 4294967295 bytes"):
        reader.filled(4)


def test_a_header_makes_room_for_the_tensors():
    sent, found = example(OUT, 5), decode_header(encode_header(example(OUT, 5))[4:])
    shapes = [None if t is None else (t.shape, t.dtype) for t in found.tensors]
    assert shapes == [None if t is None else (t.shape, t.dtype) for t in sent.tensors]
    assert found.num_bytes == sent.num_bytes == 5 * 4 + 8
