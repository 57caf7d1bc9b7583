"""Bytes of every item, by what the layers' costs say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from bamboo_core.model.ids import Range
from bamboo_core.model.items import Item, Kind
from bamboo_core.protocol.messages import LayerCost
from bamboo_core.scheduling.device_memory import STATES

_RECORD = 256  # bytes of a vote or a commit

BOUNDARIES = frozenset({Kind.OUT, Kind.INGRAD, Kind.EVAL})
SUMS = frozenset({Kind.PART, Kind.SUM})
SLICES = frozenset({Kind.PIECE, Kind.RED})


def wire_times(
    sums: Mapping[Range, float], boundaries: Mapping[int, float] | None = None
) -> Callable[[Item], float]:
    """Time that an item takes an interface: sums do, and slices of them.

    sums: layers of a stage -> time of its whole gradient; boundaries: first layer of a stage ->
    time of its boundary tensors with the stage before (absent: none).
    """
    between = boundaries or {}
    whole = {lo: time for (lo, _), time in sums.items()}

    def of(item: Item) -> float:
        if item.kind in SUMS:
            return whole[item.lo]
        if item.kind in SLICES:
            return whole[item.lo] / item.slices
        return between.get(item.lo, 0.0) if item.kind in BOUNDARIES else 0.0

    return of


class ItemBytes:
    """Sizes by the costs of all layers of the model."""

    def __init__(self, layers: Sequence[LayerCost]) -> None:
        self._parameters = list(accumulate((x.parameter_bytes for x in layers), initial=0))
        self._activations = list(accumulate((x.activation_bytes for x in layers), initial=0))
        self._outputs = [x.output_bytes for x in layers]

    def parameters(self, lo: int, hi: int) -> int:
        """Bytes of the weights of layers lo..hi-1; gradients have the same size."""
        return self._parameters[hi] - self._parameters[lo]

    def activations(self, lo: int, hi: int) -> int:
        """Bytes that a forward of layers lo..hi-1 keeps for one micro-batch."""
        return self._activations[hi] - self._activations[lo]

    def of(self, item: Item) -> int:
        """Bytes of the item, in memory and on the wire. VER: of the layer's whole state."""
        kind, lo, hi = item.kind, item.lo, item.hi
        if kind in BOUNDARIES:
            return self._outputs[lo - 1]
        if kind is Kind.ACT:
            return self.activations(lo, hi)
        if kind is Kind.PREFIX:
            return self.activations(lo, lo + item.part)
        if kind in SUMS:
            return self.parameters(lo, hi)
        if kind in SLICES:
            return -(-self.parameters(lo, hi) // item.slices)
        return STATES * self.parameters(lo, hi) if kind is Kind.VER else _RECORD
