"""The model: an ordered list of layers, and a loss.

Every agent builds the layers that it needs, each from (seed, layer) alone. So give functions that
build layers, not layers that are built.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from bamboo_agent.model import Model


class Block(nn.Module):
    """Adds what two linear layers make of the input. (batch, width) -> the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.gelu(self.grow(self.norm(x)))
        return x + self.shrink(hidden)  # type: ignore[no-any-return]


def build(features: int, width: int, classes: int, blocks: int) -> Model:
    """spec.model.factory; the arguments are spec.model.args."""
    layers: list[Callable[[], nn.Module]] = [
        partial(nn.Linear, features, width),
        *(partial(Block, width) for _ in range(blocks)),
        partial(nn.Linear, width, classes),
    ]
    return Model(layers, functional.cross_entropy)  # the loss is a mean over the micro-batch
