"""Whether a layer's record is all that decides its next update.

A layer is updated twice. Its record after the first update goes into a fresh layer, which must be
equal after the same second update. What changes besides is listed by path: it may act later.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import safetensors.torch
import torch

from bamboo_agent.compute import optim
from bamboo_agent.compute.layers import Layer
from bamboo_agent.compute.optimizer_state import RATE, SCHEDULE
from bamboo_agent.device.random_state import seed_update
from bamboo_agent.payloads.kinds import LayerRecord
from bamboo_agent.payloads.plain_values import StateError
from bamboo_agent.setup.probe import reachable
from bamboo_agent.setup.probe.builds import difference
from bamboo_agent.setup.probe.reachable import Snapshot, address
from bamboo_agent.setup.probe.refusal import RefusedError
from bamboo_agent.user_code import told

_MORE = (
    "the optimizer's next update depends on more than its state and its param_groups, which are all"
    " that a copy and a checkpoint carry"
)
_IN_STATE = "keep it in the optimizer's state or param_groups, or leave it out"
_NOWHERE = "leave it out of the module, since other agents run the same forwards"
_SCHEDULE = (
    "torch's schedulers keep a state of their own; return (optimizer, rate), where rate(step) is"
    " the learning rate of a step"
)
_ENOUGH, _LEAST, _MOST = 60_000_000, 6, 14
"""Numbers that a longer run of updates may change in all, and its least and most updates."""


def check_rate(layer: Layer, steps: int) -> str:
    """RefusedError unless rate(step), or the schedule, is a pure function that gives numbers.
    Returns some of them.

    steps: of the job.
    """
    name, rate = "rate", getattr(layer.optimizer, RATE, None)
    if rate is None:
        name, rate = "schedule", getattr(layer.optimizer, SCHEDULE, None)
    if rate is None:
        return ""
    asked = sorted({step for step in (0, 1, 7, steps // 2, steps - 1) if step < steps})
    first = [_rate(rate, step, name) for step in asked]
    again = [_rate(rate, step, name) for step in reversed(asked)]
    for step, value in zip(asked, first, strict=True):
        if isinstance(value, bool) or not isinstance(value, float | int):
            kind = type(value).__name__
            raise RefusedError(
                f"{name}({step}) of its optimizer is a {kind}: return a float, such as"
                f" float({name})"
            )
        if name == "schedule" and not 0 <= value < math.inf:
            raise RefusedError(
                f"schedule({step}) of its optimizer is {value}: return a factor of the learning"
                " rates, from 0 on"
            )
    if first != again[::-1]:
        raise RefusedError(
            f"{name}(step) of its optimizer gives {first} and then {again[::-1]} for the same steps"
            f" {asked}: it must depend on the step alone"
        )
    return repr(first)


def _rate(rate: Callable[[int], Any], step: int, name: str) -> Any:
    try:
        return rate(step)
    except Exception as error:
        raise RefusedError(f"{name}({step}) of its optimizer raised {told(error)}") from error


class Updates:
    """The updates of a layer. gradient: flat, of a micro-batch; steps: of the job."""

    def __init__(self, layer: Layer, index: int, gradient: torch.Tensor, steps: int) -> None:
        self._layer, self._index, self._steps = layer, index, steps
        # a gradient that is not finite is never used
        self._gradient = torch.nan_to_num(gradient, nan=0.0, posinf=1.0, neginf=-1.0)
        self._roots = {type(layer.module).__name__: layer.module, "optimizer": layer.optimizer}

    def run(self) -> LayerRecord:
        """Update the layer twice. Returns the record after the first update.

        RefusedError names what has changed and is in no record.
        """
        self._update(self._layer, 0)
        record = self._record()
        before = self._look()
        self._update(self._layer, 1)
        _refuse_changes(before, self._look(), "an update changes", _IN_STATE)
        return record

    def check_copy(self, record: LayerRecord, fresh: Layer) -> None:
        """RefusedError unless a copy of the first record is equal after the second update."""
        fresh.restore(record)
        self._update(fresh, 1)
        name = difference(self._layer.state(), fresh.state())
        if name:
            raise RefusedError(f"its {name} differs when a copy of the layer is updated: {_MORE}")
        _check_strides(self._layer, fresh)

    def run_longer(self, fresh: Layer) -> None:
        """Many updates, with a copy in their middle that must be equal at their end: some of what
        an update does shows later. RefusedError. fresh: another build of the layer."""
        count = min(max(_ENOUGH // (2 * self._layer.size), _LEAST), _MOST)
        self._update(self._layer, 0)
        before = self._look()
        for step in range(1, count):
            self._update(self._layer, step)
            if step == count // 2:
                fresh.restore(self._record())
            elif step > count // 2:
                self._update(fresh, step)
        _refuse_changes(before, self._look(), "a later update changes", _IN_STATE)
        name = difference(self._layer.state(), fresh.state())
        if name:
            raise RefusedError(f"its {name} differs some updates after a copy: {_MORE}")

    def _update(self, layer: Layer, step: int) -> None:
        try:
            seed_update(0, step, self._index)
            last = min(step, self._steps - 1)  # a table of rates ends there
            optim.update(layer, self._gradient, scale=1.0, step=last)
        except (Exception, SystemExit) as error:
            made = f"{type(layer.optimizer).__name__} of spec.training.optimizer.factory"
            text = f"the update by its optimizer, {made}, failed: {told(error)}"
            raise RefusedError(text + _remedy(text)) from error

    def _record(self) -> LayerRecord:
        try:
            record = self._layer.record()
        except StateError as error:
            raise RefusedError(f"its state cannot be saved: {error}") from error
        _check_dtypes(record)
        return record

    def _look(self) -> Snapshot:
        carried = {address(tensor) for tensor in self._layer.state().tensors.values()} - {0}
        return reachable.snapshot(self._roots, carried, self._layer.optimizer)


def watch_passes(layer: Layer, loss: Any = None) -> Callable[[], None]:
    """Look at the module, and at the loss behind it, before forwards and backwards. The result,
    called after them, raises RefusedError if they have changed what no record carries."""
    roots = {type(layer.module).__name__: layer.module, "loss": loss}

    def look() -> Snapshot:
        carried = {address(tensor) for tensor in layer.weights()} - {0}
        return reachable.snapshot(roots, carried)

    before = look()
    return lambda: _refuse_changes(before, look(), "a forward or backward changes", _NOWHERE)


def _refuse_changes(before: Snapshot, after: Snapshot, what: str, remedy: str) -> None:
    paths = reachable.changed(before, after)
    if paths:
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        if any("torch.optim.lr_scheduler" in found for found in after.values()):
            remedy = _SCHEDULE
        raise RefusedError(
            f"{what} {paths[0]}{more}, which copies and checkpoints do not carry: {remedy}"
        )


def _check_dtypes(record: LayerRecord) -> None:
    """RefusedError if a tensor has a dtype that checkpoint files cannot have."""
    for name, tensor in record.tensors.items():
        try:
            safetensors.torch.save({"x": torch.empty(0, dtype=tensor.dtype)})
        except Exception as error:
            raise RefusedError(
                f"its {name} is {tensor.dtype}, which a checkpoint file cannot hold: store it as"
                " two real tensors, or in another dtype"
            ) from error


def _check_strides(one: Layer, other: Layer) -> None:
    mine, theirs = one.state().tensors, other.state().tensors
    for name, tensor in mine.items():
        if tensor.stride() != theirs[name].stride() and tensor.numel() > 1:
            raise RefusedError(
                f"its {name} has the strides {tensor.stride()}, its copy {theirs[name].stride()}:"
                " make it contiguous"
            )


def _remedy(text: str) -> str:
    if "closure" in text:
        return ": step() is called without a closure; use an optimizer that needs none"
    if "dense gradients" in text:
        return ": gradients are dense, since they are summed over agents; use a dense optimizer"
    return ""
