"""A short look at every layer: sizes, times of forward and backward, bytes of its output.

The planner cuts the model by these costs. It is also the first time that the user's code runs, so
its errors end here, with one essential line.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bamboo_agent import stage
from bamboo_agent.layers import Layer, LayerBuilder
from bamboo_agent.model import FactoryError, Model
from bamboo_agent.random_state import seed_forward
from bamboo_core.messages import LayerCost

_REPEATS = 3


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
    forward_s, backward_s = [], []
    for _ in range(_REPEATS):
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
        ready = _now(device)
        roots = [v for v in outputs if v.requires_grad]
        if roots:
            torch.autograd.backward(roots, [torch.ones_like(v) for v in roots])
        forward_s.append(between - started)
        backward_s.append(_now(device) - ready)
    cost = LayerCost(
        forward_s=min(forward_s),
        backward_s=min(backward_s),
        parameter_bytes=_num_bytes(list(layer.module.parameters())),
        output_bytes=_num_bytes(outputs),
    )
    return tuple(v.detach() for v in outputs), cost


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
