"""What a worker measures of its layers, and which of them may have their backward split."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from bamboo_agent.compute.layers import LayerBuilder
from bamboo_agent.compute.optim import optimizer_factory
from bamboo_agent.compute.stage import Halves
from bamboo_agent.model import Model
from bamboo_agent.setup.profile import measure
from bamboo_core.api.spec import FactorySpec

CPU = torch.device("cpu")
ADAMW = optimizer_factory(FactorySpec("torch.optim:AdamW", {"lr": 1e-3}), seed=1)


class Once(torch.autograd.Function):
    """Its backward may be run once only."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        ctx.ran = False
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        if ctx.ran:
            raise RuntimeError("run twice")
        ctx.ran = True
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0)


class Fickle(Once):
    """Its gradients differ from one run of the backward to the next."""

    runs = 0

    @staticmethod
    def backward(ctx, gradient):
        Fickle.runs += 1
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0) * Fickle.runs


class Scale(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.weight, self.how = nn.Parameter(torch.ones(4)), how

    def forward(self, x):
        return self.how.apply(x, self.weight)


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant):
        super().__init__()
        self.inner, self.reentrant = nn.Linear(4, 4), reentrant

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


class Functional(nn.Linear):
    """torch.func does not bear hooks on saved tensors."""

    def forward(self, x):
        return super().forward(x) + torch.func.grad(lambda y: y.square().sum())(x)


class Sparse(nn.Linear):
    """Saves a sparse tensor, which has no storage."""

    def forward(self, x):
        return torch.sparse.mm(torch.eye(3).to_sparse(), super().forward(x))


def squares(output, target):
    return (output - target).square().mean()


def checkpointed_squares(output, target):
    return checkpoint(squares, output, target, use_reentrant=True)


def measured(*layers, loss=squares):
    model = Model(list(layers), loss)
    builder = LayerBuilder(model, ADAMW, seed=1, device=CPU)
    sample = (torch.ones(3, 4), torch.zeros(3, 4))
    return measure(model, builder, sample, CPU)


def profile(*layers, loss=squares):
    return measured(*layers, loss=loss).costs


def linear():
    return nn.Linear(4, 4)


@pytest.mark.parametrize("layer", [linear, nn.ReLU, lambda: nn.Sequential(linear(), nn.GELU())])
def test_common_layers_split(layer):
    costs = profile(linear, layer, linear)
    assert [c.can_split for c in costs] == [True] * 3
    assert all(c.forward_s > 0 and c.backward_s > 0 for c in costs)
    assert all(c.input_gradient_s > 0 and c.weight_gradient_s > 0 for c in costs[1:])


@pytest.mark.parametrize(
    "layer", [lambda: Scale(Fickle), lambda: Checkpointed(reentrant=True)], ids=["fickle", "old"]
)
def test_a_layer_whose_halves_give_other_bits_or_raise_is_not_split(layer):
    costs = profile(linear, layer, linear)
    assert [c.can_split for c in costs] == [True, False, True]


def test_a_layer_that_is_run_again_in_its_backward_is_profiled():
    assert profile(linear, lambda: Checkpointed(reentrant=False), linear)[1].backward_s > 0


@pytest.mark.parametrize("layer", [Functional, Sparse])
def test_a_layer_that_bears_no_hooks_is_profiled(layer):
    costs = profile(linear, lambda: layer(4, 4), linear)
    assert costs[1].activation_bytes >= 3 * 4 * 4
    assert costs[1].backward_s > 0


def test_the_loss_is_split_with_the_last_layer():
    costs = profile(linear, linear, loss=checkpointed_squares)
    assert [c.can_split for c in costs] == [True, False]


class Recurrent(nn.LSTM):
    """torch's helper cannot take this apart, two passes of autograd can."""

    def __init__(self):
        super().__init__(4, 4)

    def forward(self, x):
        return super().forward(x)[0]


def test_what_the_helper_cannot_take_apart_two_passes_can():
    found = measured(linear, Recurrent, linear)
    assert [c.can_split for c in found.costs] == [True] * 3
    assert found.halves == (Halves.HELPER, Halves.TWICE, Halves.HELPER)


def test_what_a_forward_keeps_is_counted_without_the_weights():
    kept = [c.activation_bytes for c in profile(linear, nn.ReLU, linear)]
    floats = 3 * 4 * 4
    assert kept[:2] == [2 * floats, 2 * floats]  # input and output, the ReLU's result once
    assert kept[2] == 3 * floats  # and what the loss keeps


def test_nothing_of_the_profile_stays():
    """An output that its own graph keeps would stay for ever, out of the reach of the collector."""
    outputs = []

    class Seen(nn.Sigmoid):
        def forward(self, x):
            out = super().forward(x)
            outputs.append(weakref.ref(out))
            return out

    profile(linear, Seen, linear)
    gc.collect()
    assert len(outputs) >= 4
    assert [out for out in outputs if out() is not None] == []
