"""A small GPT as an ordered list of layers: embedding, blocks, head (no tied weights)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bamboo_agent.model import Model
from bamboo_core.protection.shapes import gpt_arguments


class Embedding(nn.Module):
    """Token and position embeddings: (batch, time) integers -> (batch, time, width)."""

    def __init__(self, vocab: int, width: int, context: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.position = nn.Parameter(torch.randn(context, width) * 0.02)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embed the tokens."""
        x: torch.Tensor = self.token(tokens) + self.position[: tokens.shape[1]]
        dropped: torch.Tensor = self.dropout(x)
        return dropped


class Block(nn.Module):
    """Pre-norm transformer block with causal attention: (batch, time, width) -> the same."""

    def __init__(self, width: int, heads: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.attention_norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)
        for linear in (self.qkv, self.grow):
            nn.init.normal_(linear.weight, std=0.02)
        for linear in (self.project, self.shrink):  # two branches per block add up
            nn.init.normal_(linear.weight, std=0.02 / (2 * depth) ** 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention and feed-forward, each added to its input."""
        x = x + self.dropout(self._attend(self.attention_norm(x)))
        hidden = functional.gelu(self.grow(self.feed_norm(x)))
        fed: torch.Tensor = self.dropout(self.shrink(hidden))
        return x + fed

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        shape = (batch, time, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(x).view(shape).permute(2, 0, 3, 1, 4)
        rate = self.rate if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        out: torch.Tensor = self.project(mixed.transpose(1, 2).reshape(batch, time, width))
        return out


class Head(nn.Module):
    """Norm and projection to the vocabulary: (batch, time, width) -> (batch, time, vocab)."""

    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.norm, self.project = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        nn.init.normal_(self.project.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of the next token."""
        logits: torch.Tensor = self.project(self.norm(x))
        return logits


def next_token_loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over all positions, in nats."""
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def build(**arguments: Any) -> Model:
    """A GPT of ``layers`` blocks; with embedding and head it has ``layers + 2`` layers.

    GptArguments has arguments and defaults. ValueError names one that is wrong.
    """
    given = gpt_arguments(arguments)
    block = partial(Block, given.width, given.heads, given.layers, given.dropout)
    first = partial(Embedding, given.vocab, given.width, given.context, given.dropout)
    last = partial(Head, given.vocab, given.width)
    return Model([first, *[block] * given.layers, last], next_token_loss)
