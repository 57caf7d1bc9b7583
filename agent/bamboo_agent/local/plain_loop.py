"""A plain training loop of the same layers: what a job must equal bit for bit.

It shares with the agents how one layer is called, the seeds, the samples and an optimizer's step.
It has no stages, tasks, plans, messages and votes, and its passes, sums and norms are its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from bamboo_agent.compute import optim, stage
from bamboo_agent.compute.state import TrainingSetup
from bamboo_agent.device.random_state import seed_forward, seed_update
from bamboo_agent.payloads.flow import Flow
from bamboo_agent.payloads.kinds import LayerRecord
from bamboo_core.model.numerics import BatchShape


@dataclass(frozen=True)
class Scalars:
    """Of one step."""

    loss: float
    grad_norm: float


class PlainLoop:
    """All layers in one process, one micro-batch after another."""

    def __init__(self, setup: TrainingSetup, batch: BatchShape) -> None:
        self._setup, self._batch = setup, batch
        self._layers = [setup.builder.build(i) for i in range(len(setup.model.layers))]
        self._parameters = [p for layer in self._layers for p in layer.parameters]

    def run(self, steps: int) -> Iterator[Scalars]:
        """Train; one result for each step."""
        for step in range(steps):
            yield self._step(step)

    def record(self, layer: int) -> LayerRecord:
        """A layer's whole state, as a checkpoint holds it."""
        return self._layers[layer].record()

    def _step(self, step: int) -> Scalars:
        losses: list[float] = []
        flat = self._gradient(step, losses)
        norms, at, split = [], 0, []
        for layer in self._layers:
            split.append(flat[at : at + layer.size])
            at += layer.size
            norms.append(float(torch.linalg.vector_norm(split[-1])))
        grad_norm = math.sqrt(sum(norm * norm for norm in norms))
        if math.isfinite(grad_norm):
            scale = optim.clip_scale(grad_norm, self._setup.clip_norm)
            for index, (layer, gradient) in enumerate(zip(self._layers, split, strict=True)):
                if layer.size:
                    seed_update(self._setup.seed, step, index)
                    optim.update(layer, gradient, scale=scale, step=step)
        return Scalars(sum(losses) / len(losses), grad_norm)

    def _gradient(self, step: int, losses: list[float]) -> torch.Tensor:
        """The canonical sum (:mod:`bamboo_core.model.numerics`): leaves are added up in their
        chunk; of the chunks' sums, two of equal size are added as soon as both are there."""
        done: list[tuple[int, torch.Tensor]] = []  # (chunks in it, their sum)
        for chunk in range(self._batch.chunks):
            first, *others = self._batch.leaves_of(chunk)
            total = self._leaf(step, first, losses)
            for leaf in others:
                total.add_(self._leaf(step, leaf, losses))
            size = 1
            while done and done[-1][0] == size:
                total = done.pop()[1].add_(total)
                size *= 2
            done.append((size, total))
        ((_, total),) = done
        return total

    def _leaf(self, step: int, leaf: int, losses: list[float]) -> torch.Tensor:
        """The sum of a leaf's micro-batches: flat, in fp32, in the order of the parameters."""
        total = torch.zeros(sum(p.numel() for p in self._parameters), device=self._setup.device)
        for microbatch in self._batch.microbatches_of(leaf):
            loss = self._loss(step, microbatch)
            losses.append(float(loss.detach()))
            at = 0
            for parameter, gradient in zip(self._parameters, self._backward(loss), strict=True):
                if gradient is not None:
                    dense = gradient if gradient.layout is torch.strided else gradient.to_dense()
                    total[at : at + parameter.numel()] += dense.reshape(-1).float()
                at += parameter.numel()
        return total

    def _loss(self, step: int, microbatch: int) -> torch.Tensor:
        setup = self._setup
        inputs, target = setup.data.training(step, microbatch)
        outputs = stage.run_layers(
            self._layers,
            Flow.of(inputs),
            lambda layer: seed_forward(setup.seed, step, microbatch, layer, setup.device),
        )
        return setup.model.loss(outputs.value, target)

    def _backward(self, loss: torch.Tensor) -> list[torch.Tensor | None]:
        """Of the mean over the global batch."""
        torch.autograd.backward(loss / self._batch.microbatches)
        found = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        return found
