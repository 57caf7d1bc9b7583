"""What tasks cost: per layer, in any one unit of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from bamboo_core.model.program import Instruction, Op
from bamboo_core.protocol.messages import LayerCost


@dataclass(frozen=True)
class Costs:
    """Time of the tasks of each layer, in any one unit (slots, seconds); ``latency`` of a message.

    forward, fused (B), input_gradient (I), weight_gradient (W): one number per layer; can_split:
    whether I and W may be used at all.
    """

    forward: tuple[float, ...]
    fused: tuple[float, ...]
    input_gradient: tuple[float, ...]
    weight_gradient: tuple[float, ...]
    latency: float = 0.0
    can_split: bool = True

    @staticmethod
    def even(layers: int, *, unit: float = 1.0, latency: float = 0.0) -> Costs:
        """F = I = W = ``unit`` and B = 2 units for every layer."""
        one, two = (unit,) * layers, (2 * unit,) * layers
        return Costs(one, two, one, one, latency)

    @staticmethod
    def measured(profile: Sequence[LayerCost], *, latency: float = 0.0) -> Costs:
        """From the seconds that an agent has measured."""
        return Costs(
            tuple(x.forward_s for x in profile),
            tuple(x.backward_s for x in profile),
            tuple(x.input_gradient_s for x in profile),
            tuple(x.weight_gradient_s for x in profile),
            latency,
            can_split=all(x.can_split for x in profile),
        )

    def durations(self) -> Durations:
        """The same as prefix sums."""
        return Durations(
            {
                Op.F: _prefix(self.forward),
                Op.V: _prefix(self.forward),
                Op.B: _prefix(self.fused),
                Op.I: _prefix(self.input_gradient),
                Op.W: _prefix(self.weight_gradient),
            }
        )


class Durations(dict[Op, list[float]]):
    """Compute op -> prefix sums of its cost over the layers."""

    def of(self, instruction: Instruction) -> float:
        """Time that the instruction takes."""
        sums = self.get(instruction.op)
        return sums[instruction.hi] - sums[instruction.lo] if sums else 0.0


def _prefix(costs: tuple[float, ...]) -> list[float]:
    return list(accumulate(costs, initial=0.0))
