"""A model whose first stage computes for ever once a file exists."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import torch
from torch import nn

from bamboo_agent.model import Model

FILE = "BAMBOO_TEST_HANGS"


def hung(file: Path) -> Path:
    """The file that says that a forward hangs."""
    return file.with_suffix(".hung")


class Hangs(nn.Linear):
    """A layer whose forward does not end while the file is there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        file = Path(os.environ[FILE])
        if file.exists():
            hung(file).touch()
            threading.Event().wait()
        return super().forward(x)


def model() -> Model:
    """Two layers; only the first one hangs."""
    return Model([lambda: Hangs(2, 2), lambda: nn.Linear(2, 1)], nn.functional.mse_loss)


class Points:
    """100 pairs."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((2,), float(index)), torch.tensor([float(index)])
