"""Costs of tasks: time per layer, in any unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from bamboo_core.model.ids import Range
from bamboo_core.model.program import Instruction, Op
from bamboo_core.protocol.messages import LayerCost

_BITS = 32  # of a cost; 21 more are left for sums


@dataclass(frozen=True)
class Costs:
    """Time of each task, one number per layer. The unit is free (slots, seconds)."""

    forward: tuple[float, ...]  # F
    fused: tuple[float, ...]  # B
    input_gradient: tuple[float, ...]  # I
    weight_gradient: tuple[float, ...]  # W
    latency: float = 0.0  # of a message
    can_split: bool = True  # I and W may replace B
    ahead: tuple[float, ...] = ()  # R; empty: as F

    @staticmethod
    def even(layers: int, *, unit: float = 1.0, latency: float = 0.0) -> Costs:
        """F = I = W = ``unit`` and B = 2 units for every layer."""
        one, two = (unit,) * layers, (2 * unit,) * layers
        return Costs(one, two, one, one, latency)

    @staticmethod
    def measured(profile: Sequence[LayerCost], *, latency: float = 0.0) -> Costs:
        """Costs from the seconds that an agent has measured. Where a backward cannot be split, an
        agent that needs one half alone runs the whole."""
        return Costs(
            tuple(x.forward_s for x in profile),
            tuple(x.backward_s for x in profile),
            tuple(x.input_gradient_s if x.can_split else x.backward_s for x in profile),
            tuple(x.weight_gradient_s if x.can_split else x.backward_s for x in profile),
            latency,
            can_split=all(x.can_split for x in profile),
        )

    @property
    def price_of_split(self) -> float:
        """Time of I and W over that of B, for the layer where it is most; at least 1."""
        halves = zip(self.input_gradient, self.weight_gradient, self.fused, strict=True)
        return max((1.0, *((i + w) / b for i, w, b in halves if b)))

    def rounded(self) -> Costs:
        """Costs that differ by less than a billionth of the largest one, and whose sums are exact:
        equal loads compare as equal, in whatever order they were added up."""
        every = (self.forward, self.fused, self.input_gradient, self.weight_gradient, self.ahead)
        most = max((x for costs in every for x in costs), default=0.0)
        unit = math.ldexp(1.0, math.frexp(most)[1] - _BITS)
        rounded = (tuple(round(x / unit) * unit for x in costs) for costs in every)
        forward, fused, input_gradient, weight_gradient, ahead = rounded
        return Costs(
            forward,
            fused,
            input_gradient,
            weight_gradient,
            self.latency,
            can_split=self.can_split,
            ahead=ahead,
        )

    def durations(self) -> Durations:
        """The same costs as prefix sums."""
        return Durations(
            {
                Op.F: _prefix(self.forward),
                Op.R: _prefix(self.ahead or self.forward),
                Op.V: _prefix(self.forward),
                Op.B: _prefix(self.fused),
                Op.I: _prefix(self.input_gradient),
                Op.W: _prefix(self.weight_gradient),
            }
        )


class Durations(dict[Op, list[float]]):
    """Op -> prefix sums of its cost over the layers, for ops that compute."""

    def of(self, instruction: Instruction) -> float:
        """Time of one instruction; 0 for ops that do not compute."""
        op, _, lo, hi, _, _, _, ranges, _, _ = instruction
        sums = self.get(op)
        if not sums:
            return 0.0
        if ranges:
            lo, hi = ranges[0]
        return sums[hi] - sums[lo]


def _prefix(costs: tuple[float, ...]) -> list[float]:
    return list(accumulate(costs, initial=0.0))


def transfers(
    profile: Sequence[LayerCost], cut: Sequence[Range], bytes_per_s: float
) -> tuple[float, ...]:
    """Stage -> seconds that a sum of its gradient takes to another agent; empty: no profile."""
    if not profile:
        return ()
    return tuple(sum(x.parameter_bytes for x in profile[lo:hi]) / bytes_per_s for lo, hi in cut)
