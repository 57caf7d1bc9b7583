"""A model whose layers sleep for declared times: what its steps take beyond them is overhead."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from torch import nn

from bamboo_agent.model import Model


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, forward_s: float, backward_s: float
    ) -> torch.Tensor:
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return x + weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        time.sleep(ctx.backward_s)
        return gradients[0], gradients[0].sum(dim=0), None, None


class Sleeping(nn.Module):
    """(batch, width) numbers -> the same plus its weight, after a sleep."""

    def __init__(self, width: int, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.times = forward_s, backward_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sleep, and add the weight."""
        sleep: Any = _Sleep.apply  # torch has no type for it
        out: torch.Tensor = sleep(x.float(), self.weight, *self.times)
        return out


def mean(output: torch.Tensor, _target: torch.Tensor) -> torch.Tensor:
    """A loss for any output."""
    return output.mean()


def build(*, layers: int, width: int, forward_s: float, backward_s: float) -> Model:
    """Equal layers. width: numbers of an input sample; times: of one micro-batch, in seconds."""
    return Model([partial(Sleeping, width, forward_s, backward_s)] * layers, mean)
