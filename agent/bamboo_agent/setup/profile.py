"""Profiles every layer: sizes, times of forward and backward, bytes produced and kept.

The planner partitions the model by these costs, and splits backwards where that is faster and
bitwise equal. This is also the first run of the user's code, so its errors are reported here, each
in one line.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from bamboo_agent.compute import stage
from bamboo_agent.compute.layers import Layer, LayerBuilder
from bamboo_agent.compute.stage import Halves
from bamboo_agent.device.random_state import seed_forward
from bamboo_agent.model import FactoryError, Model
from bamboo_core.protocol.messages import LayerCost

_REPEATS = 3
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Profile:
    """One entry per layer."""

    sizes: tuple[int, ...]  # number of trainable parameters
    costs: tuple[LayerCost, ...]  # for Ready
    halves: tuple[Halves, ...]  # how the backward is split


_Finish = Callable[[tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]]
"""What follows a layer: the loss after the last one. It is the user's code, too."""


@dataclass(frozen=True)
class _Subject:
    """One layer with its input and what follows it."""

    layer: Layer
    index: int
    values: tuple[torch.Tensor, ...]
    device: torch.device
    finish: _Finish | None

    def forward(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return stage.run_layers(
            [self.layer], inputs, lambda _: seed_forward(0, 0, 0, self.index, self.device)
        )

    def behind(self, outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return outputs if self.finish is None else self.finish(outputs)

    def inputs(self) -> tuple[torch.Tensor, ...]:
        return stage.detached(self.values, first=self.index == 0)


def measure(
    model: Model, builder: LayerBuilder, sample: tuple[Any, Any], device: torch.device
) -> Profile:
    """Run one micro-batch through the layers, one at a time.

    sample: (input, target) of a micro-batch. FactoryError names the layer that failed.
    """
    values, target = stage.as_tuple(sample[0]), sample[1]
    sizes: list[int] = []
    costs: list[LayerCost] = []
    halves: list[Halves] = []
    for index in range(len(model.layers)):
        layer = builder.build(index)
        finish = _loss(model, target) if index == len(model.layers) - 1 else None
        try:
            values, cost, way = _measure_layer(_Subject(layer, index, values, device, finish))
        except Exception as error:
            what = f"layer {index}, {type(layer.module).__name__}"
            raise FactoryError(f"{what}: {type(error).__name__}: {error}") from error
        sizes.append(layer.size)
        costs.append(cost)
        halves.append(way)
    return Profile(tuple(sizes), tuple(costs), tuple(halves))


def _loss(model: Model, target: Any) -> _Finish:
    def finish(outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        loss = model.loss(outputs[0] if len(outputs) == 1 else outputs, target)
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
            raise TypeError(f"loss must be a scalar tensor, got {type(loss).__name__}")
        return (loss,)

    return finish


def _measure_layer(subject: _Subject) -> tuple[tuple[torch.Tensor, ...], LayerCost, Halves]:
    whole = _best_of(lambda: _pass(subject, _whole))
    way, apart = _try_halves(subject, whole)
    if apart is None:
        _log.info("layer %d: its backward cannot be split", subject.index)
    cost = LayerCost(
        forward_s=whole.forward_s,
        backward_s=whole.backward_s,
        parameter_bytes=_num_bytes(list(subject.layer.module.parameters())),
        output_bytes=_num_bytes(whole.outputs),
        input_gradient_s=apart.input_s if apart else 0.0,
        weight_gradient_s=apart.backward_s - apart.input_s if apart else 0.0,
        can_split=apart is not None,
        activation_bytes=_kept_bytes(subject),
    )
    return tuple(v.detach() for v in whole.outputs), cost, way


@dataclass(frozen=True)
class _Pass:
    """One forward and backward. gradients: of the inputs, then of the parameters. input_s: the part
    of backward_s until the gradients of the inputs were ready."""

    outputs: tuple[torch.Tensor, ...]
    gradients: list[torch.Tensor | None]
    forward_s: float
    backward_s: float
    input_s: float


def _best_of(run: Callable[[], _Pass]) -> _Pass:
    """The last of several passes (only one is kept), with the shortest times of all."""
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


def _pass(subject: _Subject, begin: _Backward, end: _Backward | None = None) -> _Pass:
    """``begin`` returns the gradients of the inputs, ``end`` does the rest."""
    layer, device = subject.layer, subject.device
    before = layer.checksum()
    started = _now(device)
    inputs = subject.inputs()
    outputs = subject.forward(inputs)
    last = subject.behind(outputs)
    between = _now(device)
    if layer.checksum() != before:
        raise TypeError(
            "its forward changes its own buffers (running statistics?), which other agents"
            " would not see: use a layer without them, or track_running_stats=False"
        )
    activation = stage.Activation(inputs, last)
    seeds = tuple(torch.ones_like(v) if v.requires_grad else None for v in last)
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


def _try_halves(subject: _Subject, whole: _Pass) -> tuple[Halves, _Pass | None]:
    """The best split into I and W with the same bits as the whole backward, and its times."""
    for way in (Halves.HELPER, Halves.TWICE):
        if way > stage.BEST_HALVES:
            continue
        try:
            found = _best_of(lambda way=way: _apart(subject, way))  # type: ignore[misc]
            if _are_equal(whole.gradients, found.gradients):
                return way, found
        except Exception as error:  # whatever a user's layer or torch's helper raises
            _log.info("layer %d: %s: %s", subject.index, type(error).__name__, error)
            _take_gradients(subject.layer)
    return Halves.NONE, None


def _apart(subject: _Subject, way: Halves) -> _Pass:
    def begin(
        activation: stage.Activation, seeds: stage.Gradients, parameters: Sequence[torch.Tensor]
    ) -> stage.Gradients:
        return stage.backward_input(activation, seeds, parameters, way)

    def end(
        activation: stage.Activation, seeds: stage.Gradients, parameters: Sequence[torch.Tensor]
    ) -> stage.Gradients:
        stage.backward_weight(activation, seeds, parameters, way)
        return ()

    return _pass(subject, begin, end)


def _are_equal(some: Sequence[torch.Tensor | None], others: Sequence[torch.Tensor | None]) -> bool:
    """Bit for bit."""
    return all(
        a is b if a is None or b is None else torch.equal(_bits(a), _bits(b))
        for a, b in zip(some, others, strict=True)
    )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    dense = tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()
    return dense.contiguous().reshape(-1).view(torch.uint8)


def _kept_bytes(subject: _Subject) -> int:
    """Bytes that a forward keeps for its backward, without the parameters. Only the inputs, if a
    layer does not allow hooks on saved tensors (torch.func)."""
    own = {_memory(p)[0] for p in subject.layer.module.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        where, size = _memory(tensor)
        if where not in own:
            kept[where] = size
        return tensor.detach()  # an output saved in its own graph would never be freed

    inputs = subject.inputs()
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            outputs = subject.forward(inputs)
            subject.behind(outputs)
    except Exception as error:  # the layer itself has just run without error
        _log.info("layer %d: the bytes it keeps are unknown: %s", subject.index, error)
        return _num_bytes(inputs)
    kept |= dict(_memory(tensor) for tensor in (*inputs, *outputs))
    return sum(kept.values())


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    """Address and bytes of a tensor's memory, or an estimate for sparse and nested tensors."""
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    except (NotImplementedError, RuntimeError):
        return id(tensor), tensor.numel() * tensor.element_size()


def _num_bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
