"""Self-checks: a sampled share of the work is computed twice, before anything keeps its result.

Nothing of a wrong result has left the agent when the check fails, so the end of its worker is an
ordinary loss. A fault that repeats exactly is not found, since both computations are this agent's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from bamboo_agent.compute.layers import Layer
from bamboo_agent.compute.stage import Activation, Gradients
from bamboo_agent.device.digests import digest
from bamboo_core.model import sampling
from bamboo_core.model.ids import AgentId
from bamboo_core.model.program import Instruction


class CodeError(Exception):
    """The user's code has raised in mid-job: a layer, the loss or an optimizer."""


class CorruptionError(Exception):
    """An instruction gave other bits when it was computed again."""


class Checks:
    """What one agent computes twice. every: see :func:`bamboo_core.model.sampling.is_due`."""

    def __init__(self, agent: AgentId, every: int) -> None:
        self._agent, self._every = agent, every

    def is_due(self, step: int, index: int) -> bool:
        """Whether the work on this layer is computed twice."""
        return sampling.is_due(step, index, self._every)

    def is_task_due(self, task: Instruction) -> bool:
        """Whether this instruction is computed twice."""
        return sampling.is_task_due(task, self._every)

    def compare(self, task: Instruction, first: int, second: int, what: str = "") -> None:
        """CorruptionError unless both digests are equal. what: a part of the instruction."""
        if first != second:
            raise self.error(what or str(task))

    def error(self, what: str) -> CorruptionError:
        """This agent has computed something twice, and the results differ."""
        return CorruptionError(
            f"{what} gave two results on {self._agent}: look for a faulty device or memory there,"
            " or for layers and optimizers that are not deterministic"
        )

    def forward(self, task: Instruction, made: Activation, again: Callable[[], Activation]) -> None:
        """Compare a forward with a second one. CorruptionError."""
        self.compare(task, digest_of(made), digest_of(again()))

    def gradients(
        self,
        task: Instruction,
        parameters: Sequence[torch.Tensor],
        run: Callable[[], Gradients],
        again: Callable[[], Gradients],
    ) -> Gradients:
        """Return the gradients that ``run`` gives, and compare them with those of ``again``.

        Both add to the parameters' ``.grad``; these sums must be equal, too. It needs memory for
        a second set of them. CorruptionError.
        """
        begun = [None if p.grad is None else p.grad.clone() for p in parameters]
        given = run()
        sums = [parameter.grad for parameter in parameters]
        first = digest((*sums, *given))
        for parameter, gradient in zip(parameters, begun, strict=True):
            parameter.grad = gradient
        given_again = again()
        second = digest((*(parameter.grad for parameter in parameters), *given_again))
        for parameter, gradient in zip(parameters, sums, strict=True):
            parameter.grad = gradient
        self.compare(task, first, second)
        return given

    def update(self, task: Instruction, index: int, layer: Layer, run: Callable[[], None]) -> None:
        """Run the update of a layer, twice from the same state. CorruptionError."""
        before = layer.record()
        run()
        first = layer.checksum()
        layer.restore(before)
        run()
        self.compare(
            task, first, layer.checksum(), f"the update of layer {index} in step {task.step}"
        )


def digest_of(activation: Activation) -> int:
    """The digest of a forward's outputs and statistics, and of its loss and metrics."""
    made, found = (*activation.outputs, *activation.statistics), activation.loss
    if found is None:
        return digest(made)
    figures = found.read()
    numbers = figures if isinstance(figures, float) else figures.pairs
    return digest((*made, torch.tensor(numbers, dtype=torch.float64)))
