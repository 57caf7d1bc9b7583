"""Forward and backward of a range of layers, as the instructions F, B, I, W and V want them.

The input of a range is cut off from whatever made it; its gradient is what the range before gets.
B is one autograd pass; I and W are its halves, done by torch's own helper where this torch has it,
else by two passes. All ways give the same bits.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bamboo_agent.layers import Layer
from bamboo_agent.model import Value

try:  # private to torch: detected, never required
    _torch_split: Any = importlib.import_module("torch.distributed.pipelining._backward")
    _torch_split = _torch_split if hasattr(_torch_split, "stage_backward_weight") else None
except ImportError:
    _torch_split = None

Gradients = tuple[torch.Tensor | None, ...]
"""One gradient per tensor of a value; None where it takes none (integers, masks)."""


@dataclass
class Activation:
    """ACT: what backward needs of one forward. ``weight_groups``: left by I for W."""

    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    loss: float | None = None
    weight_groups: list[dict[str, Any]] | None = None


def as_tuple(value: Value) -> tuple[torch.Tensor, ...]:
    """A value's tensors."""
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def run_layers(
    layers: Sequence[Layer], inputs: tuple[torch.Tensor, ...], seed_layer: Callable[[int], None]
) -> tuple[torch.Tensor, ...]:
    """Call the layers in order; ``seed_layer(i)`` before the i-th sets its random state."""
    values = inputs
    for index, layer in enumerate(layers):
        seed_layer(index)
        values = as_tuple(layer.module(*values))
    return values


def detached(values: tuple[torch.Tensor, ...], *, first: bool) -> tuple[torch.Tensor, ...]:
    """Leaves of a new graph; the first range's input (data) takes no gradient."""
    leaves = tuple(value.detach() for value in values)
    if not first:
        for leaf in leaves:
            leaf.requires_grad_(leaf.is_floating_point())
    return leaves


def backward(activation: Activation, gradients: Gradients | None) -> Gradients:
    """B: weight gradients are added to ``.grad``; returns the gradients of the inputs.

    gradients: of the outputs; None for the last range, whose output is the loss.
    """
    roots, seeds = _roots(activation, gradients)
    if roots:
        torch.autograd.backward(roots, seeds)
    return _take_input_gradients(activation)


def backward_input(
    activation: Activation,
    gradients: Gradients | None,
    parameters: Sequence[torch.Tensor],
    *,
    can_split: bool = True,
) -> Gradients:
    """I: only the gradients of the inputs; what W needs stays in the activation.

    can_split: False runs the whole backward and forgets the rest.
    """
    if not can_split:
        return _input_by_whole(activation, gradients, parameters)
    if _torch_split is None or not _needs_input_gradient(activation):
        return _input_by_autograd(activation, gradients)
    roots, seeds = _roots(activation, gradients)
    # the helper fills in ones when no gradients are given: the loss has been scaled before
    _, groups = _torch_split.stage_backward_input(
        roots, None if gradients is None else seeds, list(activation.inputs), iter(parameters)
    )
    activation.weight_groups = groups
    return _take_input_gradients(activation)


def backward_weight(
    activation: Activation,
    gradients: Gradients | None,
    parameters: Sequence[torch.Tensor],
    *,
    can_split: bool = True,
) -> None:
    """W: weight gradients are added to ``.grad``; works after I and without it."""
    if not can_split:
        backward(activation, gradients)
        return
    if activation.weight_groups is not None:
        _torch_split.stage_backward_weight(iter(parameters), activation.weight_groups)
        activation.weight_groups = None
        return
    roots, seeds = _roots(activation, gradients)
    if roots and parameters:
        torch.autograd.backward(roots, seeds, inputs=parameters)


def _needs_input_gradient(activation: Activation) -> bool:
    return any(value.requires_grad for value in activation.inputs)


def _input_by_autograd(activation: Activation, gradients: Gradients | None) -> Gradients:
    wanted = [value for value in activation.inputs if value.requires_grad]
    roots, seeds = _roots(activation, gradients)
    if roots and wanted:
        torch.autograd.backward(roots, seeds, inputs=wanted, retain_graph=True)
    return _take_input_gradients(activation)


def _input_by_whole(
    activation: Activation, gradients: Gradients | None, parameters: Sequence[torch.Tensor]
) -> Gradients:
    roots, seeds = _roots(activation, gradients)
    if roots:
        torch.autograd.backward(roots, seeds, retain_graph=True)
    for parameter in parameters:
        parameter.grad = None
    return _take_input_gradients(activation)


def _roots(
    activation: Activation, gradients: Gradients | None
) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Outputs that take a gradient, and their gradients."""
    given: Gradients = (None,) * len(activation.outputs) if gradients is None else gradients
    pairs = [
        (output, gradient)
        for output, gradient in zip(activation.outputs, given, strict=True)
        if output.requires_grad and (gradient is not None or gradients is None)
    ]
    return [output for output, _ in pairs], [gradient for _, gradient in pairs]


def _take_input_gradients(activation: Activation) -> Gradients:
    taken = tuple(value.grad for value in activation.inputs)
    for value in activation.inputs:
        value.grad = None
    return taken
