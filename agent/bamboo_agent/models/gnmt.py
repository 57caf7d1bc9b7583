"""Google's translation model (GNMT, arXiv:1609.08144) as an ordered list of layers.

An encoder of LSTMs whose first one reads both ways, and a decoder of LSTMs; from the third on, each
adds its input to its output. The bottom one of the decoder asks an additive attention over the
encoder's output, and the answer goes to all that are above. The target is known in training, so the
bottom decoder reads it at once, without the answer of the step before: that is the one departure,
which other implementations make too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from bamboo_agent.model import Model
from bamboo_agent.models.deterministic import cross_entropy
from bamboo_agent.models.parts import Part

PADDING = 0
"""The token that fills up sources and targets."""
_RANGE = 0.04  # of the first weights, as in the paper
_SMOOTHING = 0.1
_FIRST_RESIDUAL = 2
_ONWARD, _BACK = "encoder.layers.0.onward", "encoder.layers.0.back"


class SourceEmbedding(Part):
    """(source, target so far), each (batch, time) -> (embedded source, mask, target so far)."""

    def __init__(self, vocab: int, width: int, dropout: float, *, recomputes: bool) -> None:
        table = nn.Embedding(vocab, width, padding_idx=PADDING)
        super().__init__({"encoder.embedding": table}, recomputes=recomputes)
        self.dropout = nn.Dropout(dropout)
        _fill(self)

    def run(self, *arguments: Any) -> Any:
        """The mask is true at words. A source without a word has no meaning here."""
        source, given = arguments
        hidden = self.dropout(self.get_submodule("encoder.embedding")(source))
        return hidden, source != PADDING, given


class BothWays(Part):
    """The first encoder layer: (hidden (batch, time, width), mask, target so far) -> the same, but
    2 x width."""

    def __init__(self, width: int, dropout: float, *, recomputes: bool) -> None:
        ways = [nn.LSTM(width, width, batch_first=True) for _ in range(2)]
        modules = dict(zip((_ONWARD, _BACK), ways, strict=True))
        super().__init__(modules, recomputes=recomputes)
        self.dropout = nn.Dropout(dropout)
        _fill(self)

    def run(self, *arguments: Any) -> Any:
        """The way back begins at the last word: padding has no part in it."""
        hidden, mask, given = arguments
        onward, _ = self.get_submodule(_ONWARD)(hidden)
        back, _ = self.get_submodule(_BACK)(_reversed(hidden, mask))
        found = torch.cat((onward, _reversed(back, mask)), -1)
        return self.dropout(found), mask, given


def _reversed(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The words of each sentence in the other order; padding stays behind them."""
    places = torch.arange(x.shape[1], device=x.device)
    order = torch.where(mask, mask.sum(1, keepdim=True) - 1 - places, places)
    return x.gather(1, order[..., None].expand_as(x))


class EncoderLayer(Part):
    """(hidden (batch, time, width), mask, target so far) -> the same. index: from 1; the first of
    these reads both ways, so its input is 2 x width."""

    def __init__(self, index: int, width: int, dropout: float, *, recomputes: bool) -> None:
        self._path = f"encoder.layers.{index}"
        lstm = nn.LSTM(2 * width if index == 1 else width, width, batch_first=True)
        super().__init__({self._path: lstm}, recomputes=recomputes)
        self.dropout = nn.Dropout(dropout)
        self._index = index
        _fill(self)

    def run(self, *arguments: Any) -> Any:
        """One LSTM."""
        hidden, mask, given = arguments
        found, _ = self.get_submodule(self._path)(hidden)
        found = self.dropout(found)
        return found + hidden if self._index >= _FIRST_RESIDUAL else found, mask, given


class Attention(nn.Module):
    """Additive attention with a normalised vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.bias, self.vector = (nn.Parameter(torch.empty(width)) for _ in range(2))
        self.scale = nn.Parameter(torch.empty(()))

    def forward(
        self, queries: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """(batch, q, width), (batch, k, width), (batch, k) -> (batch, q, width)."""
        mixed = self.query(queries)[:, :, None] + self.key(memory)[:, None] + self.bias
        scores = torch.tanh(mixed) @ (self.scale * self.vector / self.vector.norm())
        weights = scores.masked_fill(~mask[:, None], -torch.inf).softmax(-1)
        answers: torch.Tensor = weights @ memory
        return answers


class BottomDecoder(Part):
    """(memory, mask, target so far) -> (hidden, answer), each (batch, time, width)."""

    def __init__(self, vocab: int, width: int, dropout: float, *, recomputes: bool) -> None:
        modules = {
            "decoder.embedding": nn.Embedding(vocab, width, padding_idx=PADDING),
            "decoder.layers.0": nn.LSTM(width, width, batch_first=True),
            "decoder.attention": Attention(width),
        }
        super().__init__(modules, recomputes=recomputes)
        self.dropout = nn.Dropout(dropout)
        _fill(self)
        nn.init.constant_(self.get_parameter("decoder.attention.scale"), width**-0.5)

    def run(self, *arguments: Any) -> Any:
        """Read the target so far, and ask the memory at each of its places."""
        memory, mask, given = arguments
        hidden = self.dropout(self.get_submodule("decoder.embedding")(given))
        hidden, _ = self.get_submodule("decoder.layers.0")(hidden)
        return self.dropout(hidden), self.get_submodule("decoder.attention")(hidden, memory, mask)


class DecoderLayer(Part):
    """(hidden, answer), each (batch, time, width) -> the same."""

    def __init__(self, index: int, width: int, dropout: float, *, recomputes: bool) -> None:
        self._path = f"decoder.layers.{index}"
        lstm = nn.LSTM(2 * width, width, batch_first=True)
        super().__init__({self._path: lstm}, recomputes=recomputes)
        self.dropout = nn.Dropout(dropout)
        self._index = index
        _fill(self)

    def run(self, *arguments: Any) -> Any:
        """One LSTM over both."""
        hidden, answer = arguments
        found, _ = self.get_submodule(self._path)(torch.cat((hidden, answer), -1))
        found = self.dropout(found)
        return found + hidden if self._index >= _FIRST_RESIDUAL else found, answer


class Classifier(Part):
    """(hidden, answer) -> logits (batch, vocab, time)."""

    def __init__(self, vocab: int, width: int, *, recomputes: bool) -> None:
        super().__init__({"classifier": nn.Linear(width, vocab)}, recomputes=recomputes)
        _fill(self)

    def run(self, *arguments: Any) -> Any:
        """Logits of the words."""
        return self.get_submodule("classifier")(arguments[0]).mT


def _fill(part: Part) -> None:
    with torch.no_grad():
        for parameter in part.parameters():
            nn.init.uniform_(parameter, -_RANGE, _RANGE)


def build(
    *,
    vocab: int = 32000,
    width: int = 1024,
    layers: int = 16,
    dropout: float = 0.2,
    label_smoothing: float = _SMOOTHING,
    checkpoint_activations: bool = False,
) -> Model:
    """Two embeddings, ``layers`` LSTMs, half of them the encoder's, and a classifier. The
    first LSTM counts once, though it is one for each way.

    The data: ((source, target so far), target), each (batch, time) integers, of which PADDING ends
    a source and -100 a target. ValueError if layers is odd or less than 4.
    """
    if layers < 4 or layers % 2:
        raise ValueError(f"layers {layers} must be even and at least 4: encoder and decoder")
    how: dict[str, Any] = {"recomputes": checkpoint_activations}
    each = layers // 2
    made: list[Callable[[], nn.Module]] = [
        partial(SourceEmbedding, vocab, width, dropout, **how),
        partial(BothWays, width, dropout, **how),
        *(partial(EncoderLayer, i, width, dropout, **how) for i in range(1, each)),
        partial(BottomDecoder, vocab, width, dropout, **how),
        *(partial(DecoderLayer, i, width, dropout, **how) for i in range(1, each)),
        partial(Classifier, vocab, width, **how),
    ]
    return Model(made, partial(cross_entropy, label_smoothing=label_smoothing))
