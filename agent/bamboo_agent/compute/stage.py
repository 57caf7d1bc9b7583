"""Forward and backward of a range of layers, for the instructions F, B, I, W and V.

The input of a range is detached. Its gradient goes to the range before. B is one autograd pass; I
and W are its halves. A split that does not give the same bits is not used (see
:mod:`bamboo_agent.setup.probe.passes`). The partition does not change bits either: values
between layers, and their gradients, are contiguous as if they had been sent.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from enum import IntEnum
from types import ModuleType
from typing import Any

import torch

from bamboo_agent.compute.layers import Layer
from bamboo_agent.device.precision import in_float32
from bamboo_agent.payloads.flow import Flow
from bamboo_agent.payloads.kinds import Unread

_PIPELINING = "torch.distributed.pipelining"
_HELPER = f"{__name__}_torch"


def _load_helper() -> Any:
    """Torch's module that splits a backward; None: this version has none. It is private, so it is
    never required. Its package imports torch's compiler, a third of an agent's start-up: the module
    is imported from a package of another name, which only says where to look."""
    try:
        spec = importlib.util.find_spec(_PIPELINING)
        package = ModuleType(_HELPER)
        package.__path__ = list(spec.submodule_search_locations or ()) if spec else []
        sys.modules[_HELPER] = package
        found = importlib.import_module(f"{_HELPER}._backward")
    except ImportError:
        return None
    return found if hasattr(found, "stage_backward_weight") else None


_torch_split: Any = _load_helper()


class Halves(IntEnum):
    """How a layer's backward is split into I and W. For several layers: the minimum."""

    WHOLE = 0  # I runs the whole backward and keeps the weight gradients, W adds them
    TWICE = 1  # two autograd passes over the same graph
    HELPER = 2  # torch's own helper


BEST_HALVES = Halves.TWICE if _torch_split is None else Halves.HELPER

Gradients = tuple[torch.Tensor | None, ...]
"""One gradient per tensor of a value; None for integers and masks."""


@dataclass
class Activation:
    """ACT: what the backward needs from a forward. ``statistics``: of the layers' BatchNorms.
    ``weight_groups`` and ``weight_gradients``: kept by I for W."""

    inputs: Flow
    outputs: Flow
    loss: Unread | None = None
    statistics: tuple[torch.Tensor, ...] = ()
    weight_groups: list[dict[str, Any]] | None = None
    weight_gradients: Gradients | None = None

    @property
    def is_half_done(self) -> bool:
        """Whether I has run and has kept something for W."""
        return self.weight_groups is not None or self.weight_gradients is not None


def run_layers(
    layers: Sequence[Layer],
    inputs: Flow,
    seed_layer: Callable[[int], None],
    statistics: list[torch.Tensor] | None = None,
) -> Flow:
    """Call the layers in order; ``seed_layer(i)`` before the i-th sets its random state.

    statistics: in training, what their BatchNorms find is appended. NormError.
    """
    values = inputs
    for index, layer in enumerate(layers):
        seed_layer(index)
        with nullcontext() if statistics is None else layer.statistics.collected(statistics):
            values = Flow.of(layer.call(*values.arguments))
        if layer.gives_float32:
            values = values.map(in_float32)
        values = values.map(_as_if_sent)
    return values


def _as_if_sent(value: torch.Tensor) -> torch.Tensor:
    """Other strides would change bits in the next layer's products or in this backward."""
    if value.layout is not torch.strided or value.is_nested:  # cannot be sent
        return value
    value = value.contiguous()
    if value.requires_grad and not value.is_leaf:  # a leaf's gradient has the leaf's strides
        value.register_hook(torch.Tensor.contiguous)  # type: ignore[no-untyped-call]
    return value


def detached(values: Flow, *, first: bool) -> Flow:
    """Leaves of a new graph. The first range's input is data and takes no gradient."""
    leaves = values.map(torch.Tensor.detach)
    if not first:
        for leaf in leaves:
            leaf.requires_grad_(leaf.is_floating_point())
    return leaves


def backward(activation: Activation, gradients: Gradients | None) -> Gradients:
    """B: add weight gradients to ``.grad`` and return the gradients of the inputs.

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
    way: Halves,
) -> Gradients:
    """I: only the gradients of the inputs. The activation keeps what W needs."""
    if way is Halves.WHOLE:
        return _input_by_whole(activation, gradients, parameters)
    if way is Halves.TWICE or not _needs_input_gradient(activation):
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
    way: Halves,
) -> None:
    """W: weight gradients are added to ``.grad``; works after I and without it."""
    if activation.weight_gradients is not None:
        accumulate(parameters, activation.weight_gradients)
        activation.weight_gradients = None
        return
    if way is Halves.WHOLE:
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
    """The backward as B runs it, once: some layers cannot run it twice (torch.compile on a GPU), or
    for some of their tensors only (reentrant activation checkpointing)."""
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    given = backward(activation, gradients)
    activation.weight_gradients = tuple(parameter.grad for parameter in parameters)
    for parameter, gradient in zip(parameters, before, strict=True):
        parameter.grad = gradient
    return given


def accumulate(
    parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]
) -> None:
    """Add to ``.grad`` as autograd would."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            continue
        if parameter.grad is None:
            parameter.grad = gradient
        elif parameter.grad.is_sparse and not gradient.is_sparse:
            parameter.grad = gradient + parameter.grad
        else:
            parameter.grad.add_(gradient)


def _roots(
    activation: Activation, gradients: Gradients | None
) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """The outputs that require a gradient, and their gradients."""
    given: Gradients = (None,) * len(activation.outputs) if gradients is None else gradients
    pairs = [
        (output, gradient)
        for output, gradient in zip(activation.outputs, given, strict=True)
        if output.requires_grad and (gradient is not None or gradients is None)
    ]
    return [output for output, _ in pairs], [gradient for _, gradient in pairs]


def _take_input_gradients(activation: Activation) -> Gradients:
    found = (value.grad for value in activation.inputs)
    taken = tuple(None if gradient is None else gradient.contiguous() for gradient in found)
    for value in activation.inputs:
        value.grad = None
    return taken
