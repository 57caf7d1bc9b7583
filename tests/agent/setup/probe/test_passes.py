"""What a worker measures of its layers, and which of them may have their backward split."""

from __future__ import annotations

import functools
import gc
import os
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from bamboo_agent.compute import stage
from bamboo_agent.compute.layers import LayerBuilder
from bamboo_agent.compute.optim import optimizer_factory
from bamboo_agent.compute.stage import Halves
from bamboo_agent.model import FactoryError, Model
from bamboo_agent.setup.probe.layers import Samples, probe
from bamboo_core.api.spec import OptimizerSpec

CPU = torch.device("cpu")
ADAMW = optimizer_factory(OptimizerSpec("torch.optim:AdamW", {"lr": 1e-3}), seed=1)


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

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0) * int.from_bytes(os.urandom(6))


class Counted(Once):
    """Its gradients depend on a counter."""

    runs = 0

    @staticmethod
    def backward(ctx, gradient):
        Counted.runs += 1
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0) * Counted.runs


class Tiring(nn.Linear):
    """Its fourth forward and all later ones give others. No path leads to the counter."""

    def __init__(self):
        super().__init__(4, 4)
        self.first = functools.lru_cache(lambda count: count > 3)

    def forward(self, x):
        self.first(self.first.cache_info().misses + 1)
        return super().forward(x) * (1 + (self.first.cache_info().misses > 3))


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
    return probe(model, builder, Samples(sample), CPU)


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
    "layer", [lambda: Scale(Once), lambda: Checkpointed(reentrant=True)], ids=["once", "old"]
)
def test_a_layer_whose_backward_runs_as_a_whole_only_is_not_split(layer):
    found = measured(linear, layer, linear)
    assert [c.can_split for c in found.costs] == [True, False, True]
    assert found.halves == (Halves.HELPER, Halves.WHOLE, Halves.HELPER)


def test_a_layer_whose_backward_gives_other_bits_each_time_is_refused():
    with pytest.raises(
        FactoryError, match="layer 1, Scale: its weights' gradient has other bits when the same"
    ):
        measured(linear, lambda: Scale(Fickle), linear)


def test_a_forward_that_gives_other_bits_later_is_refused():
    with pytest.raises(FactoryError, match="layer 1, Tiring: its output has other bits when the"):
        measured(linear, Tiring, linear)


def test_where_bits_differ_the_path_of_a_counter_is_told():
    with pytest.raises(FactoryError, match=r"changes Scale\.how\.<class runs>, which .*: leave it"):
        measured(linear, lambda: Scale(Counted), linear)


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


def test_nothing_of_the_profile_stays(monkeypatch):
    """An output that its own graph keeps would stay for ever, out of the reach of the collector."""
    outputs, run_layers = [], stage.run_layers

    def seen(*arguments):
        made = run_layers(*arguments)
        outputs.extend(map(weakref.ref, made))
        return made

    monkeypatch.setattr(stage, "run_layers", seen)
    profile(linear, nn.Sigmoid, linear)
    gc.collect()
    assert len(outputs) >= 4
    assert [out for out in outputs if out() is not None] == []
