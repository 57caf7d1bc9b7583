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
from bamboo_agent.losses.forms import read
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

    def run(self, steps: int) -> Iterator[Scalars]:
        """Train; one result for each step."""
        for step in range(steps):
            yield self._step(step)

    def record(self, layer: int) -> LayerRecord:
        """A layer's whole state, as a checkpoint holds it."""
        return self._layers[layer].record()

    def _step(self, step: int) -> Scalars:
        losses: list[tuple[float, int]] = []
        flat = self._gradient(step, losses)
        norms, at, split = [], 0, []
        for layer in self._layers:
            split.append(flat[at : at + layer.outline().size])
            at += layer.outline().size
        for tie in self._setup.ties:  # the first layer gets the sum, and the others nothing for now
            first, *others = tie
            for use in others:
                split[first.layer][first.place] += split[use.layer][use.place]
                split[use.layer][use.place] = 0
        for layer, gradient in zip(self._layers, split, strict=True):
            norms.append(float(optim.gradient_norm(gradient[: layer.size])))
        of_groups = self._group_norms(split)
        for first, *others in self._setup.ties:
            for use in others:
                split[use.layer][use.place] = split[first.layer][first.place]
        targets = sum(count for _, count in losses)
        # the backwards have divided by as many targets as every micro-batch usually has
        factor = self._usual_targets / targets if targets else 1.0
        grad_norm = math.sqrt(sum(norm * norm for norm in norms)) * factor
        if math.isfinite(grad_norm) and targets:
            scales = self._scales(grad_norm, of_groups, factor)
            for index, (layer, gradient) in enumerate(zip(self._layers, split, strict=True)):
                seed_update(self._setup.seed, step, index)
                optim.update(layer, gradient[: layer.size], scale=scales[index], step=step)
                layer.statistics.update(gradient[layer.size :], self._batch.microbatches)
        total = sum(part for part, _ in losses)
        return Scalars(total / targets if targets else math.nan, grad_norm)

    def _group_norms(self, split: list[torch.Tensor]) -> dict[int, float]:
        """Norms of groups that are clipped by themselves. split: the gradient of each layer."""
        squares: dict[int, float] = {}
        groups = self._setup.clip_groups
        for layer, gradient, own in zip(self._layers, split, groups, strict=bool(groups)):
            parts = torch.split(gradient[: layer.size], [p.numel() for p in layer.parameters])
            for group in set(own):
                norms = [
                    part.clone().norm() for part, x in zip(parts, own, strict=True) if x == group
                ]
                norm = float(torch.stack(norms).norm())
                squares[group] = squares.get(group, 0.0) + norm * norm
        return {group: math.sqrt(square) for group, square in squares.items()}

    def _scales(
        self, grad_norm: float, of_groups: dict[int, float], factor: float
    ) -> list[float] | list[list[float]]:
        """The scale of each layer, or of each of its parameters. factor: of all gradients."""
        limit = self._setup.clip_norm
        if not of_groups:
            return [factor * optim.clip_scale(grad_norm, limit)] * len(self._layers)
        scales = {
            group: factor * optim.clip_scale(norm * factor, limit)
            for group, norm in of_groups.items()
        }
        return [[scales[group] for group in own] for own in self._setup.clip_groups]

    @property
    def _usual_targets(self) -> int:
        return self._batch.microbatches * self._setup.usual_count

    def _gradient(self, step: int, losses: list[tuple[float, int]]) -> torch.Tensor:
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

    def _leaf(self, step: int, leaf: int, losses: list[tuple[float, int]]) -> torch.Tensor:
        """The sum of a leaf's micro-batches: flat, in fp32, in the order of the parameters."""
        size = sum(layer.outline().size for layer in self._layers)
        total = torch.zeros(size, device=self._setup.device)
        for microbatch in self._batch.microbatches_of(leaf):
            statistics: list[torch.Tensor] = []
            loss, count = self._loss(step, microbatch, statistics)
            losses.append((float(loss.detach()), count))
            # of the global batch's mean, but for a factor if targets are counted
            torch.autograd.backward(loss / self._usual_targets)
            at = 0
            for tensor, value in self._summed(microbatch, statistics):
                if value is not None:
                    dense = value if value.layout is torch.strided else value.to_dense()
                    total[at : at + tensor.numel()] += dense.reshape(-1).float()
                at += tensor.numel()
        return total

    def _loss(
        self, step: int, microbatch: int, statistics: list[torch.Tensor]
    ) -> tuple[torch.Tensor, int]:
        """The sum over the micro-batch's targets and their number; a mean counts as one."""
        setup = self._setup
        inputs, target = setup.data.training(step, microbatch)
        outputs = stage.run_layers(
            self._layers,
            Flow.of(inputs),
            lambda layer: seed_forward(setup.seed, step, microbatch, layer, setup.device),
            statistics,
        )
        found = read(setup.model.loss(outputs.value, target))
        return found.tensor, found.count

    def _summed(
        self, microbatch: int, statistics: list[torch.Tensor]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """All that the micro-batch adds to the sums: each tensor, and its value. statistics: of all
        layers' BatchNorms."""
        count, at = self._batch.microbatches, 0
        for layer in self._layers:
            for parameter in layer.parameters:
                yield parameter, parameter.grad
                parameter.grad = None
            slots = layer.statistics.slots
            found = statistics[at : at + len(slots)]
            at += len(slots)
            yield from zip(slots, layer.statistics.weigh(found, microbatch, count), strict=True)
