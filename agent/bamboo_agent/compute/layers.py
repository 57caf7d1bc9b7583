"""The state of one layer (module, optimizer, buffers), and its form as named tensors.

Checkpoint files and other agents get that form: ``param/<name>``, ``buffer/<name>``, and the
optimizer's tensors with a JSON object beside them (:mod:`bamboo_agent.compute.optimizer_state`). A
parameter with two names stands there once.
"""

from __future__ import annotations

import json
import traceback
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from bamboo_agent.compute.optimizer_state import OptimizerState
from bamboo_agent.device import precision as precisions
from bamboo_agent.device.digests import digest
from bamboo_agent.device.random_state import seed_weights
from bamboo_agent.model import FactoryError, Model
from bamboo_agent.modules.batch_norm import NormError, RunningStatistics
from bamboo_agent.payloads.kinds import LayerRecord
from bamboo_agent.payloads.plain_values import have_equal_bits
from bamboo_agent.user_code import told
from bamboo_agent.weight_files.initial import InitialWeights
from bamboo_agent.weight_files.outlines import LayerOutline, WeightsError
from bamboo_core.api.spec import Precision

_TORCH = Path(torch.__file__).parent

OptimizerFactory = Callable[[Sequence[Any]], Any]
"""Parameters of one layer, or torch's groups of them -> torch optimizer."""
Grouping = Callable[[Sequence[str], Sequence[torch.Tensor]], Sequence[Any]]
"""Names and parameters of one layer -> what its optimizer is made of."""
Computing = Callable[[], AbstractContextManager[object]]
"""Makes what is entered while a forward runs."""


@dataclass(frozen=True)
class Outline:
    """What a layer adds up in a step, as tensors without memory: first the gradients of its
    trainable parameters, then its running statistics."""

    parameters: tuple[torch.Tensor, ...] = ()
    statistics: tuple[torch.Tensor, ...] = ()

    @property
    def summed(self) -> tuple[torch.Tensor, ...]:
        """All of them, in order."""
        return self.parameters + self.statistics

    @cached_property
    def trained(self) -> int:
        """Numbers in the trainable parameters."""
        return sum(p.numel() for p in self.parameters)

    @cached_property
    def size(self) -> int:
        """Numbers that are added up."""
        return self.trained + sum(s.numel() for s in self.statistics)


@dataclass(frozen=True)
class Use:
    """One of the places of a tied parameter. ``place``: among what its layer adds up."""

    layer: int
    name: str
    place: slice


Tie = tuple[Use, ...]
"""All places of one parameter, in layer order."""


class Layer:
    """One layer that this agent holds.

    ``optimizer`` is None if it has no parameters. ``statistics``: of its BatchNorms. ``summed``:
    tensors whose ``.grad`` a step adds up. ``version``: the step that it can compute next, set by
    the back end. ``gives_float32``: whether its outputs are widened, so that a loss is computed in
    fp32.
    """

    def __init__(
        self,
        module: nn.Module,
        make_optimizer: OptimizerFactory,
        *,
        group: Grouping | None = None,
        computing: Computing = nullcontext,
        gives_float32: bool = False,
    ) -> None:
        self.module, self.gives_float32 = module, gives_float32
        self._computing = computing
        self.names = [name for name, p in module.named_parameters() if p.requires_grad]
        self.parameters = [p for _, p in module.named_parameters() if p.requires_grad]
        self.size = sum(p.numel() for p in self.parameters)
        self.statistics = RunningStatistics(module)
        self.summed = [*self.parameters, *self.statistics.slots]
        taken = self.parameters if group is None else group(self.names, self.parameters)
        self.optimizer = make_optimizer(taken) if taken else None
        self.optimizer_state: OptimizerState | None = None
        if self.optimizer is not None:
            self.optimizer_state = OptimizerState(self.optimizer, self.names, self.parameters)
        self.version = 0

    def call(self, *arguments: Any) -> Any:
        """Call the module, computed in the job's precision. All forwards come here."""
        with self._computing():
            return self.module(*arguments)

    def outline(self) -> Outline:
        """Forms of all that it adds up in a step."""
        parameters, statistics = (
            tuple(torch.empty_like(p, device="meta") for p in tensors)
            for tensors in (self.parameters, self.statistics.slots)
        )
        return Outline(parameters, statistics)

    def place(self, name: str) -> slice:
        """Where a trainable parameter is among what the layer adds up."""
        number = self.names.index(name)
        at = sum(p.numel() for p in self.parameters[:number])
        return slice(at, at + self.parameters[number].numel())

    def set_training(self, training: bool) -> None:
        """Switch dropout etc., only if it changes: this visits all submodules."""
        if self.module.training != training:
            self.module.train(training)

    def weights(self) -> list[torch.Tensor]:
        """All parameters and buffers, themselves."""
        return [*self.module.parameters(), *self.module.buffers()]

    def moments(self) -> list[torch.Tensor]:
        """The tensors of the optimizer's state, themselves."""
        return [] if self.optimizer_state is None else self.optimizer_state.moments()

    def groups_text(self) -> str:
        """The values of the optimizer's groups that are no tensors, as a new optimizer has them."""
        return "" if self.optimizer_state is None else self.optimizer_state.groups_text()

    def checksum(self) -> int:
        """Equal if weights, buffers and optimizer state are bitwise equal."""
        state = self.state()
        tensors = (tensor for _, tensor in sorted(state.tensors.items()))
        return digest(tensors, zlib.crc32(state.extra.encode()))

    def record(self) -> LayerRecord:
        """A copy of the whole state on the CPU, independent of later updates. StateError names what
        cannot be carried."""
        state = self.state()
        copied = {
            name: tensor.detach().to("cpu", copy=True).contiguous()
            for name, tensor in state.tensors.items()
        }
        return replace(state, tensors=copied)

    def state(self) -> LayerRecord:
        """The whole state, with the tensors themselves. StateError names what a record cannot
        carry."""
        tensors: dict[str, torch.Tensor] = {}
        tensors |= {f"param/{n}": p for n, p in self.module.named_parameters()}
        tensors |= {f"buffer/{n}": b for n, b in self.module.named_buffers()}
        extra: dict[str, Any] = {}
        if self.optimizer_state is not None:
            moments, extra = self.optimizer_state.write()
            tensors |= moments
        return LayerRecord(tensors, json.dumps(extra, sort_keys=True))

    def restore(self, record: LayerRecord) -> None:
        """Replace the whole state. ValueError if it is the state of another layer."""
        self._copy("param/", dict(self.module.named_parameters()), record.tensors)
        self._copy("buffer/", dict(self.module.named_buffers()), record.tensors)
        if self.optimizer_state is not None:
            self.optimizer_state.restore(record.tensors, json.loads(record.extra))

    @staticmethod
    def _copy(
        prefix: str, targets: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]
    ) -> None:
        for name, target in targets.items():
            source = tensors.get(prefix + name)
            if source is None or source.shape != target.shape or source.dtype != target.dtype:
                found = "nothing" if source is None else f"{source.dtype}{tuple(source.shape)}"
                want = f"{target.dtype}{tuple(target.shape)}"
                raise ValueError(f"{prefix}{name} should be {want}, the record has {found}")
            with torch.no_grad():
                target.copy_(source)


def _parameter(module: nn.Module, layer: int, name: str) -> nn.Parameter:
    """FactoryError if the layer has no trainable parameter of this name."""
    known = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if name not in known:
        near = get_close_matches(name, known) or list(known)[:3]
        raise FactoryError(
            f"Model.ties: layer {layer}, {type(module).__name__}, has no trainable parameter"
            f" {name!r}; it has {', '.join(near) or 'none'}"
        )
    return known[name]


def _making(error: BaseException) -> str:
    """Which module the layer's function was making when it raised, and the line outside of torch,
    as they stand behind a layer's number."""
    frames = list(traceback.walk_tb(error.__traceback__))[1:]
    made = (f.f_locals.get("self") for f, _ in frames if f.f_code.co_name == "__init__")
    kind = next((f", {type(x).__name__}" for x in made if isinstance(x, nn.Module)), "")
    lines = [
        f" ({Path(f.f_code.co_filename).name}, line {line})"
        for f, line in frames
        if _TORCH not in Path(f.f_code.co_filename).parents
    ]
    return f"{kind}{lines[-1] if lines else ''}"


def _form(parameter: torch.Tensor) -> str:
    return f"{str(parameter.dtype).removeprefix('torch.')} {tuple(parameter.shape)}"


def _defaults() -> tuple[torch.dtype, torch.device]:
    return torch.get_default_dtype(), torch.get_default_device()


class LayerBuilder:
    """Builds any layer of the model in its initial state."""

    def __init__(
        self,
        model: Model,
        make_optimizer: OptimizerFactory,
        *,
        seed: int,
        device: torch.device,
        initial: InitialWeights | None = None,
        group: Grouping | None = None,
        precision: Precision = Precision.FLOAT32,
    ) -> None:
        """initial: first weights from files; None: those that the factories give."""
        self._model, self._make, self._group = model, make_optimizer, group
        self._seed, self._device, self._initial = seed, device, initial
        self._computing = partial(precisions.computing, precision, device)
        is_short = precision is Precision.BFLOAT16
        self._widened = len(model.layers) - 1 if is_short else None
        # layer -> tied parameters: the first layer with each, its name there, and the name here
        self._copies: dict[int, list[tuple[int, str, str]]] = {}
        for uses in model.ties:
            (first, theirs), *others = sorted(uses)
            for layer, name in others:
                self._copies.setdefault(layer, []).append((first, theirs, name))

    def build(self, layer: int) -> Layer:
        """The layer with its initial weights. FactoryError if its factory fails, or its first
        weights are not in their files.

        A tied parameter begins as in the first layer that has it.
        """
        module = self._filled(layer)
        for first, theirs, ours in self._copies.get(layer, ()):
            source = _parameter(self._filled(first), first, theirs)
            target = _parameter(module, layer, ours)
            if (one := _form(source)) != (other := _form(target)):
                raise FactoryError(
                    f"Model.ties: {theirs} of layer {first} is {one}, {ours} of layer {layer} is"
                    f" {other}: they must have one shape and dtype"
                )
            if self._initial is not None and self._initial.gives(layer, ours):
                self._check_tied(source, target, f"{ours} of layer {layer}")
            with torch.no_grad():
                target.copy_(source)
        # built on the CPU, so that all kinds of device start with the same weights
        module = module.to(self._device).train()
        try:
            return Layer(
                module,
                self._make,
                group=self._group,
                computing=self._computing,
                gives_float32=layer == self._widened,
            )
        except (FactoryError, NormError) as error:
            raise FactoryError(f"layer {layer}, {type(module).__name__}: {error}") from error

    def outline(self, layer: int) -> LayerOutline:
        """Names and forms of the weights that the layer's function gives."""
        copied = frozenset(ours for _, _, ours in self._copies.get(layer, ()))
        return LayerOutline.of(self._module(layer), copied)

    @staticmethod
    def _check_tied(source: torch.Tensor, target: torch.Tensor, name: str) -> None:
        if not have_equal_bits(source, target):
            raise FactoryError(
                f"spec.model.initialFrom has other values for {name} than for the parameter that"
                " Model.ties makes one with it: name files of a model with this tie, or untie it"
            )

    def _filled(self, layer: int) -> nn.Module:
        """With first weights from files, if there are any."""
        module = self._module(layer)
        if self._initial is not None:
            copied = frozenset(ours for _, _, ours in self._copies.get(layer, ()))
            try:
                self._initial.fill(layer, module, copied)
            except WeightsError as error:
                raise FactoryError(str(error)) from error
        return module

    def _module(self, layer: int) -> nn.Module:
        seed_weights(self._seed, layer)
        before = _defaults()
        try:
            module = self._model.layers[layer]()
        except (Exception, SystemExit) as error:
            raise FactoryError(f"layer {layer}{_making(error)}: {told(error)}") from error
        if before != _defaults():
            raise FactoryError(
                f"layer {layer}, {type(module).__name__}: its function changes torch's default"
                f" dtype or device from {before} to {_defaults()}, with which other layers would be"
                " built: set it back, or name dtype and device where tensors are made"
            )
        if not isinstance(module, nn.Module):
            remedy = "return one from its function"
            if module is None:
                remedy = "its function returns nothing; return the layer from it"
            kind = type(module).__name__
            raise FactoryError(f"layer {layer} is a {kind}, not an nn.Module: {remedy}")
        if any(isinstance(p, UninitializedParameter) for p in module.parameters()):
            raise FactoryError(
                f"layer {layer}, {type(module).__name__}: it is lazy, so its sizes are not known:"
                " give them (nn.Linear instead of nn.LazyLinear)"
            )
        return module
