"""Ties that a model names: which ones the set-up takes, and the gradients that they give."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from bamboo_agent.compute.layers import LayerBuilder, OptimizerFactory
from bamboo_agent.model import FactoryError, Model
from bamboo_agent.setup.probe import ties
from bamboo_agent.user_code import _ties

CPU = torch.device("cpu")
LAYERS = [partial(nn.Embedding, 6, 4), nn.Tanh, partial(nn.Linear, 4, 6)]
FIRST = [(2, "weight"), (0, "weight")]


def adam(parameters: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.1)


def decaying_matrices(parameters: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
    """Another decay for a layer that has a bias."""
    return torch.optim.AdamW(parameters, weight_decay=0.1 * len(list(parameters)))


class Rounding(torch.optim.SGD):
    """Rounds at random."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(torch.rand_like(parameter))


def find(
    layers: Sequence[Any], named: Sequence[tuple[int, str]], make: OptimizerFactory = adam
) -> tuple[LayerBuilder, Any]:
    model = Model(layers, cross_entropy, [named])
    builder = LayerBuilder(model, make, seed=3, device=CPU)
    return builder, ties.find(model, builder)


def test_a_tie_is_found_in_layer_order_and_its_copies_begin_equal() -> None:
    builder, ((first, last),) = find(LAYERS, FIRST)
    assert (first.layer, first.name, first.place) == (0, "weight", slice(0, 24))
    assert (last.layer, last.name, last.place) == (2, "weight", slice(0, 24))
    one, other = builder.build(0).module.weight, builder.build(2).module.weight
    assert torch.equal(one, other)
    assert one is not other
    untied = LayerBuilder(Model(LAYERS, cross_entropy), adam, seed=3, device=CPU)
    assert torch.equal(one, untied.build(0).module.weight)
    assert torch.equal(builder.build(2).module.bias, untied.build(2).module.bias)


@pytest.mark.parametrize(
    ("layers", "named", "make", "message"),
    [
        (LAYERS, [(0, "weight"), (2, "weigth")], adam, r"no trainable parameter 'weigth'.* weight"),
        (
            LAYERS,
            [(0, "weight"), (1, "weight")],
            adam,
            "layer 1, Tanh, has no trainable parameter .*; it has none",
        ),
        (
            [partial(nn.Embedding, 6, 4), partial(nn.Linear, 4, 5)],
            [(0, "weight"), (1, "weight")],
            adam,
            r"float32 \(6, 4\), weight of layer 1 is float32 \(5, 4\): they must have one shape",
        ),
        (
            [partial(nn.Embedding, 6, 4), partial(nn.Linear, 4, 6, dtype=torch.bfloat16)],
            [(0, "weight"), (1, "weight")],
            adam,
            "is bfloat16",
        ),
        (LAYERS, FIRST, decaying_matrices, "differ after 2 updates with equal gradients"),
        (LAYERS, FIRST, Rounding, "differ after 2 updates with equal gradients"),
    ],
)
def test_a_tie_that_cannot_be_is_refused(
    layers: Sequence[Any], named: Sequence[tuple[int, str]], make: OptimizerFactory, message: str
) -> None:
    with pytest.raises(FactoryError, match=message):
        find(layers, named, make)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (5, "must be a list of lists of"),
        ([[(0, "a"), "b"]], "must be a list of lists of"),
        ([[("first", "a"), (1, "b")]], "must be a list of lists of"),
        ([[(0, "a")]], r"names layers \[0\]: a tie needs two layers or more"),
        ([[(0, "a"), (0, "b")]], r"names layers \[0, 0\]"),
        ([[(0, "a"), (3, "b")]], r"names layers \[0, 3\] of 3, counted from 0"),
        ([[(-1, "a"), (0, "b")]], "of 3, counted from 0"),
        ([[(0, "a"), (1, "b")], [(1, "b"), (2, "c")]], "a parameter of another tie: join them"),
    ],
)
def test_what_is_no_list_of_ties_is_refused(named: Any, message: str) -> None:
    with pytest.raises(FactoryError, match=message):
        _ties("users_code:build", named, 3)
