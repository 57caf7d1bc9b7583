"""What all systems train: the model, its batch, and how the peers share it among 8 workers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bamboo_agent.datasets import text
from bamboo_agent.models import gpt

MODEL: dict[str, Any] = {"layers": 6, "width": 96, "heads": 4, "context": 64, "dropout": 0.1}
DATA: dict[str, Any] = {"context": 64, "limit_bytes": 200_000}
ADAMW: dict[str, Any] = {"lr": 1e-3, "weight_decay": 0.1}
WORKERS = 8
MICROBATCHES, SIZE = 16, 2
BATCH = MICROBATCHES * SIZE
"""Samples of a step."""
SHARE = BATCH // WORKERS
"""Samples of one worker in a step, where every worker holds the whole model."""
CHECKPOINT_EVERY = 10
"""Steps between two checkpoints, where there are any."""


class Training:
    """The plain parts of a training loop with the whole model; one thread."""

    def __init__(self, worker: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(1)
        model = gpt.build(**MODEL)
        self.worker = worker
        self.module = nn.Sequential(*(build() for build in model.layers))
        self.optimizer = torch.optim.AdamW(self.module.parameters(), **ADAMW)
        self._loss: Callable[[Any, Any], torch.Tensor] = model.loss
        self._data = text.build(**DATA)

    def accumulate(self, model: DistributedDataParallel, step: int) -> None:
        """Add up the gradients of this worker's micro-batches; workers exchange the sum."""
        first = step * BATCH + self.worker * SHARE
        for at in range(first, first + SHARE, SIZE):
            with nullcontext() if at + SIZE == first + SHARE else model.no_sync():
                pairs = [self._data[n % len(self._data)] for n in range(at, at + SIZE)]
                inputs, targets = (torch.stack(x) for x in zip(*pairs, strict=True))
                torch.autograd.backward(self._loss(model(inputs), targets) * SIZE / SHARE)

    def state(self) -> dict[str, Any]:
        """Weights and optimizer state."""
        return {"module": self.module.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """The opposite of :meth:`state`."""
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
