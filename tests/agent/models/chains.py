"""Runs a model's layers one after another, and compares them with the whole model of a library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import default_collate

from bamboo_agent.model import Model
from bamboo_agent.models.zoo import Entry
from bamboo_agent.payloads.flow import Flow
from bamboo_agent.user_code import build_model, call_factory


def layers_of(model: Model, *, seed: int = 0) -> list[nn.Module]:
    """All layers, each from a seed of its own."""
    found = []
    for index, build in enumerate(model.layers):
        torch.manual_seed(seed + index)
        found.append(build())
    return found


def chained(layers: Sequence[nn.Module], inputs: Any) -> Any:
    """The last output."""
    values = Flow.of(inputs)
    for layer in layers:
        values = Flow.of(layer(*values.arguments))
    return values.value


def state_of(layers: Sequence[nn.Module]) -> dict[str, torch.Tensor]:
    """Parameters and buffers of all layers by name. AssertionError if two layers have one name, or
    one has a tensor that is not saved."""
    found: dict[str, torch.Tensor] = {}
    for layer in layers:
        own = layer.state_dict()
        assert not own.keys() & found.keys()
        assert own.keys() >= {name for name, _ in layer.named_buffers()}
        found |= own
    return found


def gradients(layers: Sequence[nn.Module]) -> dict[str, torch.Tensor]:
    """By name, of the parameters that have one."""
    named = [pair for layer in layers for pair in layer.named_parameters()]
    return {name: p.grad for name, p in named if p.grad is not None}


def tie(model: Model, layers: Sequence[nn.Module]) -> None:
    """Give all copies of a parameter the first one's values, as the set-up of a job does."""
    for (first, source), *others in model.ties:
        for layer, name in others:
            with torch.no_grad():
                layers[layer].get_parameter(name).copy_(layers[first].get_parameter(source))


def summed(model: Model, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gradients with those of a tied parameter's copies added to the first one's."""
    for (_, source), *others in model.ties:
        for _, name in others:
            found[source] = found[source] + found.pop(name)
    return found


def mean(loss: torch.Tensor | tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The mean of a loss that is a mean, or a sum with its count."""
    return loss[0] / loss[1] if isinstance(loss, tuple) else loss


def apart(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """How far two gradients are apart, over the length of the second."""
    assert ours.keys() == theirs.keys()
    difference = sum(float((ours[name] - theirs[name]).square().sum()) for name in ours)
    return float((difference / sum(float(g.square().sum()) for g in theirs.values())) ** 0.5)


def sample_of(entry: Entry, count: int = 4) -> tuple[Any, Any]:
    """(input, target) of the first samples, as a micro-batch has them."""
    data = call_factory(entry.data, seed=1)
    batch = default_collate([data[i] for i in range(count)])
    if isinstance(batch, dict):
        target = batch.pop("labels")
        return batch, target
    inputs, target = batch
    return tuple(inputs) if isinstance(inputs, list) else inputs, target


def model_of(entry: Entry, **changed: Any) -> Model:
    """The model of an entry with other arguments."""
    return build_model(replace(entry.model, args={**entry.model.args, **changed}), seed=1)
