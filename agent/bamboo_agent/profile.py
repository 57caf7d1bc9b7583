"""A short look at every layer: sizes, times of forward and backward, bytes that it makes and keeps.

The planner cuts the model by these costs, and splits backwards where that pays and is exact. It is
also the first time that the user's code runs, so its errors end here, with one essential line.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from bamboo_agent import stage
from bamboo_agent.layers import Layer, LayerBuilder
from bamboo_agent.model import FactoryError, Model
from bamboo_agent.random_state import seed_forward
from bamboo_core.messages import LayerCost

_REPEATS = 3
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Profile:
    """sizes: trainable numbers per layer; costs: what Ready carries."""

    sizes: tuple[int, ...]
    costs: tuple[LayerCost, ...]


def measure(
    model: Model, builder: LayerBuilder, sample: tuple[Any, Any], device: torch.device
) -> Profile:
    """Run one micro-batch through the layers, one at a time.

    sample: (input, target) of a micro-batch. FactoryError names the layer that failed.
    """
    values, target = stage.as_tuple(sample[0]), sample[1]
    sizes: list[int] = []
    costs: list[LayerCost] = []
    for index in range(len(model.layers)):
        layer = builder.build(index)
        try:
            values, cost = _measure_layer(layer, values, index, device)
            if index == len(model.layers) - 1:
                _try_loss(model, values, target)
        except Exception as error:
            what = f"layer {index}, {type(layer.module).__name__}"
            raise FactoryError(f"{what}: {type(error).__name__}: {error}") from error
        sizes.append(layer.size)
        costs.append(cost)
    return Profile(tuple(sizes), tuple(costs))


def _measure_layer(
    layer: Layer, values: tuple[torch.Tensor, ...], index: int, device: torch.device
) -> tuple[tuple[torch.Tensor, ...], LayerCost]:
    kept_bytes = _kept_bytes(layer, values, index, device)
    whole = _best_of(lambda: _pass(layer, values, index, device, _whole))
    halves = _try_halves(layer, values, index, device)
    can_split = halves is not None and _are_equal(whole.gradients, halves.gradients)
    if not can_split:
        _log.info("layer %d: its backward cannot be split, and is always done in one", index)
    cost = LayerCost(
        forward_s=whole.forward_s,
        backward_s=whole.backward_s,
        parameter_bytes=_num_bytes(list(layer.module.parameters())),
        output_bytes=_num_bytes(whole.outputs),
        input_gradient_s=halves.input_s if halves else 0.0,
        weight_gradient_s=halves.backward_s - halves.input_s if halves else 0.0,
        can_split=can_split,
        activation_bytes=kept_bytes,
    )
    return tuple(v.detach() for v in whole.outputs), cost


@dataclass(frozen=True)
class _Pass:
    """One forward and backward. gradients: of inputs, then of parameters; input_s: part of
    backward_s after which those of the inputs were there."""

    outputs: tuple[torch.Tensor, ...]
    gradients: list[torch.Tensor | None]
    forward_s: float
    backward_s: float
    input_s: float


def _best_of(run: Callable[[], _Pass]) -> _Pass:
    """The last of a few, so that no two are kept, with the shortest times of all."""
    last = run()
    for _ in range(_REPEATS - 1):
        forward_s, backward_s, input_s = last.forward_s, last.backward_s, last.input_s
        del last
        last = run()
        if backward_s < last.backward_s:
            last = replace(last, backward_s=backward_s, input_s=input_s)
        last = replace(last, forward_s=min(forward_s, last.forward_s))
    return last


_Backward = Callable[[stage.Activation, stage.Gradients, Sequence[torch.Tensor]], stage.Gradients]


def _pass(
    layer: Layer,
    values: tuple[torch.Tensor, ...],
    index: int,
    device: torch.device,
    begin: _Backward,
    end: _Backward | None = None,
) -> _Pass:
    """``begin`` gives the gradients of the inputs, ``end`` does what is left."""
    before = layer.checksum()
    started = _now(device)
    inputs = stage.detached(values, first=index == 0)
    outputs = _forward(layer, inputs, index, device)
    between = _now(device)
    if layer.checksum() != before:
        raise TypeError(
            "its forward changes its own buffers (running statistics?), which other agents"
            " would not see: use a layer without them, or track_running_stats=False"
        )
    activation = stage.Activation(inputs, outputs)
    seeds = tuple(torch.ones_like(v) if v.requires_grad else None for v in outputs)
    ready = _now(device)
    given = begin(activation, seeds, layer.parameters)
    halfway = _now(device)
    if end is not None:
        end(activation, seeds, layer.parameters)
    done = _now(device)
    gradients = [*given, *_take_gradients(layer)]
    return _Pass(outputs, gradients, between - started, done - ready, halfway - ready)


def _take_gradients(layer: Layer) -> list[torch.Tensor | None]:
    found = [parameter.grad for parameter in layer.parameters]
    for parameter in layer.parameters:
        parameter.grad = None
    return found


def _whole(
    activation: stage.Activation, seeds: stage.Gradients, _: Sequence[torch.Tensor]
) -> stage.Gradients:
    return stage.backward(activation, seeds)


def _rest(
    activation: stage.Activation, seeds: stage.Gradients, parameters: Sequence[torch.Tensor]
) -> stage.Gradients:
    stage.backward_weight(activation, seeds, parameters)
    return ()


def _try_halves(
    layer: Layer, values: tuple[torch.Tensor, ...], index: int, device: torch.device
) -> _Pass | None:
    """The same with the backward in two; None where the layer, or this torch, cannot."""
    try:
        return _best_of(lambda: _pass(layer, values, index, device, stage.backward_input, _rest))
    except Exception as error:  # whatever a user's layer or torch's helper raises: not in two, then
        _log.info("layer %d: %s: %s", index, type(error).__name__, error)
        _take_gradients(layer)
        return None


def _are_equal(some: Sequence[torch.Tensor | None], others: Sequence[torch.Tensor | None]) -> bool:
    """Bit for bit."""
    return all(
        a is b if a is None or b is None else torch.equal(_bits(a), _bits(b))
        for a, b in zip(some, others, strict=True)
    )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _kept_bytes(
    layer: Layer, values: tuple[torch.Tensor, ...], index: int, device: torch.device
) -> int:
    """What a forward leaves for its backward, beside the parameters."""
    own = {p.untyped_storage().data_ptr() for p in layer.module.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    inputs = stage.detached(values, first=index == 0)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = _forward(layer, inputs, index, device)
    for tensor in (*inputs, *outputs):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(kept.values())


def _forward(
    layer: Layer, inputs: tuple[torch.Tensor, ...], index: int, device: torch.device
) -> tuple[torch.Tensor, ...]:
    return stage.run_layers([layer], inputs, lambda _: seed_forward(0, 0, 0, index, device))


def _try_loss(model: Model, values: tuple[torch.Tensor, ...], target: Any) -> None:
    loss = model.loss(values[0] if len(values) == 1 else values, target)
    if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
        raise TypeError(f"loss must be a scalar tensor, got {type(loss).__name__}")


def _num_bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
