"""Whether the parameters that a model ties stay equal: updates must treat them alike."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bamboo_agent.compute import optim
from bamboo_agent.compute.layers import Layer, LayerBuilder, Tie, Use
from bamboo_agent.device.random_state import seed_update
from bamboo_agent.model import FactoryError, Model
from bamboo_agent.payloads.plain_values import have_equal_bits

_STEPS = 2


def find(model: Model, builder: LayerBuilder) -> tuple[Tie, ...]:
    """The model's ties. FactoryError says which tie cannot be, and why."""
    return tuple(_find(sorted(uses), builder) for uses in model.ties)


def _find(named: Sequence[tuple[int, str]], builder: LayerBuilder) -> Tie:
    layers = [builder.build(index) for index, _ in named]  # which compares their forms
    uses = tuple(
        Use(index, name, layer.place(name))
        for (index, name), layer in zip(named, layers, strict=True)
    )
    _check_updates(layers, uses)
    return uses


def _check_updates(layers: Sequence[Layer], uses: Sequence[Use]) -> None:
    """FactoryError unless equal gradients leave the copies and their optimizer state equal."""
    generator = torch.Generator().manual_seed(2)
    first = uses[0].place
    shared = torch.randn(first.stop - first.start, generator=generator) * 0.01
    for layer, use in zip(layers, uses, strict=True):
        gradient = torch.randn(layer.size, generator=generator) * 0.01
        gradient[use.place] = shared
        gradient = gradient.to(layer.parameters[0].device)
        for step in range(_STEPS):
            seed_update(0, step, use.layer)
            optim.update(layer, gradient, scale=1.0, step=step)
    records = [_state(layer, use) for layer, use in zip(layers, uses, strict=True)]
    for use, record in zip(uses, records, strict=True):
        if record.keys() != records[0].keys() or not all(
            have_equal_bits(value, records[0][name]) for name, value in record.items()
        ):
            raise FactoryError(
                f"Model.ties: {uses[0].name} of layer {uses[0].layer} and {use.name} of layer"
                f" {use.layer} differ after {_STEPS} updates with equal gradients: give both"
                " the same optimizer arguments, and an optimizer that treats each parameter on its"
                " own"
            )


def _state(layer: Layer, use: Use) -> dict[str, torch.Tensor]:
    """The parameter and its optimizer state, without the parameter's name."""
    tensors = layer.state().tensors
    prefix = f"optim/{use.name}/"
    found = {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
    return {**found, "": tensors[f"param/{use.name}"]}
