"""Passes of one layer: their times, their bits, and the ways in which a backward may be split.

The planner partitions the model by the times, and splits backwards where that is faster and gives
equal bits. Each way is run as training and recoveries use it: both halves one after the other, and
the second half alone, by an agent that took the work over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from bamboo_agent.compute import stage
from bamboo_agent.compute.layers import Layer
from bamboo_agent.compute.stage import Halves
from bamboo_agent.payloads.flow import Flow
from bamboo_agent.payloads.plain_values import have_equal_bits
from bamboo_agent.setup.probe.refusal import RefusedError
from bamboo_agent.setup.probe.subject import Subject

_log = logging.getLogger(__name__)

Tensors = Sequence[torch.Tensor | None]
_Backward = Callable[[stage.Activation, stage.Gradients, Sequence[torch.Tensor]], stage.Gradients]


@dataclass(frozen=True)
class Pass:
    """One forward and backward. given: gradients of the inputs; weights: of the parameters.
    input_s: the part of backward_s until the gradients of the inputs were ready."""

    outputs: Flow
    given: stage.Gradients
    weights: list[torch.Tensor | None]
    forward_s: float
    backward_s: float
    input_s: float

    @property
    def tensors(self) -> Tensors:
        """All results."""
        return (*self.outputs, *self.given, *self.weights)


def whole(subject: Subject) -> Pass:
    """A backward as B runs it, and one that stands for I and W. RefusedError if their bits differ:
    both run the same operations."""
    first = run(subject, _whole)
    again = run(subject, *_halves(Halves.WHOLE))
    if name := _difference(first, again):
        raise _unrepeatable(name)
    return _faster(again, first)


def split(subject: Subject, expected: Pass) -> tuple[Halves, Pass | None]:
    """The best way to split the backward into I and W, and its times; None: it is not split.

    A stage uses the way that all its layers bear, so a way counts only if those below it do.
    """
    best, times = Halves.WHOLE, None
    if not _can(subject, expected, _nothing, _halves(Halves.TWICE)[1]):  # W without I, in any way
        return best, times
    for way in (Halves.TWICE, Halves.HELPER):
        found = _can(subject, expected, *_halves(way)) if way <= stage.BEST_HALVES else None
        if found is None:
            break
        best, times = way, found
    return best, None if times is None else _faster(times, run(subject, *_halves(best)))


def _can(subject: Subject, expected: Pass, begin: _Backward, end: _Backward) -> Pass | None:
    """A pass with both halves of a backward, if it gives the same bits. The input's gradients are
    not compared if the first half gives none. RefusedError if its forward gives others."""
    try:
        found = run(subject, begin, end)
    except Exception as error:  # whatever a user's layer or torch's helper raises
        _log.info("layer %d: %s: %s", subject.index, type(error).__name__, error)
        _take_gradients(subject.layer)
        return None
    if not _are_equal(expected.outputs, found.outputs):
        raise _unrepeatable("output")
    wanted = expected if begin is not _nothing else replace(expected, given=())
    return None if _difference(wanted, found) else found


def _unrepeatable(name: str) -> RefusedError:
    return RefusedError(
        f"its {name} has other bits when the same micro-batch is computed again: a layer may depend"
        " only on its arguments, weights and torch's random state"
    )


def _faster(made: Pass, other: Pass) -> Pass:
    """The pass, with the shortest times of both."""
    if other.backward_s < made.backward_s:
        made = replace(made, backward_s=other.backward_s, input_s=other.input_s)
    return replace(made, forward_s=min(made.forward_s, other.forward_s))


def run(subject: Subject, begin: _Backward, end: _Backward | None = None) -> Pass:
    """``begin`` returns the gradients of the inputs, ``end`` does the rest."""
    layer, device = subject.layer, subject.device
    started = _now(device)
    inputs = subject.inputs()
    outputs = subject.forward(inputs)
    last = subject.behind(outputs)
    between = _now(device)
    activation = stage.Activation(inputs, last)
    seeds = tuple(torch.ones_like(v) if v.requires_grad else None for v in last)
    ready = _now(device)
    given = begin(activation, seeds, layer.parameters)
    halfway = _now(device)
    if end is not None:
        end(activation, seeds, layer.parameters)
    done = _now(device)
    weights = _take_gradients(layer)
    forward_s, backward_s, input_s = between - started, done - ready, halfway - ready
    return Pass(outputs, given, weights, forward_s, backward_s, input_s)


def flat_gradient(layer: Layer, weights: Tensors) -> torch.Tensor:
    """The gradients of the parameters as an update takes them: flat, in fp32."""
    parts = [
        torch.zeros(p.numel(), device=p.device) if g is None else _dense(g).reshape(-1).float()
        for p, g in zip(layer.parameters, weights, strict=True)
    ]
    return torch.cat(parts)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _take_gradients(layer: Layer) -> list[torch.Tensor | None]:
    found = [parameter.grad for parameter in layer.parameters]
    for parameter in layer.parameters:
        parameter.grad = None
    return found


def _whole(
    activation: stage.Activation, seeds: stage.Gradients, _: Sequence[torch.Tensor]
) -> stage.Gradients:
    return stage.backward(activation, seeds)


def _nothing(*_: object) -> stage.Gradients:
    return ()


def _halves(way: Halves) -> tuple[_Backward, _Backward]:
    def begin(
        activation: stage.Activation, seeds: stage.Gradients, parameters: Sequence[torch.Tensor]
    ) -> stage.Gradients:
        return stage.backward_input(activation, seeds, parameters, way)

    def end(
        activation: stage.Activation, seeds: stage.Gradients, parameters: Sequence[torch.Tensor]
    ) -> stage.Gradients:
        stage.backward_weight(activation, seeds, parameters, way)
        return ()

    return begin, end


def _difference(one: Pass, other: Pass) -> str:
    """Which results differ; empty: none."""
    for name in ("outputs", "given", "weights"):
        if not _are_equal(getattr(one, name), getattr(other, name)):
            return {"outputs": "output", "given": "input's gradient"}.get(name, "weights' gradient")
    return ""


def _are_equal(some: Tensors, others: Tensors) -> bool:
    """Bit for bit."""
    return all(
        a is b if a is None or b is None else have_equal_bits(a, b)
        for a, b in zip(some, others, strict=True)
    )


def kept_bytes(subject: Subject) -> int:
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
        return num_bytes(inputs)
    kept |= dict(_memory(tensor) for tensor in (*inputs, *outputs))
    return sum(kept.values())


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    """Address and bytes of a tensor's memory, or an estimate for sparse and nested tensors."""
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    except (NotImplementedError, RuntimeError):
        return id(tensor), tensor.numel() * tensor.element_size()


def num_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes of their elements."""
    return sum(t.numel() * t.element_size() for t in tensors)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
