"""Schedules that come with Bamboo: factories for ``spec.training.optimizer.schedule``.

Each returns a pure function of the step (from 0), by which the learning rates of all groups are
multiplied in that step. With W warm-up steps, T steps in all, and ``final`` F:

    warm-up, step < W    (step + 1) / W
    x                    (step - W) / (T - W), at most 1
    constant             1
    linear               1 - (1 - F) * x
    cosine               F + (1 - F) * (1 + cos(pi * x)) / 2

The functions use only +, -, * and /, which give the same bits on all processors; ``math.cos`` does
not.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[int], float]

_TERMS = 12  # of a series whose rest is then smaller than a double's last bit


def constant(*, warmup_steps: int = 0) -> Schedule:
    """Warm-up, then 1. ValueError if an argument is out of range."""
    return _warmed(warmup_steps, None, lambda _: 1.0)


def linear(*, total_steps: int, warmup_steps: int = 0, final: float = 0.0) -> Schedule:
    """Warm-up, then a line down to ``final`` at ``total_steps``. ValueError."""
    _check_final(final)
    return _warmed(warmup_steps, total_steps, lambda x: 1.0 - (1.0 - final) * x)


def cosine(*, total_steps: int, warmup_steps: int = 0, final: float = 0.0) -> Schedule:
    """Warm-up, then half a wave down to ``final`` at ``total_steps``. ValueError."""
    _check_final(final)
    return _warmed(warmup_steps, total_steps, lambda x: final + (1.0 - final) * _half_wave(x))


def _warmed(warmup: int, total: int | None, shape: Callable[[float], float]) -> Schedule:
    """shape: of the part behind the warm-up, from 0 to 1. total: where it ends; None: nowhere."""
    for name, value in (("warmup_steps", warmup), ("total_steps", total)):
        if value is not None and type(value) is not int:
            raise ValueError(f"{name} is {value!r}; it must be a whole number, without quotes")
    if warmup < 0:
        raise ValueError(f"warmup_steps is {warmup}; it must be at least 0")
    if total is not None and total <= warmup:
        raise ValueError(f"total_steps is {total}; it must be more than warmup_steps, {warmup}")

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if total is None:
            return shape(0.0)
        return shape(min(1.0, (step - warmup) / (total - warmup)))

    return factor


def _check_final(final: float) -> None:
    if type(final) not in (int, float) or not 0 <= final <= 1:
        raise ValueError(f"final is {final!r}; it must be from 0 to 1")


def _half_wave(x: float) -> float:
    """(1 + cos(pi * x)) / 2, which is cos(pi * x / 2) squared; 0 at x = 1."""
    if x == 1.0:
        return 0.0
    angle = math.pi * x / 2
    term = total = 1.0
    for n in range(1, _TERMS):
        term *= -angle * angle / ((2 * n - 1) * (2 * n))
        total += term
    return total * total
