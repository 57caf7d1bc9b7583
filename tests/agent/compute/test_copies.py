"""Votes say what an agent holds of each layer, in the steps in which copies are compared."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.agent.compute.bench import Bench

from bamboo_agent.payloads.kinds import Slice
from bamboo_agent.payloads.serialization import pack, unpack
from bamboo_core.model.claims import DisputedError
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.sampling import COMPARE_EVERY
from bamboo_core.protocol.messages import CommitRecord
from bamboo_sim.workers.fleet import CPU


@pytest.fixture
def owner():
    """An agent whose layers have optimizer state and are at the version to be compared."""
    bench = Bench()
    bench.run("INIT[0:6]")
    last = COMPARE_EVERY - 1
    bench.commits[last] = CommitRecord(last, grad_norm=1.0)
    give_gradient(bench, last)
    bench.run(f"UPDATE[0:6] 0:6 0:1 @{last}")
    return bench


@pytest.fixture
def replica(owner):
    bench = Bench(1)
    for layer in range(6):
        owner.give(Item.ver(COMPARE_EVERY, layer), bench)
    return bench


def give_gradient(bench, step):
    numbers = torch.ones(sum(bench.setup.sizes))
    bench.backend.accept(Item.red(step, (0, 6), 0, 1), Slice(numbers, {}))


def vote(bench, step=COMPARE_EVERY):
    """The bench's vote, as it arrives at the coordinator."""
    give_gradient(bench, step)
    bench.run(f"VOTE 0:6 0:6 0:1 @{step}")
    name = Item.vote(step, bench.setup.agent)
    sent = pack(bench.backend.payload(name))
    return name, unpack(Kind.VOTE, sent.meta, sent.tensors, CPU)


def commit(owner, replica):
    vote(owner)
    owner.backend.accept(*vote(replica))
    owner.run(f"COMMIT {{a00,a01}} @{COMPARE_EVERY}")


def test_equal_copies_are_committed(owner, replica):
    commit(owner, replica)


@pytest.mark.parametrize("where", ["param", "optim"])
def test_one_flipped_bit_prevents_the_commit(owner, replica, where):
    layer = replica.backend.layers[3]
    parameter = layer.parameters[0]
    tensor = parameter if where == "param" else layer.optimizer.state[parameter]["exp_avg"]
    tensor.detach().view(-1).view(torch.int32)[0] ^= 1
    with pytest.raises(DisputedError) as found:
        commit(owner, replica)
    (dispute,) = found.value.disputes
    assert dispute.is_of_copies
    assert (dispute.lo, [claim.agent for claim in dispute.claims]) == (3, ["a00", "a01"])


def test_votes_speak_of_layers_in_few_steps(owner):
    assert vote(owner)[1].claims.keys() == {Item.ver(COMPARE_EVERY, layer) for layer in range(6)}
    assert not vote(owner, COMPARE_EVERY + 1)[1].claims


@pytest.mark.parametrize(("step", "is_due"), [(6, True), (7, False)])
def test_they_do_in_the_steps_of_checkpoints(step, is_due):
    bench = Bench()
    bench.setup = replace(bench.setup, save_every=3)
    bench.backend.state.setup = bench.setup
    bench.run("INIT[0:6]")
    assert bool(vote(bench, step)[1].claims) == is_due


def test_they_do_in_a_step_that_is_computed_again():
    bench = Bench()
    bench.run("INIT[0:6]")
    bench.backend.retract(is_new=False)
    assert len(vote(bench, 7)[1].claims) == 6


def test_checksums_tell_what_an_optimizer_keeps_beside_tensors(owner):
    layer = owner.backend.layers[0]
    before = layer.checksum()
    layer.optimizer.state[layer.parameters[0]]["rounds"] = 7
    assert layer.checksum() != before
