"""B, I and W of a range: every way of doing the backward gives the same bits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bamboo_agent.compute import stage
from bamboo_agent.compute.layers import Layer
from bamboo_agent.payloads.flow import Flow


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
    leaves = stage.detached(Flow(inputs), first=first)
    return stage.Activation(leaves, stage.run_layers(layers, leaves, lambda _: None))


def fused(layers, inputs, gradients, halves):
    return stage.backward(forward(layers, inputs), gradients)


def split(layers, inputs, gradients, halves):
    activation = forward(layers, inputs)
    given = stage.backward_input(activation, gradients, parameters(layers), halves)
    assert all(p.grad is None for p in parameters(layers))
    stage.backward_weight(activation, gradients, parameters(layers), halves)
    return given


def weight_alone(layers, inputs, gradients, halves):
    stage.backward_weight(forward(layers, inputs), gradients, parameters(layers), halves)
    return None


def run(way, halves=None, made=None):
    layers, inputs, gradients = made or make()
    given = way(layers, inputs, gradients, halves)
    return given, [p.grad for p in parameters(layers)]


def assert_equal(a, b):
    for x, y in zip(a, b, strict=True):
        assert (x is None and y is None) or torch.equal(x, y)


@pytest.fixture(params=list(stage.Halves), ids=lambda x: x.name)
def halves(request):
    return request.param


@pytest.mark.parametrize("way", [split, weight_alone])
def test_all_ways_give_the_same_bits(halves, way):
    given, weights = run(fused)
    other, other_weights = run(way, halves)
    if other is not None:
        assert_equal(given, other)
    assert_equal(weights, other_weights)
    assert given[1] is None
    assert weights[0] is None  # unused


class Seen(torch.autograd.Function):
    """Notes the strides of what goes forward and of what comes back."""

    @staticmethod
    def forward(ctx, x, notes):
        ctx.notes = notes
        notes.append(x.is_contiguous())
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.notes.append(gradient.is_contiguous())
        return gradient, None


class Turned(nn.Module):
    """What it gives, and the gradient of what it takes, are not contiguous by themselves."""

    def __init__(self, notes):
        super().__init__()
        self.a, self.notes = nn.Linear(8, 8), notes

    def forward(self, x):
        return self.a(Seen.apply(x, self.notes).t()).t()


def test_strides_do_not_pass_from_layer_to_layer():
    """Else a cut, which sends what passes there, would change the bits of products."""
    notes = []
    layers = [Layer(Turned(notes), lambda _: None) for _ in range(3)]
    activation = forward(layers, (torch.randn(8, 8),))
    assert activation.outputs[0].is_contiguous()
    given = stage.backward(activation, (torch.randn(8, 8),))
    assert given[0].is_contiguous()
    assert notes[:3] == [True] * 3
    assert len(notes) == 6


def test_gradients_that_pass_from_layer_to_layer_are_contiguous():
    notes = []
    layers = [Layer(Ends(notes), lambda _: None), Layer(Summed(), lambda _: None)]
    stage.backward(forward(layers, (torch.randn(8, 8),)), (torch.randn(1, 8),))
    assert notes == [True, True]


class Summed(nn.Module):
    """The gradient of what it takes is one row with eight names."""

    def forward(self, x):
        return x.sum(0, keepdim=True)


class Ends(nn.Linear):
    """Notes the gradient that it gets from the layer behind it."""

    def __init__(self, notes):
        super().__init__(8, 8)
        self.notes = notes

    def forward(self, x):
        return Seen.apply(super().forward(x), self.notes)


def test_the_first_range_has_no_input_gradient(halves):
    layers, inputs, gradients = make()
    activation = forward(layers, inputs, first=True)
    assert stage.backward_input(activation, gradients, parameters(layers), halves) == (None, None)
    stage.backward_weight(activation, gradients, parameters(layers), halves)
    assert_equal([p.grad for p in parameters(layers)], run(fused)[1])


def test_the_last_range_begins_with_the_loss(halves):
    layers, inputs, _ = make()

    def with_loss():
        activation = forward(layers, inputs)
        loss = activation.outputs[0].square().mean() / 8
        return stage.Activation(activation.inputs, Flow((loss,)), loss=float(loss.detach()))

    whole = stage.backward(with_loss(), None)
    weights = [p.grad for p in parameters(layers)]
    for parameter in parameters(layers):
        parameter.grad = None
    apart = with_loss()
    assert_equal(whole, stage.backward_input(apart, None, parameters(layers), halves))
    stage.backward_weight(apart, None, parameters(layers), halves)
    assert_equal(weights, [p.grad for p in parameters(layers)])
