"""Tied layers: layers that have a parameter in common, such as an embedding and the output layer.

Each of them updates a copy of its own. So of the reduced gradients of a step, one of them needs
those of all: for its vote, for its update, and to be rolled forward later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from bamboo_core.model.ids import Range

Ties = tuple[tuple[int, ...], ...]
"""Groups of layers that have a parameter in common."""


@lru_cache(maxsize=16)
def partners(ties: Ties) -> dict[int, tuple[int, ...]]:
    """Layer -> the other layers with which it has a parameter in common; only those with some."""
    found: dict[int, set[int]] = {}
    for group in ties:
        for layer in group:
            found.setdefault(layer, set()).update(group)
    return {layer: tuple(sorted(others - {layer})) for layer, others in found.items()}


def other_stages(
    ties: Ties, cut: Sequence[Range], layers: Iterable[int], but: Iterable[int]
) -> list[int]:
    """Stages with layers that are tied to one of these, in order, without the stages ``but``."""
    if not ties:
        return []
    tied = {other for layer in layers for other in partners(ties).get(layer, ())}
    return [
        stage
        for stage, (lo, hi) in enumerate(cut)
        if stage not in but and any(lo <= layer < hi for layer in tied)
    ]
