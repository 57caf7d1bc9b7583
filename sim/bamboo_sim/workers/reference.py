"""The sequential training program that agents must equal bit for bit.

It shares model, data set and sample order with the agents, and no other code. Random keys, sums,
clipping and commit records are its own. What nothing seeds is drawn from the system's seeds.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bamboo_agent.data.order import sample_indices
from bamboo_agent.datasets import text
from bamboo_agent.models import gpt
from bamboo_sim.workers import system_seeds

STEPS, G, SIZE, SEED, CLIP = 3, 24, 2, 7, 0.5
LIMITS: dict[str, Any] = {"context": 16, "limit_bytes": 1600}
Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Outcome:
    """losses, norms: one per step; validation: step -> loss; state: "layer/kind/name" -> tensor."""

    losses: list[float]
    norms: list[float]
    validation: dict[int, float]
    state: dict[str, torch.Tensor]


def seed(*words: object) -> None:
    text = "/".join(map(str, words))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest, "little"))


class Loop:
    def __init__(self) -> None:
        system_seeds.draw()
        self.model = gpt.build(layers=4, width=32, heads=2, context=16, dropout=0.1)
        self.layers = []
        for i, build in enumerate(self.model.layers):
            seed("weights", SEED, i)
            self.layers.append(build())
        self.training = text.build(**LIMITS)
        self.validation = text.build(split="validation", **LIMITS)
        self.optimizers = [
            torch.optim.AdamW(layer.parameters(), lr=3e-3, weight_decay=0.1)
            for layer in self.layers
        ]

    def batch(self, dataset: Any, indices: Iterable[int]) -> tuple[torch.Tensor, torch.Tensor]:
        pairs = [dataset[i] for i in indices]
        return torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])

    def loss(self, pair: tuple[torch.Tensor, torch.Tensor], step: int, m: int) -> torch.Tensor:
        x, target = pair
        for i, layer in enumerate(self.layers):
            seed("forward", SEED, step, m, i)
            x = layer(x)
        loss: torch.Tensor = self.model.loss(x, target)
        return loss

    def micro_batch(self, step: int, m: int) -> tuple[float, Tensors]:
        """Mean loss, and gradients of all layers."""
        indices = sample_indices(
            seed=SEED, step=step, microbatch=m, microbatches=G, size=SIZE,
            samples=len(self.training),
        )  # fmt: skip
        loss = self.loss(self.batch(self.training, indices), step, m)
        parameters = [p for layer in self.layers for p in layer.parameters()]
        return float(loss.detach()), torch.autograd.grad(loss / G, parameters)

    def evaluate(self, step: int) -> float:
        total, count = 0.0, len(self.validation) // SIZE
        for layer in self.layers:
            layer.eval()
        with torch.no_grad():
            for m in range(count):
                indices = range(m * SIZE, (m + 1) * SIZE)
                total += float(self.loss(self.batch(self.validation, indices), step, m))
        for layer in self.layers:
            layer.train()
        return total / count

    def gradient(self, step: int, leaf_size: int, chunks: int) -> tuple[list[float], Tensors]:
        """The step's losses and its canonical sum."""
        losses: list[float] = []
        leaves: list[list[torch.Tensor]] = []
        for m in range(G):
            loss, gradients = self.micro_batch(step, m)
            losses.append(loss)
            if m % leaf_size == 0:
                leaves.append([torch.zeros_like(g) for g in gradients])
            leaves[-1] = [a + g for a, g in zip(leaves[-1], gradients, strict=True)]
        pieces = []
        for c in range(chunks):
            mine = [x for i, x in enumerate(leaves) if i * chunks // len(leaves) == c]
            total = mine[0]
            for leaf in mine[1:]:
                total = [a + b for a, b in zip(total, leaf, strict=True)]
            pieces.append(total)
        while len(pieces) > 1:
            pairs = zip(pieces[::2], pieces[1::2], strict=True)
            pieces = [[a + b for a, b in zip(x, y, strict=True)] for x, y in pairs]
        return losses, pieces[0]

    def update(self, gradient: Tensors) -> float:
        """Clip by the norm over the layers, in order; one optimizer each."""
        rest, norms, split = list(gradient), [], []
        for layer in self.layers:
            count = len(list(layer.parameters()))
            split.append(rest[:count])
            rest = rest[count:]
            flat = torch.cat([g.flatten() for g in split[-1]])
            norms.append(float(torch.linalg.vector_norm(flat)))
        norm = math.sqrt(sum(n * n for n in norms))
        scale = CLIP / (norm + 1e-6) if norm > CLIP else 1.0
        for layer, optimizer, gradients in zip(self.layers, self.optimizers, split, strict=True):
            for parameter, g in zip(layer.parameters(), gradients, strict=True):
                parameter.grad = g * scale
            optimizer.step()
        return norm

    def state(self) -> dict[str, torch.Tensor]:
        found = {}
        for i, (layer, optimizer) in enumerate(zip(self.layers, self.optimizers, strict=True)):
            for name, parameter in layer.named_parameters():
                found[f"{i}/param/{name}"] = parameter.detach()
                for key, value in optimizer.state[parameter].items():
                    found[f"{i}/optim/{name}/{key}"] = value
        return found


def train(*, leaf_size: int, chunks: int, steps: int = STEPS, validate_every: int = 2) -> Outcome:
    torch.set_num_threads(1)
    loop, losses, norms, validation = Loop(), [], [], {}
    for step in range(steps):
        if step % validate_every == 0:
            validation[step] = loop.evaluate(step)
        per_micro_batch, gradient = loop.gradient(step, leaf_size, chunks)
        losses.append(sum(per_micro_batch) / G)
        norms.append(loop.update(gradient))
    validation[steps] = loop.evaluate(steps)
    return Outcome(losses, norms, validation, loop.state())
