"""What the probe accepts and refuses of layers, optimizers and losses, by name and with the remedy.

``bamboo_sim.user_code`` has more cases, which also train.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque

import pytest
import torch
from torch import nn

from bamboo_agent.compute.layers import LayerBuilder
from bamboo_agent.compute.optimizer_state import RATE
from bamboo_agent.model import FactoryError, Model
from bamboo_agent.setup.probe.layers import Samples, probe

CPU = torch.device("cpu")


def linear():
    return nn.Linear(4, 4)


def squares(output, target):
    return (output - target).square().mean()


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def with_rate(rate, make=sgd):
    def made(parameters):
        optimizer = make(parameters)
        setattr(optimizer, RATE, rate)
        return optimizer

    return made


def probed(*layers, loss=squares, optimizer=sgd, values=None, steps=8, validates=False):
    torch.manual_seed(3)
    values = torch.randn(3, 4) if values is None else values
    pairs = [(values, torch.randn(3, 4)) for _ in range(3)]
    samples = Samples(pairs[0], pairs[1], pairs[2] if validates else None, steps)
    builder = LayerBuilder(Model(list(layers), loss), optimizer, seed=1, device=CPU)
    return probe(Model(list(layers), loss), builder, samples, CPU)


class EveryThird(torch.optim.SGD):
    """Counts in its group; what the count moves is told by ``act``."""

    def __init__(self, parameters, act):
        super().__init__(parameters, lr=0.1)
        self.param_groups[0]["n"], self.act, self.boost = 0, act, 1.0

    @torch.no_grad()
    def step(self):
        group = self.param_groups[0]
        group["n"] += 1
        if group["n"] % 3 == 0:
            self.act(self, group)
        for parameter in group["params"]:
            parameter.sub_(parameter.grad, alpha=0.1 * self.boost)


def boosted(optimizer, group):
    optimizer.boost *= 2


def torn(optimizer, group):
    raise KeyError("m")


def noisy(optimizer, group):
    for parameter in group["params"]:
        parameter.add_(torch.randn_like(parameter), alpha=1e-3)


def norms(optimizer, group):
    group.setdefault("norms", deque(maxlen=4)).append(1.0)


def every_third(act):
    return lambda parameters: EveryThird(parameters, act)


class EvalBuffer(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if not self.training:
            self.seen.add_(1)
        return super().forward(x)


class MaxNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4, max_norm=10.0)

    def forward(self, tokens):
        return self.table(tokens)


class Expanded(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.register_buffer("wide", torch.ones(1, 4).expand(3, 4))


class Doubles(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        torch.set_default_dtype(torch.float64)


class Exits(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)

    def forward(self, x):
        sys.exit("no GPU")


class MuteError(Exception):
    def __str__(self):
        raise ValueError("no text")


class Raises(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)

    def forward(self, x):
        raise MuteError


class Odd(nn.Linear):
    """Holds what cannot be looked at, and is exact."""

    def __init__(self):
        super().__init__(4, 4)
        self.gone = [weakref.proxy(linear())]
        self.huge = 10**5000


class Counts:
    calls = 0

    def __call__(self, output, target):
        self.calls += 1
        return squares(output, target)


class Rotates(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = linear()

    def forward(self, x):
        x = torch.fft.fft(self.inner(x))
        return x


class Learned(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, output, target):
        return squares(output, target) * self.weight


@pytest.fixture(autouse=True)
def float32():
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"optimizer": every_third(boosted)}, r"layer 0, Linear: a later update changes optimizer"),
        (
            {"optimizer": every_third(torn)},
            r"layer 0, Linear: the update by its optimizer, EveryThird of"
            r" spec.training.optimizer.factory, failed: KeyError: 'm'",
        ),
        ({"optimizer": every_third(norms)}, r"param_groups\[0\]\['norms'\] is a deque, which may"),
        ({"loss": Counts()}, r"layer 1, Linear: a forward or backward changes loss.calls"),
        ({"loss": Learned()}, "the loss has parameters of its own: weight would never"),
        ({"loss": lambda a, b: squares(a, b).detach()}, "the loss has no gradient, so nothing"),
        (
            {"loss": lambda a, b: (a - b)[0]},
            r"^loss must .* a tensor of float32 with the shape \(4,\): use .mean\(\)",
        ),
        ({"layers": [linear, EvalBuffer], "validates": True}, "validation changes its seen"),
        ({"layers": [MaxNorm], "values": torch.tensor([1, 2, 3])}, "its forward writes into table"),
        ({"layers": [Rotates, linear]}, "layer 0, Rotates: its forward returns complex numbers"),
        ({"layers": [Expanded]}, "its wide is expanded, .* make it with .contiguous"),
        ({"layers": [linear, Doubles]}, "layer 1, Doubles: its function changes torch's default"),
        ({"layers": [Exits]}, "layer 0, Exits: SystemExit: no GPU"),
        ({"layers": [Raises]}, "layer 0, Raises: MuteError: .its text cannot be had"),
        ({"optimizer": with_rate(lambda step: torch.ones(()))}, "is a Tensor: return a float"),
        (
            {"optimizer": with_rate([0.1].__getitem__)},
            r"rate\(1\) of its optimizer raised IndexErr",
        ),
    ],
)
def test_what_other_agents_would_not_have_is_refused(arguments, complaint):
    layers = arguments.pop("layers", [linear, linear])
    with pytest.raises(FactoryError, match=complaint):
        probed(*layers, **arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"layers": [linear, Rotates], "loss": lambda a, b: squares(a.abs(), b)},
        {"optimizer": every_third(noisy)},
        {"optimizer": with_rate(([0.1] * 3 + [0.2] * 2).__getitem__), "steps": 5},
        {"layers": [linear, Odd]},
        {"layers": [linear, EvalBuffer]},
    ],
    ids=["complex_for_the_loss", "noise_in_updates", "table_of_rates", "odd", "without_validation"],
)
def test_what_all_agents_have_alike_is_accepted(arguments):
    layers = arguments.pop("layers", [linear, linear])
    probed(*layers, **arguments)


def test_agents_with_other_learning_rates_have_other_outputs():
    """A factory may read them from a file or the environment."""

    def with_lr(lr):
        return lambda parameters: torch.optim.SGD(parameters, lr=lr)

    one, same, other = (probed(linear, optimizer=with_lr(lr)) for lr in (0.1, 0.1, 0.2))
    assert one.outputs == same.outputs
    assert one.outputs != other.outputs
    assert one.weights == other.weights
    late = [with_rate(lambda step, last=last: 0.1 if step < 7 else last) for last in (0.1, 0.2)]
    assert len({probed(linear, optimizer=make).outputs for make in late}) == 2
