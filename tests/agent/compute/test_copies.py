"""Copies of a layer are compared every so many steps, and the worker with the wrong one ends."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from tests.agent.compute.bench import Bench

from bamboo_agent.compute.copies import COMPARE_EVERY, DivergenceError, Witness, compare
from bamboo_agent.compute.serialization import pack, unpack
from bamboo_agent.compute.sums import Slice
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item, Kind
from bamboo_core.protocol.messages import CommitRecord
from bamboo_sim.workers.fleet import CPU

A, B, C = map(AgentId, "abc")
RED = Item.red(COMPARE_EVERY, (0, 6), 0)


@pytest.fixture
def owner():
    """An agent whose layers have optimizer state and are at the version to be compared."""
    bench = Bench()
    bench.run("INIT[0:6]")
    last = COMPARE_EVERY - 1
    bench.commits[last] = CommitRecord(last, grad_norm=1.0)
    give_gradient(bench, last)
    bench.run(f"UPDATE[0:6] 0:6 @{last}")
    return bench


def give_gradient(bench, step):
    numbers = torch.ones(sum(bench.setup.sizes))
    bench.backend.accept(Item.red(step, (0, 6), 0), Slice(numbers, {}))


def reduce(bench):
    """REDUCE of the owner's only chunk; what it sends, as it arrives."""
    chunk = Slice(torch.ones(sum(bench.setup.sizes)), {})
    bench.backend.accept(Item.chunk(COMPARE_EVERY, (0, 6), 0, 0), chunk)
    bench.run(f"REDUCE[0:6] @{COMPARE_EVERY}")
    serialized = pack(bench.backend.payload(RED))
    return unpack(Kind.RED, serialized.meta, serialized.tensors, CPU)


@pytest.fixture
def replica(owner):
    bench = Bench(1)
    for layer in range(6):
        owner.give(Item.ver(COMPARE_EVERY, layer), bench)
    return bench


VOTE = f"VOTE 0:6 0:6 @{COMPARE_EVERY}"


def test_equal_copies_vote(owner, replica):
    replica.backend.accept(RED, reduce(owner))
    replica.run(VOTE)
    owner.run(VOTE)


@pytest.mark.parametrize("where", ["param", "optim"])
def test_one_flipped_bit_ends_the_holder_of_the_copy(owner, replica, where):
    replica.backend.accept(RED, reduce(owner))
    layer = replica.backend.layers[3]
    parameter = layer.parameters[0]
    tensor = parameter if where == "param" else layer.optimizer.state[parameter]["exp_avg"]
    tensor.detach().view(-1).view(torch.int32)[0] ^= 1
    with pytest.raises(
        DivergenceError,
        match=r"layer 3 on a01 differs from that on a00 in step 100 .*faulty device",
    ):
        replica.run(VOTE)
    owner.run(VOTE)


def test_a_reducer_speaks_only_for_the_version_of_the_step(owner):
    owner.backend.layers[2].version = COMPARE_EVERY - 1
    del owner.backend.layers[4]
    assert reduce(owner).witness.checksums.keys() == {0, 1, 3, 5}


def test_it_speaks_with_one_slice_and_in_few_steps(owner):
    assert reduce(owner).witness is not None
    assert reduce(owner).witness is None
    chunk = Item.chunk(COMPARE_EVERY + 1, (0, 6), 0, 0)
    owner.backend.accept(chunk, Slice(torch.ones(sum(owner.setup.sizes)), {}))
    owner.run(f"REDUCE[0:6] @{COMPARE_EVERY + 1}")
    assert owner.backend.payload(chunk._replace(kind=Kind.RED)).witness is None


def test_checksums_tell_what_an_optimizer_keeps_beside_tensors(owner):
    layer = owner.backend.layers[0]
    before = layer.checksum()
    layer.optimizer.state[layer.parameters[0]]["rounds"] = 7
    assert layer.checksum() != before


@pytest.mark.parametrize(
    ("mine", "others", "ends"),
    [
        (1, {}, False),
        (1, {B: 1}, False),
        (1, {B: 2}, True),
        (1, {B: 1, C: 2}, False),
        (1, {B: 2, C: 2}, True),
        (1, {A: 2, B: 1}, False),
    ],
)
def test_the_majority_stays(mine, others, ends):
    witnesses = [Witness(agent, {0: checksum}) for agent, checksum in others.items()]
    expected = pytest.raises(DivergenceError) if ends else nullcontext()
    with expected:
        compare(100, A, {0: mine, 1: 5}, witnesses)
