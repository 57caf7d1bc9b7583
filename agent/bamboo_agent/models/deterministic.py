"""Operations whose gradients torch sums in an undefined order on a GPU, with a fixed order.

Torch refuses its own under ``torch.use_deterministic_algorithms(True)``, with which agents run.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def average_pool(x: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Give what ``adaptive_avg_pool2d`` gives: (..., h, w) -> (..., height, width).

    Each output is the mean of its window; windows overlap where a size does not divide.
    """
    return _pool_last(_pool_last(x.mT, height).mT, width)


def _pool_last(x: torch.Tensor, parts: int) -> torch.Tensor:
    size = x.shape[-1]
    if size == parts:
        return x
    windows = [(i * size // parts, -(-(i + 1) * size // parts)) for i in range(parts)]
    return torch.stack([x[..., first:end].mean(-1) for first, end in windows], dim=-1)


class AveragePool(nn.Module):
    """:func:`average_pool` as a module."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.size = height, width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., h, w) -> (..., height, width)."""
        return average_pool(x, *self.size)


def cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """The mean that ``functional.cross_entropy`` gives of (N, C, ...) logits and (N, ...) classes.

    Torch's own has a fixed order for (N, C) alone.
    """
    return functional.cross_entropy(
        logits.movedim(1, -1).flatten(0, -2),
        target.flatten(),
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    )


def nll_loss(
    log_probabilities: torch.Tensor, target: torch.Tensor, *, ignore_index: int = -100
) -> torch.Tensor:
    """The mean that ``functional.nll_loss`` gives of (N, C, ...) and (N, ...) classes."""
    flat = log_probabilities.movedim(1, -1).flatten(0, -2)
    return functional.nll_loss(flat, target.flatten(), ignore_index=ignore_index)
