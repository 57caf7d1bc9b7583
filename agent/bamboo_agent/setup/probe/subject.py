"""A layer with its inputs and what follows it: what the probe runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bamboo_agent.compute import stage
from bamboo_agent.compute.layers import Layer
from bamboo_agent.device.random_state import seed_forward
from bamboo_agent.payloads.flow import Flow, FlowError
from bamboo_agent.payloads.plain_values import have_equal_bits
from bamboo_agent.setup.probe.refusal import RefusedError

Finish = Callable[[Flow], Flow]
"""What follows a layer: the loss after the last one. It is the user's code, too."""

_IN_PLACE = "a leaf Variable that requires grad is being used in an in-place operation"


@dataclass(frozen=True)
class Subject:
    """One layer with its input and what follows it. ``values``: of micro-batch 0 of step 0."""

    layer: Layer
    index: int
    values: Flow
    device: torch.device
    finish: Finish | None

    def forward(self, inputs: Flow) -> Flow:
        """The layer's outputs, with the same random state every time."""
        return stage.run_layers(
            [self.layer], inputs, lambda _: seed_forward(0, 0, 0, self.index, self.device), []
        )

    def behind(self, outputs: Flow) -> Flow:
        """The tensors with which the backward begins."""
        return outputs if self.finish is None else self.finish(outputs)

    def inputs(self) -> Flow:
        """Leaves of a new graph."""
        return stage.detached(self.values, first=self.index == 0)

    def first_forward(self) -> None:
        """Run the layer once, so that what it caches is there; check what it gives and draws.

        RefusedError names what other agents would not see.
        """
        values = [value.clone() for value in self.values]
        seed_forward(0, 0, 0, self.index, self.device)
        drawn = _python_generators()
        try:
            given = self.layer.call(*self.inputs().arguments)
        except RuntimeError as error:
            if _IN_PLACE in str(error):
                raise RefusedError(
                    "its first operation changes its input in place: use the one that returns a new"
                    " tensor (relu instead of relu_, x = x + y instead of x += y)"
                ) from error
            raise
        _check_value(given, flows=self.finish is None)
        if drawn != _python_generators():
            raise RefusedError(
                "its forward draws from numpy's or random's generator, which is not seeded for each"
                " forward: draw from torch's"
            )
        if not all(map(have_equal_bits, values, self.values)):
            raise RefusedError(
                "its forward changes its input in place, which other agents would not see: use"
                " operations that return a new tensor"
            )


def _check_value(value: Any, *, flows: bool) -> None:
    """RefusedError unless it can flow to the next layer, with a tensor at least. flows: there is a
    next one."""
    try:
        flow = Flow.of(value)
    except FlowError as error:
        raise RefusedError(f"its forward returns {error}") from error
    if not flow:
        raise RefusedError("its forward returns no tensor: return one, with which training goes on")
    if flows and any(tensor.is_complex() for tensor in flow):
        raise RefusedError(
            "its forward returns complex numbers, whose gradients do not go from stage to stage:"
            " return torch.view_as_real(x), and take torch.view_as_complex of it in the next layer"
        )


def _python_generators() -> tuple[Any, ...]:
    numpys = np.random.get_state()
    assert isinstance(numpys, tuple)
    return random.getstate(), numpys[1].tobytes(), *numpys[2:]
