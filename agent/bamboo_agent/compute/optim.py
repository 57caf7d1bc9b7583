"""Optimizers: any torch optimizer that works per parameter, one instance per layer.

``spec.training.optimizer.factory`` names a class or function that is called with the layer's
parameters and ``args``. It may also return ``(optimizer, rate)`` where ``rate(step)`` is the
learning rate of a step: a pure function, so that it needs no state of its own. A group with a rate
of its own gets rate(step) x (its rate / the optimizer's default rate).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bamboo_agent.compute.layers import Layer, OptimizerFactory
from bamboo_agent.compute.optimizer_state import RATE
from bamboo_agent.device.random_state import seed_code
from bamboo_agent.model import FactoryError
from bamboo_agent.user_code import load_factory, told
from bamboo_core.api.spec import FactorySpec


def optimizer_factory(spec: FactorySpec, *, seed: int) -> OptimizerFactory:
    """Makes a layer's optimizer. seed: spec.seed. FactoryError if the factory does not exist."""
    factory = load_factory(spec.factory, seed=seed)

    def make(parameters: Sequence[torch.Tensor]) -> Any:
        seed_code(seed, "call", spec.factory)
        try:
            made = factory(parameters, **spec.args)
        except (Exception, SystemExit) as error:
            raise FactoryError(f"{spec.factory} raised {told(error)}") from error
        if isinstance(made, tuple) and len(made) != 2:
            raise FactoryError(
                f"{spec.factory} returned a tuple of {len(made)}: return the optimizer, or"
                " (optimizer, rate)"
            )
        optimizer, rate = made if isinstance(made, tuple) else (made, None)
        if not isinstance(optimizer, torch.optim.Optimizer):
            kind = type(optimizer).__name__
            raise FactoryError(f"{spec.factory} returned a {kind}, not a torch optimizer")
        if rate is not None:
            _check_rate(spec.factory, optimizer, rate)
        setattr(optimizer, RATE, rate)
        return optimizer

    return make


def _check_rate(factory: str, optimizer: torch.optim.Optimizer, rate: Any) -> None:
    """FactoryError if rate(step) cannot set the optimizer's learning rates."""
    if not callable(rate):
        kind = type(rate).__name__
        raise FactoryError(
            f"{factory} returned (optimizer, {kind}): the second must be a function that gives"
            " the learning rate of a step; torch's schedulers keep a state of their own"
        )
    default = optimizer.defaults.get("lr")
    for i, group in enumerate(optimizer.param_groups):
        own = group.get("lr")
        if own is None or default is None or (own != default and not float(default)):
            raise FactoryError(
                f"{factory} returned (optimizer, rate), but the rate of param_groups[{i}] cannot be"
                f" set: its lr is {own}, the optimizer's default is {default}; give the optimizer"
                " an lr above 0"
            )


def clip_scale(grad_norm: float, clip_norm: float) -> float:
    """The factor that limits the global gradient norm to ``clip_norm`` (0: no clipping)."""
    if clip_norm <= 0 or grad_norm <= clip_norm:
        return 1.0
    return clip_norm / (grad_norm + 1e-6)


def update(layer: Layer, gradient: torch.Tensor, *, scale: float, step: int) -> None:
    """One optimizer step of a layer. gradient: flat, not modified. scale: see clip_scale."""
    if layer.optimizer is None:
        return
    scaled = gradient * scale
    at = 0
    for parameter in layer.parameters:
        end = at + parameter.numel()
        parameter.grad = scaled[at:end].view(parameter.shape).to(parameter.dtype)
        at = end
    assert layer.optimizer_state is not None
    layer.optimizer_state.set_rate(step)
    layer.optimizer.step()
    for parameter in layer.parameters:  # of those, too, that the optimizer does not take
        parameter.grad = None


def adamw(
    parameters: Sequence[torch.Tensor],
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.01,
    warmup_steps: int = 0,
    total_steps: int = 0,
) -> tuple[torch.optim.Optimizer, Callable[[int], float]]:
    """AdamW with linear warm-up and, if ``total_steps`` is given, linear decay to zero."""
    optimizer = torch.optim.AdamW(
        parameters, lr=lr, betas=(betas[0], betas[1]), weight_decay=weight_decay
    )

    def rate(step: int) -> float:
        if step < warmup_steps:
            return lr * (step + 1) / warmup_steps
        if total_steps > warmup_steps:
            return lr * max(0.0, (total_steps - step) / (total_steps - warmup_steps))
        return lr

    return optimizer, rate
