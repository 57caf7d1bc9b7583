"""The cut: splits the ordered layers into contiguous stages, minimizing the costliest stage."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from bamboo_core.model.counts import counted
from bamboo_core.model.ids import Range


def split(costs: Sequence[float], stages: int) -> tuple[Range, ...]:
    """Stage -> its layers, by an exact dynamic program over (stages, layers).

    costs: per layer, in any unit, not negative. Among the optimal cuts, earlier stages are as cheap
    as possible. O(P n log n). ValueError if a stage would be empty.
    """
    layers = len(costs)
    if not 1 <= stages <= layers:
        raise ValueError(
            f"{counted(layers, 'layer')} cannot be cut into {counted(stages, 'stage')}: set"
            f" pipelines.stages to 1..{layers}, or give the model more layers"
        )
    upto = list(accumulate(costs, initial=0.0))
    best = list(upto)  # best[i]: costliest stage of the first i layers
    starts: list[list[int]] = []
    for stage in range(1, stages):
        start = [_start(best, upto, stage, end) for end in range(layers + 1)]
        best = [
            max(best[start[end]], upto[end] - upto[start[end]]) if end > stage else float("inf")
            for end in range(layers + 1)
        ]
        starts.append(start)
    return _ranges(starts, layers)


def _start(best: list[float], upto: list[float], stage: int, end: int) -> int:
    """The first layer of the last of ``stage`` + 1 stages over the first ``end`` layers.

    With the start, ``best`` grows and the last stage's cost falls; the optimum is where they cross.
    """
    low, high = stage, max(end - 1, stage)
    while low < high:
        middle = (low + high) // 2
        if best[middle] >= upto[end] - upto[middle]:
            high = middle
        else:
            low = middle + 1
    if low > stage and best[low] >= upto[end] - upto[low - 1]:
        return low - 1
    return low


def _ranges(starts: list[list[int]], layers: int) -> tuple[Range, ...]:
    out: list[Range] = []
    end = layers
    for start in reversed(starts):
        out.append((start[end], end))
        end = start[end]
    out.append((0, end))
    return tuple(reversed(out))
