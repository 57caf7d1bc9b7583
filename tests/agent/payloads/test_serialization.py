"""Payloads survive their plain form, and what does not fit an item is refused."""

from __future__ import annotations

import json

import pytest
import torch

from bamboo_agent.device.buffer_pool import Buffer
from bamboo_agent.payloads.kinds import Figures, FileRecord, Slice, Sum, Vote
from bamboo_agent.payloads.serialization import SerializationError, pack, unpack
from bamboo_core.model.claims import Said
from bamboo_core.model.items import Item, Kind
from bamboo_sim.workers.fleet import CPU


@pytest.mark.parametrize(
    "payload",
    [
        Vote({1: 0.5}, {3: 1.5}, {Item.prefix(4, (0, 3), 1, 3): Said(7, 2**52 - 1, 5)}),
        FileRecord("p", "h", 3),
        0.25,
        Figures(((0.5, 3), (0.25, 1))),
        Vote({1: 0.5}, {3: Figures(((1.5, 2), (0.1, 2**53)))}),
    ],
    ids=["VOTE", "FILE", "SCORE", "SCORE-counted", "VOTE-counted"],
)
def test_plain_payloads_round_trip(payload, request):
    kind = Kind[request.node.callspec.id.removesuffix("-counted")]
    serialized = pack(payload)
    meta = json.loads(json.dumps(serialized.meta))
    assert unpack(kind, meta, serialized.tensors, CPU) == payload


@pytest.mark.parametrize("kind", [Kind.SUM, Kind.RED])
def test_sums_keep_the_losses_of_their_micro_batches(kind):
    losses = {0: 0.5, 1: Figures(((0.5, 3), (0.25, 1)))}
    tensor = torch.ones(2)
    made = Sum(losses, Buffer(tensor)) if kind is Kind.SUM else Slice(tensor, losses)
    serialized = pack(made)
    meta = json.loads(json.dumps(serialized.meta))
    assert meta["losses"] == {"0": 0.5, "1": [[0.5, 3], [0.25, 1]]}
    assert unpack(kind, meta, serialized.tensors, CPU).losses == losses


@pytest.mark.parametrize(
    ("kind", "meta", "tensors"),
    [
        (Kind.SUM, {}, (torch.zeros(2),)),
        (Kind.SUM, {"losses": {}}, ()),
        (Kind.RED, {"losses": {"x": 1}}, (torch.zeros(2),)),
        (Kind.VOTE, {"norms": {}}, ()),
        (Kind.FILE, {"nonsense": 1}, ()),
        (Kind.VER, {"names": ["a"], "extra": "{}"}, ()),
        (Kind.COMMIT, {}, ()),
    ],
)
def test_a_payload_that_does_not_fit_its_item_is_refused(kind, meta, tensors):
    with pytest.raises(SerializationError, match=f"kind {kind.name} is malformed"):
        unpack(kind, meta, tensors, CPU)
