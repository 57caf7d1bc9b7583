"""Updates of layers: clipping, precision, optimizers that a spec names."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from bamboo_agent.compute.layers import Layer
from bamboo_agent.compute.optim import clip_scale, optimizer_factory, update
from bamboo_agent.model import FactoryError
from bamboo_core.api.spec import OptimizerSpec


@pytest.mark.parametrize(
    ("norm", "bound", "scale"),
    [(2.0, 0.0, 1.0), (0.4, 0.5, 1.0), (0.5, 0.5, 1.0), (2.0, 0.5, 0.5 / (2.0 + 1e-6))],
)
def test_clipping_scales_only_what_is_above_the_bound(norm, bound, scale):
    assert clip_scale(norm, bound) == scale


def test_parameters_of_half_precision_are_updated():
    layer = Layer(nn.Linear(2, 2, bias=False).bfloat16(), lambda p: _sgd(p))
    before = layer.parameters[0].detach().clone()
    update(layer, torch.ones(4), scale=0.5, step=0)
    assert torch.equal(layer.parameters[0].detach(), before - 0.5)


def _sgd(parameters):
    return optimizer_factory(OptimizerSpec("torch.optim:SGD", {"lr": 1.0}), seed=1)(parameters)


def test_gradients_of_what_the_optimizer_does_not_take_are_cleared():
    """The next backward would add to them, and the norm would count them twice."""
    layer = Layer(nn.Linear(2, 2), lambda p: torch.optim.SGD(p[:1], lr=1.0))
    update(layer, torch.ones(6), scale=1.0, step=0)
    assert [parameter.grad for parameter in layer.parameters] == [None, None]


def test_a_tensor_as_learning_rate_follows_the_rate(monkeypatch):
    """torch shares the tensor with the optimizer's defaults, by which shares are computed."""

    def build(parameters):
        made = torch.optim.SGD(parameters, lr=torch.tensor(0.5))
        return made, lambda step: 0.5 - 0.1 * step

    layer = Layer(nn.Linear(2, 2), made_by(build, monkeypatch))
    found = []
    for step in range(4):
        update(layer, torch.ones(6), scale=1.0, step=step)
        found.append(float(layer.optimizer.param_groups[0]["lr"]))
    assert found == pytest.approx([0.5, 0.4, 0.3, 0.2])
    assert float(layer.optimizer.defaults["lr"]) == 0.5


def grouped(rate, *, own=0.5, default=2.0):
    """Two groups: one with a learning rate of its own, one with the optimizer's."""

    def make(parameters):
        first, *rest = parameters
        groups = [{"params": [first], "lr": own}, {"params": rest}]
        return torch.optim.SGD(groups, lr=default), rate

    return make


def made_by(factory, monkeypatch):
    module = ModuleType("users_optimizer")
    module.build = factory
    monkeypatch.setitem(sys.modules, "users_optimizer", module)
    return optimizer_factory(OptimizerSpec("users_optimizer:build"), seed=1)


def test_a_group_with_a_rate_of_its_own_keeps_its_share(monkeypatch):
    layer = Layer(nn.Linear(2, 2), made_by(grouped(lambda step: 0.1 * (step + 1)), monkeypatch))
    update(layer, torch.ones(6), scale=1.0, step=2)
    rates = [group["lr"] for group in layer.optimizer.param_groups]
    assert rates == [0.1 * 3 * (0.5 / 2.0), 0.1 * 3]


def test_a_group_with_the_optimizer_s_rate_gets_the_rate_itself(monkeypatch):
    """A factor would change bits: 0.1 * (0.3 / 0.3) is 0.1, but other quotients are not 1."""
    layer = Layer(
        nn.Linear(2, 2), made_by(grouped(lambda step: 0.1, own=0.3, default=0.3), monkeypatch)
    )
    update(layer, torch.ones(6), scale=1.0, step=0)
    assert [group["lr"] for group in layer.optimizer.param_groups] == [0.1, 0.1]


@pytest.mark.parametrize(
    ("factory", "complaint"),
    [
        (grouped(0.1), "a function that gives the learning rate of a step; torch's schedulers"),
        (grouped(lambda step: 0.1, default=0.0), r"the rate of param_groups\[0\] cannot be set"),
        (
            lambda p: (torch.optim.LBFGS(p), None, 1),
            "returned a tuple of 3: return the optimizer",
        ),
    ],
)
def test_a_rate_that_cannot_be_set_is_refused(factory, complaint, monkeypatch):
    with pytest.raises(FactoryError, match=complaint):
        made_by(factory, monkeypatch)([nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))])
