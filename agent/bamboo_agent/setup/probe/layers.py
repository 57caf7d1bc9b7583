"""Tries every layer, one at a time, as training and recovery will use it.

A layer is built, run forward and backward in every way that training may use, updated twice, and
built twice more. What the probe cannot confirm is refused, by name and with the remedy. This is
also the first run of the user's code, so its errors are reported here, each in one line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bamboo_agent.compute import stage
from bamboo_agent.compute.layers import Layer, LayerBuilder
from bamboo_agent.compute.stage import Halves
from bamboo_agent.device.digests import digest
from bamboo_agent.model import FactoryError, Model
from bamboo_agent.payloads.kinds import LayerRecord
from bamboo_agent.setup.probe import builds, losses, passes, updates
from bamboo_agent.setup.probe.builds import Owners
from bamboo_agent.setup.probe.passes import Pass
from bamboo_agent.setup.probe.refusal import RefusedError
from bamboo_agent.setup.probe.subject import Finish, Subject
from bamboo_agent.setup.probe.updates import Updates
from bamboo_core.protocol.messages import LayerCost


@dataclass(frozen=True)
class Profile:
    """One entry per layer, and what must be equal on all agents."""

    sizes: tuple[int, ...]  # number of trainable parameters
    costs: tuple[LayerCost, ...]  # for Ready
    halves: tuple[Halves, ...]  # how the backward is split
    weights: str = ""  # digest of the layers' first states
    outputs: str = ""  # digest of outputs and gradients
    # targets that the loss leaves out of its mean; None: it is a mean over all
    ignored: tuple[int | None, ...] = ()


@dataclass(frozen=True)
class Samples:
    """Micro-batches that the probe uses, each (input, target). other: None if a step has only one.
    validation: None if there is no such set."""

    first: tuple[Any, Any]
    other: tuple[Any, Any] | None = None
    validation: tuple[Any, Any] | None = None


@dataclass
class _Findings:
    sizes: list[int] = field(default_factory=list)
    costs: list[LayerCost] = field(default_factory=list)
    halves: list[Halves] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)


def probe(model: Model, builder: LayerBuilder, samples: Samples, device: torch.device) -> Profile:
    """Run one micro-batch through the layers. FactoryError names the layer that failed."""
    values, target = stage.as_tuple(samples.first[0]), samples.first[1]
    evaluated = None if samples.validation is None else stage.as_tuple(samples.validation[0])
    found, owners, last = _Findings(), Owners(), len(model.layers) - 1
    for index in range(len(model.layers)):
        layer = builder.build(index)
        subject = Subject(
            layer, index, values, device, _loss(model, target) if index == last else None
        )
        try:
            values = _try_layer(subject, builder, owners, found)
            if evaluated is not None:
                evaluated = _evaluate(layer, evaluated, found)
        except RefusedError as error:
            raise FactoryError(f"{_name(layer, index)}: {error}") from error
        except Exception as error:
            text = f"{_name(layer, index)}: {type(error).__name__}: {error}"
            raise FactoryError(text) from error
    try:
        ignored = _try_loss(model, values, samples)
    except RefusedError as error:
        raise FactoryError(str(error)) from error
    return Profile(
        tuple(found.sizes),
        tuple(found.costs),
        tuple(found.halves),
        _text(found.weights),
        _text(found.outputs),
        tuple(ignored),
    )


def _name(layer: Layer, index: int) -> str:
    return f"layer {index}, {type(layer.module).__name__}"


def _text(digests: Sequence[int]) -> str:
    return hashlib.sha256(repr(digests).encode()).hexdigest()[:16]


def _loss(model: Model, target: Any) -> Finish:
    def finish(outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        loss = model.loss(outputs[0] if len(outputs) == 1 else outputs, target)
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
            raise TypeError(f"loss must be a scalar tensor, got {type(loss).__name__}")
        return (loss,)

    return finish


def _try_layer(
    subject: Subject, builder: LayerBuilder, owners: Owners, found: _Findings
) -> tuple[torch.Tensor, ...]:
    """Returns the layer's outputs."""
    layer = subject.layer
    owners.claim(subject.index, layer.module)
    first = layer.record()
    found.weights.append(layer.checksum())
    subject.first_forward()
    _check_unchanged(first, layer)
    whole = _try_passes(subject, found)
    _check_unchanged(first, layer)
    found.outputs.append(digest(whole.tensors))
    _try_builds(subject, builder, first, whole)
    return tuple(value.detach() for value in whole.outputs)


def _check_unchanged(first: LayerRecord, layer: Layer) -> None:
    name = builds.difference(first, layer.state())
    if name:
        raise RefusedError(
            f"its forward changes {name} (running statistics?), which other agents would not see:"
            " use a layer without them, or track_running_stats=False"
        )


def _try_passes(subject: Subject, found: _Findings) -> Pass:
    layer = subject.layer
    check_unseen = updates.watch_passes(layer)
    try:
        whole = passes.whole(subject)
        way, apart = passes.split(subject, whole)
    except RefusedError:
        check_unseen()  # the path of what has changed says more than that bits differ
        raise
    check_unseen()
    cost = LayerCost(
        forward_s=whole.forward_s,
        backward_s=whole.backward_s,
        parameter_bytes=passes.num_bytes(list(layer.module.parameters())),
        output_bytes=passes.num_bytes(whole.outputs),
        input_gradient_s=apart.input_s if apart else 0.0,
        weight_gradient_s=apart.backward_s - apart.input_s if apart else 0.0,
        can_split=apart is not None,
        activation_bytes=passes.kept_bytes(subject),
    )
    found.sizes.append(layer.size)
    found.costs.append(cost)
    found.halves.append(way)
    return whole


def _try_builds(subject: Subject, builder: LayerBuilder, first: LayerRecord, whole: Pass) -> None:
    """Update the layer twice and compare it with new builds. first: its first state."""
    layer, index = subject.layer, subject.index
    tried: tuple[Updates, LayerRecord] | None = None
    if layer.optimizer is not None:
        updates.check_rate(layer)
        both = Updates(layer, passes.flat_gradient(layer, whole.weights))
        tried = both, both.run()
    second = builder.build(index)
    builds.check_apart(layer, second)
    builds.check_equal(first, second)
    if tried is not None:
        both, record = tried
        both.check_copy(record, second)
    third = builder.build(index)
    builds.check_apart(layer, third)
    builds.check_apart(second, third)
    builds.check_equal(first, third)


def _evaluate(
    layer: Layer, values: tuple[torch.Tensor, ...], found: _Findings
) -> tuple[torch.Tensor, ...]:
    """The layer's outputs as in validation."""
    layer.set_training(False)
    with torch.no_grad():
        outputs = stage.run_layers([layer], values, lambda _: None)
    layer.set_training(True)
    found.outputs.append(digest(outputs))
    return outputs


def _try_loss(
    model: Model, outputs: tuple[torch.Tensor, ...], samples: Samples
) -> list[int | None]:
    """Targets that the loss leaves out of its mean, None: it is a mean over all. outputs: of the
    last layer."""
    if samples.other is None:
        return []
    loss, target = model.loss, samples.first[1]
    losses.check_means(loss, outputs, (target, samples.other[1]))
    is_mean = losses.is_mean(loss, outputs, target)
    return [*losses.ignored_targets(loss, outputs, target), *([None] if is_mean else [])]
