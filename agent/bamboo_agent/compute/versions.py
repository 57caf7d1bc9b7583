"""Versions of layers: built, loaded, and changed by the update of each step."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bamboo_agent.compute import optim
from bamboo_agent.compute.checks import CodeError
from bamboo_agent.compute.state import State
from bamboo_agent.compute.sums import GradientSums
from bamboo_agent.device.random_state import seed_update
from bamboo_agent.losses.totals import rescale
from bamboo_agent.payloads.kinds import LayerRecord
from bamboo_agent.user_code import told
from bamboo_core.model.program import Instruction, updating


class Versions:
    """``read_layer(layer)``: a layer of the running LOAD."""

    def __init__(
        self, state: State, sums: GradientSums, read_layer: Callable[[int], LayerRecord]
    ) -> None:
        self._state, self._sums, self._read_layer = state, sums, read_layer
        self._held, self._layers = state.held, state.layers
        self._checks, self._commits = state.checks, state.commits

    def init(self, task: Instruction) -> None:
        """INIT: layers in their initial state."""
        for layer in range(task.lo, task.hi):
            self._held.build(layer)

    def load(self, task: Instruction) -> None:
        """LOAD: layers of a checkpoint."""
        for layer in range(task.lo, task.hi):
            self._held.restore(layer, self._read_layer(layer), task.step)

    def update(self, task: Instruction) -> None:
        """UPDATE: one optimizer step of each layer, unless the commit says that there is none."""
        record = self._commits[task.step]
        for layer in range(task.lo, task.hi):
            self._layers[layer].version = task.step + 1
        if not record.finite:
            return
        sums = list(updating(task.ranges))
        factor = rescale(record.targets, self._state.nominal)
        for layer in range(task.lo, task.hi):
            gradient = self._sums.of_layer(task.step, sums, layer)
            scale = self._state.setup.clip_scale(layer, record, factor)
            self._update_layer(task, layer, gradient, scale)

    def _update_layer(
        self, task: Instruction, layer: int, gradient: torch.Tensor, scale: float | list[float]
    ) -> None:
        found, is_checked = self._layers[layer], self._checks.is_due(task.step, layer)
        count = self._state.batch.microbatches

        def update() -> None:
            seed_update(self._state.setup.seed, task.step, layer)
            try:
                optim.update(found, gradient[: found.size], scale=scale, step=task.step)
            except (Exception, SystemExit) as error:
                made = f"{type(found.optimizer).__name__} for layer {layer}"
                which = f"the update of step {task.step} by {made}"
                raise CodeError(f"{which}, {type(found.module).__name__}: {told(error)}") from error
            found.statistics.update(gradient[found.size :], count)

        def checked() -> None:
            self._checks.update(task, layer, found, update)

        self._held.update(layer, checked if is_checked else update)
