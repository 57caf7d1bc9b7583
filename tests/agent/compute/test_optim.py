"""Updates of layers: clipping, precision, optimizers that a spec names."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bamboo_agent.compute.layers import Layer
from bamboo_agent.compute.optim import clip_scale, optimizer_factory, update
from bamboo_core.api.spec import FactorySpec


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
    return optimizer_factory(FactorySpec("torch.optim:SGD", {"lr": 1.0}), seed=1)(parameters)
