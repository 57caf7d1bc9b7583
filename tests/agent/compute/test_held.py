"""Layers that wait in host memory have the same bits, and take no memory of the device."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from bamboo_agent.compute import optim
from bamboo_agent.compute.held import HeldLayers
from bamboo_agent.compute.layers import LayerBuilder
from bamboo_agent.device.host_blocks import HostBlocks
from bamboo_agent.model import Model
from bamboo_core.api.progress import Hosted
from bamboo_core.api.spec import OptimizerSpec

ROOM = 1 << 20
DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class Odd(nn.Module):
    """Parameters that share memory, strides, a buffer that is a view, and a frozen parameter."""

    def __init__(self):
        super().__init__()
        both = torch.randn(2, 8, 8)
        self.first, self.second = nn.Parameter(both[0]), nn.Parameter(both[1].t())
        self.frozen = nn.Parameter(torch.rand(8), requires_grad=False)
        self.register_buffer("scale", torch.rand(4, 8)[1])
        self.register_buffer("empty", torch.empty(0))

    def forward(self, x):
        return (x @ self.first * self.scale).tanh() @ self.second + self.frozen


LAYERS = [
    lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.BatchNorm1d(16), nn.Linear(16, 8)),
    Odd,
    nn.Identity,
    lambda: nn.LSTM(8, 8),
]
OPTIMIZERS = {
    "AdamW": OptimizerSpec("torch.optim:AdamW", {"lr": 0.01, "amsgrad": True}),
    "SGD": OptimizerSpec("torch.optim:SGD", {"lr": 0.1, "momentum": 0.9}),
    "plain SGD": OptimizerSpec("torch.optim:SGD", {"lr": 0.1}),
    "with a rate": OptimizerSpec("bamboo_agent.compute.optim:adamw", {"warmup_steps": 3}),
}


def held(limit=ROOM, optimizer="AdamW", layers=LAYERS):
    make = optim.optimizer_factory(OPTIMIZERS[optimizer], seed=1)
    model = Model(layers=list(layers), loss=nn.functional.mse_loss)
    builder = LayerBuilder(model, make, seed=1, device=DEVICE)
    return HeldLayers(builder, HostBlocks(limit, DEVICE))


def step(found, number, *, forward=()):
    """Forwards of some layers, then an update of all of them."""
    outputs = []
    for layer in forward:
        (one,) = found.on_device(layer, layer + 1)
        torch.manual_seed(number)
        result = one.module(torch.randn(4, 8, device=DEVICE))
        outputs.append(result[0] if isinstance(result, tuple) else result)
    for index, layer in found.layers.items():
        torch.manual_seed(10 * number + index)
        gradient = torch.randn(layer.size).to(DEVICE)

        def run(layer=layer, gradient=gradient):
            optim.update(layer, gradient, scale=0.5, step=number)

        found.update(index, run)
    return outputs


def assert_equal(one, other):
    assert one.layers.keys() == other.layers.keys()
    for index, layer in one.layers.items():
        mine, theirs = layer.record(), other.layers[index].record()
        assert mine.extra == theirs.extra
        assert mine.tensors.keys() == theirs.tensors.keys()
        assert [n for n, x in mine.tensors.items() if not torch.equal(x, theirs.tensors[n])] == []
        assert layer.checksum() == other.layers[index].checksum()


def is_on_device(found, layer):
    """Whether no tensor of the layer is in a block of host memory."""
    blocks = [x.block.memory for x in (*found._weights.values(), *found._moments.values())]
    spans = [(b.data_ptr(), b.data_ptr() + b.numel()) for b in blocks]
    one = found.layers[layer]
    return not any(
        lo <= x.untyped_storage().data_ptr() < hi
        for x in (*one.weights(), *one.moments())
        for lo, hi in spans
    )


@pytest.mark.parametrize("limit", [0, 4000, ROOM])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_bits_do_not_depend_on_where_layers_wait(optimizer, limit):
    usual, hosted = held(ROOM, optimizer), held(limit, optimizer)
    hosted.host({0, 1, 2, 3})
    for found in (usual, hosted):
        for layer in range(4):
            found.build(layer)
    assert hosted.waiting == {0: set(), 4000: {0, 1}, ROOM: {0, 1, 3}}[limit]
    for number, forward in enumerate([(), (), (1,), (0, 1, 3), ()]):
        outputs = [step(found, number, forward=forward) for found in (usual, hosted)]
        assert all(map(torch.equal, *outputs))
        assert_equal(usual, hosted)
    hosted.host(())
    step(usual, 5)
    step(hosted, 5)
    assert_equal(usual, hosted)
    assert not hosted.waiting
    assert all(is_on_device(hosted, layer) for layer in range(4))
    assert hosted._tally.used_bytes == 0
    assert (hosted.figures.left_bytes > 0) is (limit < ROOM)
    assert usual.figures == Hosted()


def test_weights_wait_unless_a_step_uses_them_and_the_optimizer_s_state_waits_always():
    found = held()
    found.host({0})
    found.build(0)
    step(found, 0)
    assert (found.waiting, set(found._moments)) == ({0}, {0})
    step(found, 1, forward=[0])
    assert (found.waiting, set(found._moments)) == (set(), {0})
    step(found, 2, forward=[0])
    assert found.waiting == set()
    step(found, 3)
    assert found.waiting == {0}


def test_a_layer_that_becomes_the_agent_s_own_moves_to_the_device():
    found = held()
    found.host({0, 1})
    for layer in (0, 1):
        found.build(layer)
    step(found, 0)
    found.host({1})
    assert found.waiting == {0, 1}  # until it is used
    step(found, 1, forward=[0])
    assert found.waiting == {1}
    assert set(found._moments) == {1}
    assert is_on_device(found, 0)
    assert not is_on_device(found, 1)


def test_what_waits_takes_no_memory_of_the_device():
    found = held(layers=[lambda: nn.Linear(16, 16)])
    found.build(0)
    step(found, 0)
    tensors = [*found.layers[0].weights(), *found.layers[0].moments()]
    on_device = [x for x in tensors if x.device == DEVICE]
    memory = [weakref.ref(x.untyped_storage()) for x in on_device]
    addresses = {x.untyped_storage().data_ptr() for x in on_device}
    assert len(on_device) >= 6
    found.host({0})
    step(found, 1)
    now = {x.untyped_storage().data_ptr() for x in on_device}
    assert not addresses & now
    assert all(x.device.type == "cpu" for x in on_device)
    assert [m for m in memory if m() is not None] == []


def test_bytes_both_ways_are_reported():
    found = held(optimizer="plain SGD", layers=[lambda: nn.Linear(16, 16, bias=False)])
    found.host({0})
    found.build(0)
    assert found.figures.host_bytes == found.figures.copied_bytes == 1024
    step(found, 0)
    assert found.figures.copied_bytes == 3 * 1024
    assert found.figures.host_bytes == 1024
    assert found.figures.copied_s > 0
    assert found.figures.left_bytes == 0


def test_what_finds_no_room_is_reported_and_moves_when_there_is_room():
    linear = lambda: nn.Linear(16, 16, bias=False)  # noqa: E731
    found = held(1024, "plain SGD", [linear, linear])
    found.host({0, 1})
    found.build(0)
    found.build(1)
    assert found.waiting == {0}
    assert found.figures.left_bytes == 1024
    found.drop(0)
    assert found._tally.used_bytes == 0
    step(found, 0)
    assert found.waiting == {1}
    assert found.figures.left_bytes == 1024  # the most of it


def test_a_record_replaces_the_state_of_a_layer_that_waits():
    usual, hosted = held(), held()
    usual.build(0)
    for number in range(2):
        step(usual, number)
    hosted.host({0})
    hosted.build(0)
    step(hosted, 7)
    hosted.restore(0, usual.layers[0].record(), 2)
    assert hosted.layers[0].version == 2
    assert hosted.waiting == {0}
    assert_equal(usual, hosted)
    newcomer = held()
    newcomer.host({0})
    newcomer.restore(0, hosted.layers[0].record(), 2)
    assert newcomer.waiting == {0}
    for found in (usual, hosted, newcomer):
        step(found, 3)
    assert_equal(usual, hosted)
    assert_equal(usual, newcomer)


def test_a_failed_update_is_an_error_of_the_layer():
    found = held()
    found.host({0})
    found.build(0)

    def fail():
        raise RuntimeError("of the optimizer")

    with pytest.raises(RuntimeError, match="of the optimizer"):
        found.update(0, fail)


def test_dropped_layers_give_their_blocks_back():
    found = held()
    found.host({0, 1})
    for layer in (0, 1):
        found.build(layer)
    step(found, 0)
    found.drop(0)
    found.drop(1)
    found.drop(1)
    assert found._tally.used_bytes == 0
    assert not found.layers


def test_an_update_that_is_computed_twice_has_the_same_bits():
    """A self-check restores the layer in between, so that its optimizer has other tensors."""
    usual, hosted = held(), held()
    hosted.host({0})
    for found in (usual, hosted):
        found.build(0)
        step(found, 0)
    layer = hosted.layers[0]

    def twice():
        before = layer.record()
        optim.update(layer, torch.ones(layer.size).to(DEVICE), scale=0.5, step=1)
        layer.restore(before)
        optim.update(layer, torch.ones(layer.size).to(DEVICE), scale=0.5, step=1)

    one = usual.layers[0]
    gradient = torch.ones(one.size).to(DEVICE)
    usual.update(0, lambda: optim.update(one, gradient, scale=0.5, step=1))
    hosted.update(0, twice)
    assert (hosted.waiting, set(hosted._moments)) == ({0}, {0})
    assert not is_on_device(hosted, 0)
    assert_equal(usual, hosted)


USES = (lambda held: held.update(0, lambda: None), lambda held: held.on_device(0, 1))


@pytest.mark.parametrize("use", USES, ids=["update", "forward"])
def test_a_layer_for_which_the_device_has_no_room_stays_in_host_memory(use, monkeypatch):
    """Its block must not be given to another layer."""
    usual, hosted = (held(layers=LAYERS[:1] * 2) for _ in range(2))
    hosted.host({0, 1})
    for found in (usual, hosted):
        found.build(0)
        step(found, 0)
    empty = torch.empty

    def full(*sizes, **options):
        if options.get("dtype") is torch.uint8 and sizes != (0,):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return empty(*sizes, **options)

    with monkeypatch.context() as context:
        context.setattr(torch, "empty", full)
        with pytest.raises(torch.OutOfMemoryError):
            use(hosted)
    gc.collect()
    for found in (usual, hosted):
        found.build(1)
    assert_equal(usual, hosted)
    for found in (usual, hosted):
        step(found, 1, forward=[0])
    assert_equal(usual, hosted)
