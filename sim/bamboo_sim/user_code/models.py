"""Models as users write them: where their initial weights come from, and what layers share."""

from __future__ import annotations

import copy
import functools
import os
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from bamboo_agent.model import Model

WIDTH, OUT = 8, 4
_IMPORTED_MASK = torch.rand(WIDTH, WIDTH) > 0.5
_IMPORTED_NUMPY = torch.tensor(np.random.rand(WIDTH, WIDTH) > 0.5)
_UNSEEDED = torch.tensor(np.random.default_rng().random((WIDTH, WIDTH)) > 0.5)
_GENERATOR = torch.Generator().manual_seed(1)
_CALLS = 0


def squares(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The mean of squared differences."""
    return (output - target).square().mean()


Build = Callable[[], nn.Module]


def around(*builds: Build) -> Model:
    """These layers between two linear ones: (batch, 8) -> (batch, 4)."""
    ends = partial(nn.Linear, WIDTH, WIDTH), partial(nn.Linear, WIDTH, OUT)
    return Model([ends[0], *builds, nn.Tanh, ends[1]], squares)


def perceptron(*, bias: bool = True) -> Model:
    """Three linear layers."""
    inner = partial(nn.Linear, WIDTH, WIDTH, bias=bias)
    return Model([inner, nn.Tanh, inner, partial(nn.Linear, WIDTH, OUT, bias=bias)], squares)


# ------------------------------------------------------------ one module, cut


def _whole() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, OUT))


def _same(part: nn.Module) -> nn.Module:
    return part


def cut() -> Model:
    """Layers cut from one module."""
    return Model([partial(_same, part) for part in _whole()], squares)


def cut_in_slices() -> Model:
    """The same; each layer is a new container of old parts."""
    whole = _whole()
    return Model([lambda: whole[:2], lambda: nn.Sequential(*list(whole)[2:])], squares)


def cut_and_copied() -> Model:
    """Each call copies the part."""
    return Model([partial(copy.deepcopy, part) for part in _whole()], squares)


def pretrained() -> Model:
    """Each call loads weights that a whole module had."""
    weights = _whole().state_dict()

    def first() -> nn.Module:
        layer = nn.Linear(WIDTH, WIDTH)
        layer.load_state_dict({name: weights[f"0.{name}"] for name in ("weight", "bias")})
        return layer

    return Model([first, nn.Tanh, partial(nn.Linear, WIDTH, OUT)], squares)


def cached() -> Model:
    """A factory that remembers its module: it comes back trained."""
    return around(functools.cache(partial(nn.Linear, WIDTH, WIDTH)))


class Using(nn.Module):
    """A linear map by a weight that it is given."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def tied() -> Model:
    """One parameter in two layers."""
    weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)
    return around(lambda: Using(weight), nn.Tanh, lambda: Using(weight))


def tied_by_storage() -> Model:
    """Two parameters in one storage."""
    data = torch.randn(WIDTH, WIDTH) / 3
    return around(lambda: Using(nn.Parameter(data)), nn.Tanh, lambda: Using(nn.Parameter(data.t())))


def tied_by_turns() -> Model:
    """A later layer takes the weight that an earlier one has left."""
    left: list[nn.Parameter] = []

    def first() -> nn.Module:
        left[:] = [nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)]
        return Using(left[0])

    return around(first, nn.Tanh, lambda: Using(left[0]))


def tied_buffer() -> Model:
    """One buffer in two layers, which nothing changes."""
    mask = torch.rand(WIDTH, WIDTH) > 0.5

    def build() -> nn.Module:
        layer = Masked(mask)
        layer.mask = mask
        return layer

    return around(build, nn.Tanh, build)


# ------------------------------------------------------------ two names in one layer


class TwoNames(nn.Module):
    """One parameter, one buffer and one module under two names each."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)
        self.down = nn.Linear(WIDTH, WIDTH)
        self.down.weight = self.up.weight
        self.again = self.up
        shift = torch.randn(WIDTH)
        self.register_buffer("shift", shift)
        self.down.register_buffer("same", shift)
        self.shift: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.down(torch.tanh(self.again(self.up(x) + self.shift))))


def two_names() -> Model:
    return around(TwoNames)


# ------------------------------------------------------------ where numbers come from


class Masked(nn.Module):
    """A linear map of which a mask hides a part."""

    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", mask.clone())
        self.mask: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.inner.weight * self.mask, self.inner.bias)


def _bits(data: bytes) -> torch.Tensor:
    return torch.tensor([byte & 1 for byte in data]).view(WIDTH, WIDTH) > 0


def _python() -> torch.Tensor:
    return torch.tensor([[random.random() > 0.5 for _ in range(WIDTH)] for _ in range(WIDTH)])


MASKS: dict[str, Callable[[], torch.Tensor]] = {
    "torch": lambda: torch.rand(WIDTH, WIDTH) > 0.5,
    "numpy": lambda: torch.tensor(np.random.rand(WIDTH, WIDTH) > 0.5),
    "random": _python,
    "fixed": lambda: torch.rand(WIDTH, WIDTH, generator=torch.Generator().manual_seed(3)) > 0.5,
    "generator": lambda: torch.rand(WIDTH, WIDTH, generator=_GENERATOR) > 0.5,
    "urandom": lambda: _bits(os.urandom(WIDTH * WIDTH)),
    "time": lambda: _bits(np.random.default_rng(time.time_ns()).bytes(WIDTH * WIDTH)),
    "default_rng": lambda: torch.tensor(np.random.default_rng().random((WIDTH, WIDTH)) > 0.5),
    "import_torch": lambda: _IMPORTED_MASK,
    "import_numpy": lambda: _IMPORTED_NUMPY,
    "import_unseeded": lambda: _UNSEEDED,
    "hash": lambda: (
        torch.tensor([hash(f"unit {i}") % 2 for i in range(WIDTH)]).expand(WIDTH, -1) > 0
    ),
}


def masked(*, source: str, where: str) -> Model:
    """where: "build" draws the mask before the layers are returned, "layer" in the factory."""
    draw = MASKS[source]
    if where == "layer":
        return around(lambda: Masked(draw()))
    mask = draw()
    return around(lambda: Masked(mask))


def counts_calls(*, harmless: bool) -> Model:
    """The factory counts its calls, and the weights depend on it unless it is harmless."""

    def build() -> nn.Module:
        global _CALLS
        _CALLS += 1
        layer = nn.Linear(WIDTH, WIDTH)
        if not harmless:
            nn.init.constant_(layer.bias, _CALLS)
        return layer

    return around(build)


# ------------------------------------------------------------ settings of torch


_SETTINGS: dict[str, Callable[[], Any]] = {
    "threads": lambda: torch.set_num_threads(2),
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "device": lambda: torch.set_default_device("meta"),
    "algorithms": lambda: torch.use_deterministic_algorithms(False),
    "grad": lambda: torch.set_grad_enabled(False),
    "denormals": lambda: torch.set_flush_denormal(True),
}


def with_setting(*, setting: str) -> Model:
    """A perceptron; its factory changes a setting of torch for the whole process."""
    _SETTINGS[setting]()
    return perceptron()
