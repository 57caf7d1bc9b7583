"""Tries every layer, one at a time, as training and recovery will use it.

A layer is built, run forward and backward in every way that training may use, updated twice, and
built twice more. What the probe cannot confirm is refused, by name and with the remedy. This is
also the first run of the user's code, so its errors are reported here, each in one line.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bamboo_agent.compute import stage
from bamboo_agent.compute.layers import Layer, LayerBuilder, Outline, Tie
from bamboo_agent.compute.stage import Halves
from bamboo_agent.data.forms import described
from bamboo_agent.device.digests import digest
from bamboo_agent.ipc.computed import Computed
from bamboo_agent.losses.forms import LossError, LossForm, read
from bamboo_agent.model import FactoryError, Model
from bamboo_agent.payloads.flow import Flow, shapes_of, told_shapes
from bamboo_agent.payloads.kinds import LayerRecord
from bamboo_agent.payloads.plain_values import have_equal_bits
from bamboo_agent.setup.probe import builds, losses, passes, ties, updates
from bamboo_agent.setup.probe.builds import Owners
from bamboo_agent.setup.probe.losses import TriedLoss
from bamboo_agent.setup.probe.passes import Pass
from bamboo_agent.setup.probe.refusal import RefusedError
from bamboo_agent.setup.probe.subject import Finish, Subject
from bamboo_agent.setup.probe.updates import Updates
from bamboo_agent.user_code import text_of, told
from bamboo_core.protocol.messages import LayerCost

_OF_SHAPES = re.compile(
    r"shape|size|dimension|channels|dtype|positional argument|unexpected keyword|out of range"
    r"|must be Tensor, not"
)
"""In errors of layers that get what they do not take."""


_OF_CLASSES = re.compile(
    r"0D or 1D target|batches of spatial targets|target dtype to be Long|scalar type Long"
)
"""In errors of losses that take numbers of classes."""
_IMAGE_DIMS = 3  # of a micro-batch: (samples, height, width), or with channels


class _LossRefusedError(RefusedError):
    """The loss is wrong, and not the layer before it."""


@dataclass(frozen=True)
class Profile:
    """One entry per layer, and what must be equal on all agents."""

    outlines: tuple[Outline, ...]  # what is added up in a step
    costs: tuple[LayerCost, ...]  # for Ready
    halves: tuple[Halves, ...]  # how the backward is split
    names: tuple[tuple[str, ...], ...] = ()  # of the trainable parameters
    weights: str = ""  # digest of the layers' first states
    outputs: str = ""  # digest of outputs and gradients
    loss: TriedLoss = TriedLoss()  # noqa: RUF009 - frozen
    ties: tuple[Tie, ...] = ()


@dataclass(frozen=True)
class Samples:
    """Micro-batches that the probe uses, each (input, target). other: None if a step has only one.
    validation: None if there is no such set. origin: of the first one, in errors."""

    first: tuple[Any, Any]
    other: tuple[Any, Any] | None = None
    validation: tuple[Any, Any] | None = None
    steps: int = 8  # of the job
    origin: str = "spec.data"


def probe(
    model: Model,
    builder: LayerBuilder,
    samples: Samples,
    device: torch.device,
    computed: Computed | None = None,
) -> Profile:
    """Run one micro-batch through the layers. FactoryError names the layer that failed. computed:
    where the layer is noted."""
    computed = computed or Computed()
    tried = _Probe(model, builder, samples.steps)
    values, target = Flow.of(samples.first[0]), samples.first[1]
    evaluated = None if samples.validation is None else Flow.of(samples.validation[0])
    last = len(model.layers) - 1
    for index in range(len(model.layers)):
        computed.begin(f"layer {index}")
        layer = builder.build(index)
        computed.begin_layer(index, layer.module)
        finish = _loss(model, target, samples.origin) if index == last else None
        subject = Subject(layer, index, values, device, finish)
        try:
            values = tried.try_layer(subject)
            if evaluated is not None:
                evaluated = tried.evaluate(layer, evaluated)
        except _LossRefusedError as error:
            raise FactoryError(str(error)) from error
        except RefusedError as error:
            raise FactoryError(f"{_name(layer, index)}: {error}") from error
        except (Exception, SystemExit) as error:
            text = f"{_name(layer, index)}: {told(error)}; {_given(subject, error)}"
            raise FactoryError(text) from error
    computed.end()
    tried.try_ties()
    tried.try_longer()
    targets = [pair[1] for pair in (samples.first, samples.other) if pair is not None]
    validation = None
    if evaluated is not None and samples.validation is not None:
        validation = evaluated, samples.validation[1]
    computed.begin_loss()
    try:
        return tried.profile(losses.try_loss(model.loss, values, targets, validation))
    except (RefusedError, LossError) as error:
        raise FactoryError(str(error)) from error
    except (Exception, SystemExit) as error:
        raise FactoryError(f"the loss: {told(error)}") from error


class _Probe:
    """The layers that have been tried, and what was found. steps: of the job."""

    def __init__(self, model: Model, builder: LayerBuilder, steps: int) -> None:
        self._model, self._builder, self._steps = model, builder, steps
        self._owners = Owners()
        self._names: list[tuple[str, ...]] = []
        self._outlines: list[Outline] = []
        self._costs: list[LayerCost] = []
        self._halves: list[Halves] = []
        self._weights: list[int] = []
        self._outputs: list[int | str] = []
        self._ties: tuple[Tie, ...] = ()

    def profile(self, loss: TriedLoss) -> Profile:
        """All that was found."""
        kind = [] if loss.form == LossForm() else [f"{loss.form}, {loss.usual_count}"]
        return Profile(
            tuple(self._outlines),
            tuple(self._costs),
            tuple(self._halves),
            tuple(self._names),
            _text([*self._weights, *map(repr, self._ties)]),
            _text([*self._outputs, *kind]),
            loss,
            self._ties,
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
        self._names.append(tuple(layer.names))
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

    def try_ties(self) -> None:
        """Once all layers have been tried."""
        self._ties = ties.find(self._model, self._builder)

    def try_longer(self) -> None:
        """Many updates of the smallest layer: all layers have the same kind of optimizer."""
        sizes = enumerate(outline.trained for outline in self._outlines)
        trained = [(size, index) for index, size in sizes if size]
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


def _is_of_numbers(value: torch.Tensor) -> bool:
    return value.dim() == 1 and not value.is_floating_point()


def _given(subject: Subject, error: BaseException) -> str:
    """The input of a layer that has failed, and what to change if that is not what it takes."""
    before = f"layer {subject.index - 1}" if subject.index else "the data set"
    text = f"{before} gives {shapes_of(subject.values)}"
    if isinstance(subject.values.value, Mapping):
        text = f"{before} gives {described(subject.values.value)}: {shapes_of(subject.values)}"
    if not subject.index and any(value.dtype is torch.float64 for value in subject.values):
        return f"{text}: make it float32 in the data set, such as with array.astype(numpy.float32)"
    if isinstance(error, RuntimeError | TypeError | ValueError | IndexError) and (
        _OF_SHAPES.search(text_of(error))
    ):
        text += f": make layer {subject.index} take what {before} gives"
    is_number = all(map(_is_of_numbers, subject.values))
    if not subject.index and is_number and isinstance(error, RuntimeError):
        text += "; a number for each sample may be its target: input and target may be swapped"
    return text


def _taken(target: Any, error: BaseException) -> str:
    """Say what to give to a loss that has raised."""
    is_of_classes = isinstance(error, RuntimeError) and _OF_CLASSES.search(text_of(error))
    if not (is_of_classes and isinstance(target, torch.Tensor) and target.is_floating_point()):
        return "give it what it takes"
    text = "it takes numbers of classes: give an integer as the target of a sample, as int(label)"
    if target.dim() >= _IMAGE_DIMS:
        text += "; images stand there: input and target may be swapped"
    return text


def _loss(model: Model, target: Any, origin: str) -> Finish:
    if isinstance(model.loss, nn.Module):
        for name, parameter in model.loss.named_parameters():
            if parameter.requires_grad:
                raise FactoryError(
                    f"the loss has parameters of its own: {name} would never be trained: put them"
                    " into the last layer, or set requires_grad to False"
                )

    def finish(outputs: Flow) -> Flow:
        try:
            loss = read(model.loss(outputs.value, target)).tensor
        except LossError as error:
            raise _LossRefusedError(str(error)) from error
        except (Exception, SystemExit) as error:
            text = (
                f"the loss raised {told(error)}; the model gives {shapes_of(outputs)}, and the"
                f" targets of {origin} are {told_shapes(target)}: {_taken(target, error)}"
            )
            raise _LossRefusedError(text) from error
        if not loss.requires_grad and any(value.requires_grad for value in outputs):
            raise _LossRefusedError(
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
