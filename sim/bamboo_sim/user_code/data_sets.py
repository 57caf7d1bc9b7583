"""Data sets as users write them, and losses of targets that are partly masked."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import random_split

from bamboo_agent.model import Model
from bamboo_sim.user_code.models import OUT, WIDTH

_COUNT = 64
_LONG = 2000
WORDS, CLASSES, PAD = 6, 5, 0


def _random(index: int) -> torch.Generator:
    return torch.Generator().manual_seed(index)


class Points:
    """Pairs of float tensors: (8,) and (4,)."""

    def __len__(self) -> int:
        return _COUNT

    def __getitem__(self, index: int) -> Any:
        drawn = torch.randn(WIDTH + OUT, generator=_random(index))
        return drawn[:WIDTH], drawn[WIDTH:]


class Arrays(Points):
    """The same as arrays of numpy."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x.numpy(), y.numpy()


class Augmented(Points):
    """Noise from numpy's global generator."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + torch.tensor(np.random.rand(WIDTH), dtype=torch.float32), y


class Dicts(Points):
    """A sample is a dict, as in transformers."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return {"x": x, "y": y}


class Inputs(Points):
    """A sample is one tensor of two rows, without a target."""

    def __getitem__(self, index: int) -> Any:
        return torch.randn(2, WIDTH, generator=_random(index))


class Ragged(Points):
    """Inputs of different lengths."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x[: 4 + index % 5], y


class Unreadable(Points):
    """The name of a file is no text."""

    def __getitem__(self, index: int) -> Any:
        raise ValueError(f"no image in {os.fsdecode(bytes([99, 97, 102, 233]))}.jpg")


class Counting(Points):
    """A sample depends on how many were read before."""

    def __init__(self) -> None:
        self.reads = 0

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        x, y = super().__getitem__(index)
        return x + self.reads, y


class LongArrays(Points):
    """Arrays of 2,000 numbers. In each process other numbers in the middle."""

    def __init__(self) -> None:
        self.own = np.frombuffer(os.urandom(_LONG), np.uint8)

    def __getitem__(self, index: int) -> Any:
        x = np.zeros(_LONG, np.float32)
        x[500:1500] = self.own[500:1500]
        return x, np.zeros(OUT, np.float32)


class Unseeded(Points):
    """Drawn once, by a generator without a seed."""

    def __init__(self) -> None:
        self.all = np.random.default_rng().random((_COUNT, WIDTH + OUT)).astype(np.float32)

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(self.all[index, :WIDTH]), torch.tensor(self.all[index, WIDTH:])


class Split(Points):
    """A random half of the samples, drawn when the set is made."""

    def __init__(self) -> None:
        whole: Any = range(2 * _COUNT)
        self.half: Any = random_split(whole, [_COUNT, _COUNT])[0]

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(self.half[index])


class Vocabulary(Points):
    """Numbers of words in the order of a set of strings."""

    def __init__(self) -> None:
        words = {f"word {i}" for i in range(40)}
        self.numbers = {word: i for i, word in enumerate(words)}

    def __getitem__(self, index: int) -> Any:
        _, y = super().__getitem__(index)
        found = [self.numbers[f"word {(index + i) % 40}"] for i in range(WIDTH)]
        return torch.tensor(found, dtype=torch.float32) / 40, y


def long_model() -> Model:
    """For :class:`LongArrays`."""
    from bamboo_sim.user_code.models import squares

    return Model([partial(nn.Linear, _LONG, WIDTH), partial(nn.Linear, WIDTH, OUT)], squares)


# ------------------------------------------------------------ padding


class Sentences(Points):
    """Inputs (6, 8), targets (6,) of which some are masked.

    kept: how many of the six count: "all", "half" of each sample, "some" (from 1 to 6), or "none"
    in every third sample.
    """

    def __init__(self, *, kept: str, ignored: int) -> None:
        self.kept, self.ignored = kept, ignored

    def __getitem__(self, index: int) -> Any:
        x = torch.randn(WORDS, WIDTH, generator=_random(index))
        target = torch.randint(1, CLASSES, (WORDS,), generator=_random(index))
        some = 1 + index % WORDS
        count = {"all": WORDS, "half": WORDS // 2, "some": some, "none": some * (index % 3 > 0)}
        target[count[self.kept] :] = self.ignored
        return x, target


def tagger(*, ignored: int, constant: bool) -> Model:
    """A class for each word. constant: the loss divides by a constant, not by what counts."""

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        reduction = "sum" if constant else "mean"
        flat = output.reshape(-1, CLASSES)
        found = functional.cross_entropy(
            flat, target.reshape(-1), ignore_index=ignored, reduction=reduction
        )
        return found / (target.numel() if constant else 1)

    return Model([partial(nn.Linear, WIDTH, WIDTH), partial(nn.Linear, WIDTH, CLASSES)], loss)
