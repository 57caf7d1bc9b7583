"""Layers as users write them: what a forward or a backward changes, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from bamboo_agent.model import Model
from bamboo_sim.user_code.models import OUT, WIDTH, around, squares

_CALLS = 0


class Block(nn.Module):
    """A linear layer to which others add something: (batch, 8) -> (batch, 8)."""

    shared_calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x)


# ------------------------------------------------------------ state that a forward changes


class OwnGenerator(Block):
    """Noise from a generator of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x) + torch.rand(WIDTH, generator=self.generator)


class NumpyNoise(Block):
    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x) + float(np.random.rand())


class Average(Block):
    """A running mean in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.average = torch.zeros(WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return self.inner(x - self.average)


class Calls(Block):
    """A counter that matters in each ``every``-th forward only."""

    def __init__(self, *, every: int) -> None:
        super().__init__()
        self.every, self.calls = every, 0

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        return self.inner(x) * (2.0 if self.calls % self.every == 0 else 1.0)


class CallsInside(Block):
    """A counter in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = {"forwards": 0}

    def forward(self, x: torch.Tensor) -> Any:
        self.seen["forwards"] += 1
        return self.inner(x) + self.seen["forwards"]


class GlobalCalls(Block):
    def forward(self, x: torch.Tensor) -> Any:
        global _CALLS
        _CALLS += 1
        return self.inner(x) + _CALLS


class ClassCalls(Block):
    """A counter that all layers of the class share."""

    def forward(self, x: torch.Tensor) -> Any:
        Block.shared_calls += 1
        return self.inner(x) + Block.shared_calls


class Last(Block):
    """The last output, for a log: nothing depends on it."""

    def __init__(self) -> None:
        super().__init__()
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> Any:
        self.last = self.inner(x)
        return self.last


class Lazy(Block):
    """A table that the first forward makes, as rotary embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.table: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> Any:
        if self.table is None:
            self.table = torch.arange(WIDTH, dtype=x.dtype).cos()
        return self.inner(x) * self.table


class FrozenNorm(Block):
    """A batch norm that stays in mode eval."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def train(self, mode: bool = True) -> FrozenNorm:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: torch.Tensor) -> Any:
        return self.norm(self.inner(x))


# ------------------------------------------------------------ what goes in and out


class AddsInPlace(Block):
    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x.add_(1))


class ReluInPlace(Block):
    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(functional.relu_(x))


@dataclass
class ModelOutput:
    """As the library transformers returns."""

    last_hidden_state: torch.Tensor


class Returns(Block):
    """kind: of the output."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> Any:
        found = self.inner(x)
        kinds = {
            "dict": {"hidden": found},
            "none": (found, None),
            "model_output": ModelOutput(found),
            "list": [found],
            "pair": (found, 0.5),
        }
        return kinds[self.kind]


# ------------------------------------------------------------ backward


class _Once(torch.autograd.Function):
    """Its backward frees what it needs, as a compiled one with donated buffers does."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.kept = [x.detach().clone(), weight.detach().clone()]
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if ctx.kept is None:
            raise RuntimeError("this backward can run only once")
        (gradient,), (x, weight) = gradients, ctx.kept
        ctx.kept = None
        return gradient @ weight.t(), x.t() @ gradient


class Once(Block):
    def forward(self, x: torch.Tensor) -> Any:
        apply: Any = _Once.apply
        return apply(x, self.inner.weight) + self.inner.bias


class Hooked(Block):
    """A hook halves the gradient of the weight."""

    def __init__(self) -> None:
        super().__init__()
        weight: Any = self.inner.weight
        weight.register_hook(lambda gradient: gradient / 2)

    def forward(self, x: torch.Tensor) -> Any:
        return torch.tanh(self.inner(x))


class HookedAfter(Block):
    """A hook changes the gradient after it was added."""

    def __init__(self) -> None:
        super().__init__()
        weight: Any = self.inner.weight
        weight.register_post_accumulate_grad_hook(self._halve)

    @staticmethod
    def _halve(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)


class CountingHook(Block):
    """A hook of the backward counts, and each third gradient is another one."""

    def __init__(self) -> None:
        super().__init__()
        self.backwards = 0
        weight: Any = self.inner.weight
        weight.register_hook(self._scaled)

    def _scaled(self, gradient: torch.Tensor) -> torch.Tensor:
        self.backwards += 1
        return gradient * (2.0 if self.backwards % 3 == 0 else 1.0)


class BackwardBuffer(Block):
    """A hook of the backward changes a buffer in each third call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", torch.zeros(()))
        self.held: torch.Tensor
        self.backwards = 0
        weight: Any = self.inner.weight
        weight.register_hook(self._count)

    def _count(self, _gradient: torch.Tensor) -> None:
        self.backwards += 1
        if self.backwards % 3 == 0:
            self.held += 1

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x) * (1 + self.held)


class Checkpointed(Block):
    """Activation checkpointing around dropout."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self._inner, x, use_reentrant=self.reentrant)

    def _inner(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(self.inner(x), 0.3, self.training)


# ------------------------------------------------------------ parameters and buffers


class Temperature(Block):
    """A parameter without a dimension, as in CLIP."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(2.65))

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x) * self.temperature.exp() / 10


class ChannelsLast(Block):
    """A convolution whose weight is stored in another order."""

    def __init__(self) -> None:
        super().__init__()
        made = nn.Conv2d(2, 2, 3, padding=1)
        self.inner = made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x.view(-1, 2, 2, 2)).reshape(-1, WIDTH)


class Buffers(Block):
    """A buffer of a kind, which the forward reads."""

    def __init__(self, dtype: torch.dtype, *, persistent: bool = True) -> None:
        super().__init__()
        held = (torch.arange(WIDTH) % 2).to(dtype)
        self.register_buffer("held", held, persistent=persistent)
        self.held: torch.Tensor

    def forward(self, x: torch.Tensor) -> Any:
        held = self.held.real if self.held.is_complex() else self.held
        return self.inner(x) * (1 + held.to(x.dtype))


class Cast(Block):
    """Parameters of another type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner = self.inner.to(dtype)

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x.to(self.inner.weight.dtype)).to(x.dtype)


class Adapter(Block):
    """A frozen weight and a trained product of two thin ones."""

    def __init__(self) -> None:
        super().__init__()
        self.inner.requires_grad_(False)
        self.down = nn.Linear(WIDTH, 2, bias=False)
        self.up = nn.Linear(2, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x) + self.up(self.down(x))


class Unused(Block):
    """A part that no sample, or only some, uses."""

    def __init__(self) -> None:
        super().__init__()
        self.never, self.sometimes = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        return self.sometimes(x) if x[0, 0] > 0 else self.inner(x)


_DTYPES = {
    "bool": torch.bool, "int8": torch.int8, "float64": torch.float64, "bfloat16": torch.bfloat16,
    "complex64": torch.complex64, "complex128": torch.complex128, "float8": torch.float8_e4m3fn,
}  # fmt: skip


def with_buffer(*, dtype: str, persistent: bool = True) -> Model:
    """A layer with a buffer of this type."""
    return around(partial(Buffers, _DTYPES[dtype], persistent=persistent))


def with_parameters(*, dtype: str) -> Model:
    """A layer with parameters of this type."""
    return around(partial(Cast, _DTYPES[dtype]))


def adapters() -> Model:
    """The ends are frozen."""

    def frozen(width: int) -> nn.Module:
        return nn.Linear(WIDTH, width).requires_grad_(False)

    ends = partial(frozen, WIDTH), partial(frozen, OUT)
    return Model([ends[0], Adapter, nn.Tanh, Adapter, ends[1]], squares)


class Tokens(nn.Module):
    """An embedding with sparse gradients: (batch, 8) of floats -> (batch, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, WIDTH, sparse=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.table((x.abs() * 5).long().clamp(max=15)).mean(1)


def sparse() -> Model:
    """Only the embedding has parameters."""
    return Model([Tokens, nn.Tanh, partial(nn.Unflatten, 1, (OUT, 2)), partial(Mean, 2)], squares)


class Mean(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> Any:
        return x.mean(self.dim)


def spectral() -> Model:
    return around(lambda: parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)))


def weight_norm() -> Model:
    return around(lambda: parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)))


def hooked_weight_norm() -> Model:
    """The old form, whose weight is a plain attribute that each forward computes."""
    return around(lambda: nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH)))


def batch_norm(*, tracked: bool) -> Model:
    return around(partial(nn.BatchNorm1d, WIDTH, track_running_stats=tracked))


def lazy_linear() -> Model:
    return around(partial(nn.LazyLinear, WIDTH))


def inplace_relu() -> Model:
    return around(partial(nn.Linear, WIDTH, WIDTH), partial(nn.ReLU, inplace=True))


def dropout() -> Model:
    return around(partial(nn.Dropout, 0.3))


def returning(*, kind: str) -> Model:
    return around(partial(Returns, kind))


_LAYERS: dict[str, Any] = {
    "counter": partial(Calls, every=1), "counter_of_third": partial(Calls, every=3),
    "reentrant": partial(Checkpointed, reentrant=True),
    "checkpointed": partial(Checkpointed, reentrant=False),
    **{layer.__name__: layer for layer in (
        OwnGenerator, NumpyNoise, Average, CallsInside, GlobalCalls, ClassCalls, Last, Lazy, Once,
        FrozenNorm, BackwardBuffer, AddsInPlace, ReluInPlace, Hooked, HookedAfter, CountingHook,
        Temperature, ChannelsLast, Unused,
    )},
}  # fmt: skip


def layer(*, kind: str) -> Model:
    """One of the layers above, twice, so that layers may affect each other."""
    return around(_LAYERS[kind], nn.Tanh, _LAYERS[kind])
