"""What a forward computed ahead keeps goes to host memory, and its backward has the same bits."""

from __future__ import annotations

import copy
import mmap
import weakref

import pytest
import torch
from torch import nn

from bamboo_agent.compute.layers import Layer
from bamboo_agent.device.activation_offload import HostMemory
from bamboo_agent.device.host_blocks import HostBlocks

ROOM = 1 << 20
PAGE = mmap.PAGESIZE
DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class Odd(nn.Module):
    """Saves strided views, a buffer, an empty tensor, and tensors that are not plain bytes."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.register_buffer("scale", torch.rand(8))

    def forward(self, x):
        x = x @ self.weight.t() * self.scale
        x = x[:, 1:7] * x.t()[1:7].t().exp() + x[:, :0].exp().sum()
        spectrum = torch.fft.fft(x).conj()
        return (spectrum * spectrum.conj()).real.tanh() @ self.weight[:6].to_sparse().to_dense()


class Functional(nn.Linear):
    """torch.func refuses hooks on saved tensors."""

    def forward(self, x):
        return super().forward(x) + torch.func.grad(lambda y: y.square().sum())(x)


MODULES = [
    nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.5), nn.Linear(16, 8)),
    nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    Odd(),
    Functional(8, 8),
]


def memory_of(limit):
    memory = HostMemory(HostBlocks(limit, DEVICE))
    memory.is_used = True
    return memory


def layer_of(module):
    return Layer(copy.deepcopy(module).to(DEVICE), torch.optim.SGD)


def forward(layer, seed=0):
    torch.manual_seed(seed)
    inputs = torch.randn(8, 8, device=DEVICE, requires_grad=True)
    return inputs, layer.module(inputs)


def gradients(layer, inputs, output):
    output.backward(torch.linspace(0, 1, output.numel(), device=DEVICE).view(output.shape))
    return [inputs.grad, *(p.grad for p in layer.parameters)]


@pytest.mark.parametrize("limit", [0, 255, ROOM])
@pytest.mark.parametrize("module", MODULES, ids=lambda m: type(m).__name__)
def test_bits_do_not_depend_on_where_tensors_wait(module, limit):
    usual, moved = layer_of(module), layer_of(module)
    memory = memory_of(limit)
    found = memory.run(moved.weights(), lambda: forward(moved))
    kept = memory.tally.used_bytes
    assert kept <= limit
    assert (kept > 0) is (limit == ROOM and not isinstance(module, Functional))
    assert memory.tally.copied_bytes == kept
    for one, other in zip(gradients(usual, *forward(usual)), gradients(moved, *found), strict=True):
        assert torch.equal(one, other)
    assert memory.tally.used_bytes == 0
    assert memory.tally.peak_bytes == kept
    assert memory.tally.copied_bytes == 2 * kept
    assert (memory.tally.copied_s > 0) is (kept > 0)


def test_what_the_plan_leaves_on_the_device_is_not_copied():
    memory, layer = HostMemory(HostBlocks(ROOM, DEVICE)), layer_of(MODULES[0])
    found = memory.run(layer.weights(), lambda: forward(layer))
    assert (memory.tally.used_bytes, memory.tally.copied_bytes) == (0, 0)
    expected = gradients(layer_of(MODULES[0]), *forward(layer_of(MODULES[0])))
    assert len(gradients(layer, *found)) == len(expected)


@pytest.fixture
def linear():
    """A layer of which a forward keeps its input: 256 bytes, and of ``wide`` twice as many."""
    return layer_of(nn.Linear(8, 8))


@pytest.fixture
def wide():
    return layer_of(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))


def test_parameters_stay_where_they_are(linear):
    memory = memory_of(ROOM)
    found = memory.run(linear.weights(), lambda: forward(linear))
    assert memory.tally.used_bytes == 256
    del found
    assert memory.tally.used_bytes == 0


class Watched(nn.Module):
    """Knows whether the memory that its backward needs is still on the device."""

    def forward(self, x):
        result = x.exp()
        self.result = weakref.ref(result.untyped_storage())
        return result.sum(0)


@pytest.mark.parametrize("limit", [0, 255, ROOM])
def test_what_has_moved_takes_no_memory_of_the_device(limit):
    layer, memory = layer_of(Watched()), memory_of(limit)
    found = memory.run(layer.weights(), lambda: forward(layer))
    assert (layer.module.result() is None) is (limit == ROOM)
    expected = found[0].exp() * torch.linspace(0, 1, 8, device=DEVICE)
    assert torch.equal(gradients(layer, *found)[0], expected)


def test_what_finds_no_room_stays_on_the_device(linear, wide):
    memory = memory_of(256)
    first = memory.run(linear.weights(), lambda: forward(linear))
    assert memory.tally.left_bytes == 0
    second = memory.run(linear.weights(), lambda: forward(linear, 1))
    third = memory.run(wide.weights(), lambda: forward(wide))
    assert memory.tally.used_bytes == memory.tally.copied_bytes == 256
    assert memory.tally.left_bytes == 256 + 512
    del first
    fourth = memory.run(linear.weights(), lambda: forward(linear, 2))
    assert memory.tally.used_bytes == 256
    for seed, found in ((1, second), (2, fourth)):
        expected = gradients(linear, *forward(linear, seed))
        linear.optimizer.zero_grad()
        assert all(map(torch.equal, gradients(linear, *found), expected))
        linear.optimizer.zero_grad()
    assert all(g is not None for g in gradients(wide, *third))


def test_blocks_are_used_again_and_make_room_for_other_sizes(linear, wide, monkeypatch):
    memory, allocated, released = memory_of(600), [], []
    blocks = memory._blocks
    allocate, release = blocks._allocate, blocks._release
    monkeypatch.setattr(blocks, "_allocate", lambda n: allocated.append(n) or allocate(n))
    monkeypatch.setattr(blocks, "_release", lambda x: released.append(x.numel()) or release(x))
    for _ in range(3):
        pair = [memory.run(linear.weights(), lambda: forward(linear)) for _ in range(2)]
        assert memory.tally.used_bytes == 512
        del pair
    assert (allocated, released) == ([256, 256], [])
    found = memory.run(wide.weights(), lambda: forward(wide))
    assert (allocated, released) == ([256, 256, 512], [256, 256])
    assert memory.tally.used_bytes == 512
    del found


def test_a_tensor_comes_back_once_for_both_halves_of_a_backward(linear):
    memory = memory_of(ROOM)
    _, output = memory.run(linear.weights(), lambda: forward(linear))
    output.sum().backward(inputs=linear.parameters, retain_graph=True)
    assert (memory.tally.used_bytes, memory.tally.copied_bytes) == (0, 512)
    output.sum().backward()
    assert memory.tally.copied_bytes == 512


def test_an_error_of_the_layer_comes_out(linear):
    def fail():
        raise RuntimeError("of the layer")

    memory = memory_of(ROOM)
    with pytest.raises(RuntimeError, match="of the layer"):
        memory.run(linear.weights(), fail)
    assert memory.tally.used_bytes == 0


def test_a_block_that_is_used_again_too_early_would_change_bits(linear, monkeypatch):
    take = HostBlocks.take

    def give_back_at_once(self, size, tally):
        block = take(self, size, tally)
        self._give_back(block.memory, tally)
        return block

    monkeypatch.setattr(HostBlocks, "take", give_back_at_once)
    memory = memory_of(ROOM)
    first, _ = (memory.run(linear.weights(), lambda s=s: forward(linear, s)) for s in (0, 1))
    found = gradients(linear, *first)
    linear.optimizer.zero_grad()
    expected = gradients(linear, *forward(linear))
    assert not all(map(torch.equal, found, expected))
