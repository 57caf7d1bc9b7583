"""B, I and W of a range: every way of doing the backward gives the same bits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bamboo_agent import stage
from bamboo_agent.layers import Layer


class Tangled(nn.Module):
    """Uses one weight twice, takes and gives a tuple with integers in it."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.unused = nn.Parameter(torch.zeros(3))

    def forward(self, x, ids):
        return torch.relu(self.a(x)) * self.b(x) + self.a(x), ids + 1


def make():
    torch.manual_seed(1)
    layers = [Layer(Tangled(), lambda _: None) for _ in range(3)]
    inputs = (torch.randn(4, 8), torch.arange(4))
    gradients = (torch.randn(4, 8), None)
    return layers, inputs, gradients


def parameters(layers):
    return [p for layer in layers for p in layer.parameters]


def forward(layers, inputs, *, first=False):
    leaves = stage.detached(inputs, first=first)
    return stage.Activation(leaves, stage.run_layers(layers, leaves, lambda _: None))


def fused(layers, inputs, gradients):
    return stage.backward(forward(layers, inputs), gradients)


def split(layers, inputs, gradients):
    activation = forward(layers, inputs)
    given = stage.backward_input(activation, gradients, parameters(layers))
    assert all(p.grad is None for p in parameters(layers))
    stage.backward_weight(activation, gradients, parameters(layers))
    return given


def weight_alone(layers, inputs, gradients):
    stage.backward_weight(forward(layers, inputs), gradients, parameters(layers))
    return None


def run(way):
    layers, inputs, gradients = make()
    given = way(layers, inputs, gradients)
    return given, [p.grad for p in parameters(layers)]


def assert_equal(a, b):
    for x, y in zip(a, b, strict=True):
        assert (x is None and y is None) or torch.equal(x, y)


@pytest.fixture(params=["torch's helper", "autograd alone"])
def helper(request, monkeypatch):
    if request.param == "autograd alone":
        monkeypatch.setattr(stage, "_torch_split", None)
    else:
        assert stage._torch_split is not None


def by_whole(layers, inputs, gradients):
    own = parameters(layers)
    given = stage.backward_input(forward(layers, inputs), gradients, own, can_split=False)
    assert all(p.grad is None for p in own)
    stage.backward_weight(forward(layers, inputs), gradients, own, can_split=False)
    return given


@pytest.mark.parametrize("way", [split, weight_alone, by_whole])
def test_all_ways_give_the_same_bits(helper, way):
    given, weights = run(fused)
    other, other_weights = run(way)
    if other is not None:
        assert_equal(given, other)
    assert_equal(weights, other_weights)
    assert given[1] is None
    assert weights[0] is None  # unused


def test_the_first_range_has_no_input_gradient(helper):
    layers, inputs, gradients = make()
    activation = forward(layers, inputs, first=True)
    assert stage.backward_input(activation, gradients, parameters(layers)) == (None, None)
    stage.backward_weight(activation, gradients, parameters(layers))
    assert_equal([p.grad for p in parameters(layers)], run(fused)[1])


def test_the_last_range_begins_with_the_loss(helper):
    layers, inputs, _ = make()

    def with_loss():
        activation = forward(layers, inputs)
        loss = activation.outputs[0].square().mean() / 8
        return stage.Activation(activation.inputs, (loss,), loss=float(loss.detach()))

    whole = stage.backward(with_loss(), None)
    weights = [p.grad for p in parameters(layers)]
    for parameter in parameters(layers):
        parameter.grad = None
    halves = with_loss()
    assert_equal(whole, stage.backward_input(halves, None, parameters(layers)))
    stage.backward_weight(halves, None, parameters(layers))
    assert_equal(weights, [p.grad for p in parameters(layers)])
