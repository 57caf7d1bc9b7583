"""Optimizers as users write them: each keeps something somewhere else.

All move parameters against the gradient, by an amount that depends on what they keep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

Parameters = Sequence[torch.Tensor]
_CALLS = 0
_LR = 2.0**-6
"""A power of two, so that products of rates are exact."""


class Plain(Optimizer):
    """Gradient descent; ``factor`` is what a subclass makes of its state."""

    def __init__(self, parameters: Any, lr: float = _LR, **defaults: Any) -> None:
        super().__init__(parameters, {"lr": lr, **defaults})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.begin()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(self.change(group, parameter) * group["lr"])

    def begin(self) -> None:
        """Called once for each step."""

    def change(self, _group: dict[str, Any], parameter: torch.Tensor) -> torch.Tensor:
        """The change that is taken from the parameter, over the rate."""
        assert parameter.grad is not None
        return parameter.grad


def _grown(parameter: torch.Tensor, count: float) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad * (1 + count / 4)


# ------------------------------------------------------------ state in groups


class GroupCounter(Plain):
    """A counter in the group, as in Megatron's FusedAdam; every: where it matters."""

    def __init__(self, parameters: Any, every: int = 1) -> None:
        super().__init__(parameters, step=0, every=every)

    def begin(self) -> None:
        for group in self.param_groups:
            group["step"] += 1

    def change(self, group: dict[str, Any], parameter: torch.Tensor) -> torch.Tensor:
        acts = group["step"] % group["every"] == 0
        return _grown(parameter, group["step"] if acts else 0)


class GroupTensor(Plain):
    """A tensor in the group."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, total=torch.zeros(3))

    def begin(self) -> None:
        for group in self.param_groups:
            group["total"] += 1

    def change(self, group: dict[str, Any], parameter: torch.Tensor) -> torch.Tensor:
        return _grown(parameter, float(group["total"].mean()))


class OwnRate(Plain):
    """Its own ``lr`` decays."""

    def begin(self) -> None:
        for group in self.param_groups:
            group["lr"] *= 0.8


class Prodigy(Plain):
    """An estimate ``d`` in the group, computed from gradients, and moments in the state."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, d=1e-2, d_max=1e-2, numerator=0.0, k=0)

    def begin(self) -> None:
        for group in self.param_groups:
            norms = [float(p.grad.norm()) for p in group["params"] if p.grad is not None]
            group["numerator"] = 0.9 * group["numerator"] + group["d"] * sum(norms)
            group["d"] = group["d_max"] = max(group["d_max"], group["numerator"])
            group["k"] += 1

    def change(self, group: dict[str, Any], parameter: torch.Tensor) -> torch.Tensor:
        assert parameter.grad is not None
        state = self.state[parameter]
        moment: torch.Tensor = state.setdefault("moment", torch.zeros_like(parameter))
        moment.lerp_(parameter.grad, 0.5)
        scale: float = 1 + group["d"]
        return moment * scale


class ScheduleFree(Plain):
    """Sums of weights in the group, and a second sequence of parameters in the state."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, k=0, weight_sum=0.0, lr_max=-1.0, train_mode=True)

    def begin(self) -> None:
        for group in self.param_groups:
            group["k"] += 1
            group["lr_max"] = max(group["lr_max"], group["lr"])
            group["weight_sum"] += group["k"] ** 2 * group["lr_max"]

    def change(self, group: dict[str, Any], parameter: torch.Tensor) -> torch.Tensor:
        assert parameter.grad is not None
        state = self.state[parameter]
        z: torch.Tensor = state.setdefault("z", parameter.clone())
        lr: float = group["lr"]
        weight: float = group["k"] ** 2 * group["lr_max"] / group["weight_sum"]
        z.sub_(parameter.grad, alpha=lr)
        return (parameter - z) * weight / lr


# ------------------------------------------------------------ state elsewhere


class AttributeCounter(Plain):
    """A counter of the object."""

    def __init__(self, parameters: Any, every: int = 1) -> None:
        super().__init__(parameters)
        self.taken, self.every = 0, every

    def begin(self) -> None:
        self.taken += 1

    def change(self, _group: dict[str, Any], parameter: torch.Tensor) -> torch.Tensor:
        return _grown(parameter, self.taken if self.taken % self.every == 0 else 0)


class RunningNorm(Plain):
    """A running norm in an attribute, as in variants of LARS."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.norm = torch.ones(())

    def begin(self) -> None:
        gradients = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        self.norm = 0.5 * self.norm + 0.5 * torch.stack([x.norm() for x in gradients]).sum()

    def change(self, _group: dict[str, Any], parameter: torch.Tensor) -> torch.Tensor:
        assert parameter.grad is not None
        return parameter.grad / self.norm


class Lookahead(Plain):
    """An optimizer around another one, which has the state."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.inner = torch.optim.AdamW(self.param_groups, lr=_LR)

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def closure_counter(parameters: Parameters) -> Optimizer:
    """A counter in a closure, which a hook counts."""
    optimizer = Plain(parameters)
    count = 0

    def counted(*_: Any) -> None:
        nonlocal count
        count += 1
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad *= 1 + count / 4

    optimizer.register_step_pre_hook(counted)
    return optimizer


class GlobalCounter(Plain):
    """A counter of the module, shared by the optimizers of all layers."""

    def begin(self) -> None:
        global _CALLS
        _CALLS += 1

    def change(self, _group: dict[str, Any], parameter: torch.Tensor) -> torch.Tensor:
        return _grown(parameter, _CALLS)


class ClassCounter(Plain):
    """A counter of the class, shared by the optimizers of all layers."""

    taken = 0

    def begin(self) -> None:
        ClassCounter.taken += 1

    def change(self, _group: dict[str, Any], parameter: torch.Tensor) -> torch.Tensor:
        return _grown(parameter, ClassCounter.taken)


class Noise(Plain):
    """Noise from torch's or numpy's generator, as in Langevin dynamics."""

    def __init__(self, parameters: Any, origin: str) -> None:
        super().__init__(parameters)
        self.origin = origin

    def change(self, _group: dict[str, Any], parameter: torch.Tensor) -> torch.Tensor:
        assert parameter.grad is not None
        drawn = torch.randn(()) if self.origin == "torch" else float(np.random.randn())
        return parameter.grad + drawn


def changes_a_parameter(parameters: Parameters) -> Optimizer:
    """A hook moves the parameters themselves in each third update."""
    optimizer = Plain(parameters)
    count = 0

    def shrink(*_: Any) -> None:
        nonlocal count
        count += 1
        if count % 3 == 0:
            with torch.no_grad():
                for parameter in parameters:
                    parameter *= 0.9

    optimizer.register_step_post_hook(shrink)
    return optimizer


class Sharpness(Plain):
    """Needs a closure that computes the loss again, as SAM does."""

    def step(self, closure: Any = None) -> Any:
        if closure is None:
            raise RuntimeError("Sharpness needs a closure")
        return super().step(closure)


# ------------------------------------------------------------ kinds of state


_VALUES: dict[str, Callable[[torch.Tensor], Any]] = {
    "list": lambda p: [torch.ones_like(p), torch.ones(2, 2)],
    "dict": lambda p: {"left": torch.ones_like(p), "right": {"deep": torch.ones(2)}},
    "dtype": lambda _: torch.float32,
    "numpy_scalar": lambda _: np.float32(1.0),
    "numpy_array": lambda _: np.ones(3, np.float32),
    "none": lambda _: None,
    "text": lambda _: "adam",
    "tuple": lambda _: (0.9, 0.99),
    "complex": lambda p: torch.ones(p.shape, dtype=torch.complex128),
    "bool": lambda p: torch.ones(p.numel() + 1, dtype=torch.bool),
    "int8": lambda p: torch.ones(p.numel() + 1, 2, dtype=torch.int8),
    "float64": lambda p: torch.ones(p.shape, dtype=torch.float64),
    "bfloat16": lambda p: torch.ones(2, *p.shape, dtype=torch.bfloat16),
    "transposed": lambda p: torch.linspace(0.1, 1.7, 1500).view(50, 30).t(),
    "generator": lambda _: torch.Generator().manual_seed(5),
    "inf": lambda _: float("inf"),
}


class Keeps(Plain):
    """State of a kind for each parameter, which is used, and grows where it can."""

    def __init__(self, parameters: Any, kind: str) -> None:
        super().__init__(parameters)
        self.kind = kind

    def change(self, _group: dict[str, Any], parameter: torch.Tensor) -> torch.Tensor:
        state = self.state[parameter]
        if "kept" not in state:
            state["kept"] = _VALUES[self.kind](parameter)
        tensors = list(_tensors(state["kept"]))
        for tensor in tensors:
            tensor.logical_not_() if tensor.dtype is torch.bool else tensor.add_(1)
        return _grown(parameter, sum(float(x.real.float().mean()) for x in tensors))


def _tensors(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


class GlobalState(Plain):
    """State under a string, which is no parameter."""

    def begin(self) -> None:
        state: Any = self.state
        held = state["global"].setdefault("mean", torch.zeros(()))
        gradients = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        held.lerp_(torch.stack([x.norm() for x in gradients]).mean(), 0.25)

    def change(self, _group: dict[str, Any], parameter: torch.Tensor) -> torch.Tensor:
        state: Any = self.state
        return _grown(parameter, float(state["global"]["mean"]))


# ------------------------------------------------------------ rates


def _halved(parameters: Parameters) -> list[dict[str, Any]]:
    """Vectors get a quarter of the rate."""
    return [
        {"params": [p for p in parameters if p.dim() > 1], "lr": _LR},
        {"params": [p for p in parameters if p.dim() <= 1], "lr": _LR / 4},
    ]


def _power(step: int) -> float:
    return float(2.0 ** -(step % 4))


def groups(parameters: Parameters) -> tuple[Optimizer, Callable[[int], float]]:
    """Two groups with different rates, and a rate for each step."""
    return Plain(_halved(parameters)), lambda step: _LR * _power(step)


class ByHand(Plain):
    """What :func:`groups` means: its own counter takes the place of the step."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(_halved(parameters), taken=-1)

    def begin(self) -> None:
        for group in self.param_groups:
            group["taken"] += 1

    def change(self, group: dict[str, Any], parameter: torch.Tensor) -> torch.Tensor:
        assert parameter.grad is not None
        return parameter.grad * _power(group["taken"])


def by_hand(parameters: Parameters) -> tuple[Optimizer, None]:
    return ByHand(parameters), None


def impure_rate(parameters: Parameters) -> tuple[Optimizer, Callable[[int], float]]:
    """The rate depends on how often it was asked for."""
    calls = 0

    def rate(_step: int) -> float:
        nonlocal calls
        calls += 1
        return _LR / calls

    return Plain(parameters), rate


def rate_of_other_options(parameters: Parameters) -> tuple[Optimizer, Callable[[int], float]]:
    """The rate sets the weight decay, too, to a function of the step."""
    optimizer = torch.optim.AdamW(parameters, lr=_LR)

    def rate(step: int) -> float:
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.1 * step
        return _LR

    return optimizer, rate


def scheduled(parameters: Parameters) -> Optimizer:
    """A scheduler that each step of the optimizer steps."""
    optimizer = torch.optim.SGD(parameters, lr=_LR)
    scheduler = LambdaLR(optimizer, lambda count: 0.8**count)
    optimizer.register_step_post_hook(lambda *_: scheduler.step())
    return optimizer


def scheduler(parameters: Parameters) -> Any:
    """A scheduler in the place of a rate."""
    optimizer = torch.optim.SGD(parameters, lr=_LR)
    return optimizer, LambdaLR(optimizer, lambda count: 0.8**count)


def adamw(parameters: Parameters, *, tensor_lr: bool = False, **options: Any) -> Optimizer:
    """AdamW with options of torch."""
    lr: Any = torch.tensor(0.01) if tensor_lr else 0.01
    return torch.optim.AdamW(parameters, lr=lr, **options)
