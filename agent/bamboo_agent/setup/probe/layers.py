"""Tries every layer, one at a time, as training and recovery will use it.

A layer is built, run forward and backward in every way that training may use, updated twice, and
built twice more. What the probe cannot confirm is refused, by name and with the remedy. This is
also the first run of the user's code, so its errors are reported here, each in one line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bamboo_agent.compute import stage
from bamboo_agent.compute.layers import Layer, LayerBuilder, sizes_of
from bamboo_agent.compute.stage import Halves
from bamboo_agent.device.digests import digest
from bamboo_agent.model import FactoryError, Model
from bamboo_agent.payloads.flow import Flow
from bamboo_agent.payloads.kinds import LayerRecord
from bamboo_agent.payloads.plain_values import have_equal_bits
from bamboo_agent.setup.probe import builds, losses, passes, updates
from bamboo_agent.setup.probe.builds import Owners
from bamboo_agent.setup.probe.passes import Pass
from bamboo_agent.setup.probe.refusal import RefusedError
from bamboo_agent.setup.probe.subject import Finish, Subject
from bamboo_agent.setup.probe.updates import Updates
from bamboo_agent.user_code import told
from bamboo_core.protocol.messages import LayerCost


@dataclass(frozen=True)
class Profile:
    """One entry per layer, and what must be equal on all agents."""

    outlines: tuple[tuple[torch.Tensor, ...], ...]  # trainable parameters without their values
    costs: tuple[LayerCost, ...]  # for Ready
    halves: tuple[Halves, ...]  # how the backward is split
    weights: str = ""  # digest of the layers' first states
    outputs: str = ""  # digest of outputs and gradients
    # targets that the loss leaves out of its mean; None: it is a mean over all
    ignored: tuple[int | None, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Layer -> number of trainable parameters."""
        return sizes_of(self.outlines)


@dataclass(frozen=True)
class Samples:
    """Micro-batches that the probe uses, each (input, target). other: None if a step has only one.
    validation: None if there is no such set."""

    first: tuple[Any, Any]
    other: tuple[Any, Any] | None = None
    validation: tuple[Any, Any] | None = None
    steps: int = 8  # of the job


def probe(model: Model, builder: LayerBuilder, samples: Samples, device: torch.device) -> Profile:
    """Run one micro-batch through the layers. FactoryError names the layer that failed."""
    tried = _Probe(model, builder, samples.steps)
    values, target = Flow.of(samples.first[0]), samples.first[1]
    evaluated = None if samples.validation is None else Flow.of(samples.validation[0])
    last = len(model.layers) - 1
    for index in range(len(model.layers)):
        layer = builder.build(index)
        finish = _loss(model, target) if index == last else None
        subject = Subject(layer, index, values, device, finish)
        try:
            values = tried.try_layer(subject)
            if evaluated is not None:
                evaluated = tried.evaluate(layer, evaluated)
        except RefusedError as error:
            raise FactoryError(f"{_name(layer, index)}: {error}") from error
        except (Exception, SystemExit) as error:
            raise FactoryError(f"{_name(layer, index)}: {told(error)}") from error
    tried.try_longer()
    try:
        ignored = _try_loss(model, values, samples)
    except RefusedError as error:
        raise FactoryError(str(error)) from error
    return tried.profile(ignored)


class _Probe:
    """The layers that have been tried, and what was found. steps: of the job."""

    def __init__(self, model: Model, builder: LayerBuilder, steps: int) -> None:
        self._model, self._builder, self._steps = model, builder, steps
        self._owners = Owners()
        self._outlines: list[tuple[torch.Tensor, ...]] = []
        self._costs: list[LayerCost] = []
        self._halves: list[Halves] = []
        self._weights: list[int] = []
        self._outputs: list[int | str] = []

    def profile(self, ignored: Sequence[int | None]) -> Profile:
        """All that was found. ignored: targets that the loss leaves out of its mean."""
        return Profile(
            tuple(self._outlines),
            tuple(self._costs),
            tuple(self._halves),
            _text(self._weights),
            _text(self._outputs),
            tuple(ignored),
        )

    def try_layer(self, subject: Subject) -> Flow:
        """Returns the layer's outputs."""
        layer = subject.layer
        self._owners.claim(subject.index, layer.module)
        builds.check_dense(layer.module)
        first = layer.record()
        self._weights.append(layer.checksum())
        versions = [tensor._version for tensor in layer.weights()]
        subject.first_forward()
        _check_unchanged(first, layer)
        _check_unwritten(layer, versions)
        whole = self._try_passes(subject)
        _check_unchanged(first, layer)
        self._outputs.append(digest(whole.tensors))
        self._try_builds(subject, first, whole)
        return whole.outputs.map(torch.Tensor.detach)

    def _try_passes(self, subject: Subject) -> Pass:
        layer = subject.layer
        loss = None if subject.finish is None else self._model.loss
        check_unseen = updates.watch_passes(layer, loss)
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
        self._outlines.append(layer.outline())
        self._costs.append(cost)
        self._halves.append(way)
        return whole

    def _try_builds(self, subject: Subject, first: LayerRecord, whole: Pass) -> None:
        """Update the layer twice and compare it with new builds. first: its first state."""
        layer, index = subject.layer, subject.index
        tried: tuple[Updates, LayerRecord] | None = None
        if layer.optimizer is not None:
            rates = updates.check_rate(layer, self._steps)
            gradient = passes.flat_gradient(layer, whole.weights)
            both = Updates(layer, index, gradient, self._steps)
            tried = both, both.run()
            self._outputs += [layer.checksum(), rates, layer.groups_text()]
        second = self._builder.build(index)
        builds.check_apart(layer, second)
        builds.check_equal(first, second)
        if tried is not None:
            both, record = tried
            both.check_copy(record, second)
        third = self._builder.build(index)
        builds.check_apart(layer, third)
        builds.check_apart(second, third)
        builds.check_equal(first, third)

    def try_longer(self) -> None:
        """Many updates of the smallest layer: all layers have the same kind of optimizer."""
        sizes = sizes_of(self._outlines)
        trained = [(size, index) for index, size in enumerate(sizes) if size]
        if not trained:
            return
        size, index = min(trained)
        layer, fresh = self._builder.build(index), self._builder.build(index)
        generator = torch.Generator().manual_seed(1)
        gradient = torch.randn(size, generator=generator).to(layer.parameters[0].device)
        try:
            Updates(layer, index, gradient * 0.01, self._steps).run_longer(fresh)
        except RefusedError as error:
            raise FactoryError(f"{_name(layer, index)}: {error}") from error

    def evaluate(self, layer: Layer, values: Flow) -> Flow:
        """The layer's outputs as in validation."""
        before = [tensor.detach().clone() for tensor in layer.weights()]
        layer.set_training(False)
        with torch.no_grad():
            outputs = stage.run_layers([layer], values, lambda _: None)
        layer.set_training(True)
        for (name, _), one, other in zip(
            builds.named(layer.module), before, layer.weights(), strict=True
        ):
            if not have_equal_bits(one, other):
                raise RefusedError(
                    f"validation changes its {name}, and only agents that validate would have"
                    " that: use a layer whose eval() and forward change nothing (merge adapters"
                    " outside of it)"
                )
        self._outputs.append(digest(outputs))
        return outputs


def _name(layer: Layer, index: int) -> str:
    return f"layer {index}, {type(layer.module).__name__}"


def _text(digests: Sequence[int | str]) -> str:
    return hashlib.sha256(repr(digests).encode()).hexdigest()[:16]


def _loss(model: Model, target: Any) -> Finish:
    if isinstance(model.loss, nn.Module):
        for name, parameter in model.loss.named_parameters():
            if parameter.requires_grad:
                raise FactoryError(
                    f"the loss has parameters of its own: {name} would never be trained: put them"
                    " into the last layer, or set requires_grad to False"
                )

    def finish(outputs: Flow) -> Flow:
        loss = model.loss(outputs.value, target)
        if not isinstance(loss, torch.Tensor):
            raise TypeError(f"loss must be a scalar tensor, got {type(loss).__name__}")
        if loss.dim() != 0:
            shape = tuple(loss.shape)
            raise TypeError(f"loss must be a scalar tensor, got one of shape {shape}: use .mean()")
        if not loss.requires_grad and any(value.requires_grad for value in outputs):
            raise RefusedError(
                "the loss has no gradient, so nothing would be trained: compute it from the outputs"
                " without detach(), item(), argmax() or a comparison"
            )
        return Flow((loss,))

    return finish


def _check_unchanged(first: LayerRecord, layer: Layer) -> None:
    name = builds.difference(first, layer.state())
    if name:
        raise RefusedError(
            f"its forward changes {name}, which other agents would not see: use a layer that does"
            " not (for running statistics track_running_stats=False, an embedding without max_norm,"
            " no clamp of weights in the forward)"
        )


def _check_unwritten(layer: Layer, versions: Sequence[int]) -> None:
    """RefusedError if a forward has written into a weight, though it may have written what stood
    there: other values come later. torch counts the writes."""
    names = [name for name, _ in builds.named(layer.module)]
    for name, tensor, version in zip(names, layer.weights(), versions, strict=True):
        if tensor._version != version:
            raise RefusedError(
                f"its forward writes into {name}, which other agents would not see: use a layer"
                " that does not (an embedding without max_norm, no statistics that are kept)"
            )


def _try_loss(model: Model, outputs: Flow, samples: Samples) -> list[int | None]:
    """Targets that the loss leaves out of its mean, None: it is a mean over all. outputs: of the
    last layer."""
    if samples.other is None:
        return []
    loss, target = model.loss, samples.first[1]
    losses.check_means(loss, outputs, (target, samples.other[1]))
    is_mean = losses.is_mean(loss, outputs, target)
    return [*losses.ignored_targets(loss, outputs, target), *([None] if is_mean else [])]
