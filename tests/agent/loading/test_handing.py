"""Micro-batches in the memory of another process: equal bits, kinds and layouts."""

from __future__ import annotations

import math
import os

import pytest
import torch

from bamboo_agent.data.content import content_hash
from bamboo_agent.data.needs import Part
from bamboo_agent.loading.handing import HandingError, hand_over, hand_over_record, taken
from bamboo_agent.payloads.flow import FlowError

DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
]
LAYOUTS = {
    "transposed": lambda: torch.randn(3, 5).t(),
    "channels last": lambda: torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "expanded": lambda: torch.randn(3, 1).expand(3, 4),
    "every second": lambda: torch.randn(8)[1::2],
    "a number": lambda: torch.tensor(3.5),
    "empty": lambda: torch.empty(0, 7),
    "a part": lambda: torch.randn(9, 4)[2:5],
}


def moved(value):
    (found,) = taken(hand_over({Part.INPUT: value})).values()
    return found


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype):
    value = torch.randn(7, 3).to(dtype)
    found = moved(value)
    assert found.dtype == dtype
    assert torch.equal(found, value)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    value = LAYOUTS[layout]()
    found = moved(value)
    assert (found.shape, found.stride()) == (value.shape, value.stride())
    assert torch.equal(found, value)
    assert found.storage_offset() * found.element_size() % 256 == 0


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc], ids=str)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_layouts(layout):
    value = torch.eye(4).to_sparse(layout=layout)
    found = moved(value)
    assert found.layout == layout
    assert torch.equal(found.to_dense(), value.to_dense())


def test_values_keep_their_kinds():
    value = {
        "a": (torch.ones(2), None, 3, 0.1, True, "text\ud800", [torch.zeros(1), math.inf]),
        4: {"b": (torch.arange(3),)},
    }
    found = moved(value)
    assert content_hash(found, 0) == content_hash(value, 0)
    assert [type(x) for x in found["a"]] == [type(x) for x in value["a"]]
    assert list(found) == ["a", 4]
    assert type(found[4]["b"]) is tuple
    assert math.isnan(moved((math.nan, torch.ones(1)))[0])


def test_parts_are_handed_over_as_they_are_asked_for():
    found = taken(hand_over({Part.INPUT: torch.ones(1), Part.TARGET: None}))
    assert found == {Part.INPUT: torch.ones(1), Part.TARGET: None}
    assert taken(hand_over({Part.TARGET: torch.ones(1)})).keys() == {Part.TARGET}


def test_many_tensors_are_more_than_one_call_writes():
    value = tuple(torch.full((3,), i) for i in range(2000))
    assert all(map(torch.equal, moved(value), value))


def test_records():
    record = {"error": "x", "text": "y" * 100_000}
    assert taken(hand_over_record(record)) == record


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_what_cannot_be_handed_over_is_named():
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    for value in (nested, torch.ones(1, device="meta")):
        with pytest.raises(HandingError, match=r"nested|meta"):
            hand_over({Part.INPUT: value})
    with pytest.raises(FlowError, match="a set"):
        hand_over({Part.INPUT: {1, 2}})


def test_no_descriptor_stays_open():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        moved(torch.ones(3))
    handed = hand_over({Part.INPUT: torch.ones(1000)})
    os.ftruncate(handed.memory, 300)
    with pytest.raises(EOFError):
        taken(handed)
    assert len(os.listdir("/proc/self/fd")) == before
