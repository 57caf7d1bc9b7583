"""The state of one layer (module, optimizer, buffers), and its form as named tensors.

Checkpoint files and other agents get that form: ``param/<name>``, ``buffer/<name>``, and the
optimizer's tensors with a JSON object beside them (:mod:`bamboo_agent.compute.optimizer_state`). A
parameter with two names stands there once.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from bamboo_agent.compute.optimizer_state import OptimizerState
from bamboo_agent.device.digests import digest
from bamboo_agent.device.random_state import seed_weights
from bamboo_agent.model import FactoryError, Model
from bamboo_agent.payloads.kinds import LayerRecord
from bamboo_agent.user_code import told

OptimizerFactory = Callable[[Sequence[torch.Tensor]], Any]
"""Parameters of one layer -> torch optimizer."""


def sizes_of(outlines: Sequence[tuple[torch.Tensor, ...]]) -> tuple[int, ...]:
    """Layer -> number of trainable parameters. outlines: of each layer."""
    return tuple(sum(p.numel() for p in outline) for outline in outlines)


class Layer:
    """One layer that this agent holds. ``optimizer`` is None if it has no parameters. ``version``:
    the step that it can compute next, set by the back end."""

    def __init__(self, module: nn.Module, make_optimizer: OptimizerFactory) -> None:
        self.module = module
        self.names = [name for name, p in module.named_parameters() if p.requires_grad]
        self.parameters = [p for _, p in module.named_parameters() if p.requires_grad]
        self.size = sum(p.numel() for p in self.parameters)
        self.optimizer = make_optimizer(self.parameters) if self.parameters else None
        self.optimizer_state: OptimizerState | None = None
        if self.optimizer is not None:
            self.optimizer_state = OptimizerState(self.optimizer, self.names, self.parameters)
        self.version = 0

    def outline(self) -> tuple[torch.Tensor, ...]:
        """The trainable parameters without their values, as tensors that have no memory."""
        return tuple(torch.empty_like(p, device="meta") for p in self.parameters)

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


def trainable(layers: Sequence[Layer]) -> list[torch.Tensor]:
    """The layers' trainable parameters, in order."""
    return [parameter for layer in layers for parameter in layer.parameters]


def _defaults() -> tuple[torch.dtype, torch.device]:
    return torch.get_default_dtype(), torch.get_default_device()


class LayerBuilder:
    """Builds any layer of the model in its initial state."""

    def __init__(
        self, model: Model, make_optimizer: OptimizerFactory, *, seed: int, device: torch.device
    ) -> None:
        self._model, self._make = model, make_optimizer
        self._seed, self._device = seed, device

    def build(self, layer: int) -> Layer:
        """The layer with its initial weights. FactoryError if its factory fails."""
        seed_weights(self._seed, layer)
        before = _defaults()
        try:
            module = self._model.layers[layer]()
        except (Exception, SystemExit) as error:
            raise FactoryError(f"layer {layer}: {told(error)}") from error
        if before != _defaults():
            raise FactoryError(
                f"layer {layer}, {type(module).__name__}: its function changes torch's default"
                f" dtype or device from {before} to {_defaults()}, with which other layers would be"
                " built: set it back, or name dtype and device where tensors are made"
            )
        if not isinstance(module, nn.Module):
            raise FactoryError(f"layer {layer} is a {type(module).__name__}, not an nn.Module")
        if any(isinstance(p, UninitializedParameter) for p in module.parameters()):
            raise FactoryError(
                f"layer {layer}, {type(module).__name__}: it is lazy, so its sizes are not known:"
                " give them (nn.Linear instead of nn.LazyLinear)"
            )
        # built on the CPU, so that all kinds of device start with the same weights
        return Layer(module.to(self._device).train(), self._make)
