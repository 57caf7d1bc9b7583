"""Intervals of what systems get for a dollar: a bootstrap of blocks of time and of seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from operator import mul
from random import Random
from typing import NamedTuple, TypeVar

from bamboo_sim.market.compare.timeline import Timeline

LEVEL = 0.95
BLOCKS = 30
"""As many as a fit of a trace has."""
_RESAMPLES, _SEED = 1000, 1

Key = TypeVar("Key", bound=Hashable)


class Interval(NamedTuple):
    """The middle :data:`LEVEL` of the resampled values."""

    low: float
    high: float


NO_INTERVAL = Interval(0.0, 0.0)


class Resampled(NamedTuple):
    """The samples per dollar of a system in each resampled history; the histories of all systems
    are the same."""

    values: tuple[float, ...]

    def interval(self) -> Interval:
        """The interval of the values."""
        return _interval(self.values)

    def over(self, other: Resampled) -> Interval:
        """The interval of the ratio to another system in the same histories."""
        pairs = zip(self.values, other.values, strict=True)
        return _interval([mine / theirs if theirs else 0.0 for mine, theirs in pairs])


def resampled(timelines: Mapping[Key, Sequence[Timeline]]) -> dict[Key, Resampled]:
    """Histories by drawing blocks of time and seeds with replacement. ``timelines``: for each
    system, one of each seed. A draw takes the same blocks and the same seeds for all systems."""
    seeds = max(map(len, timelines.values()))
    samples = {key: _cells(each, "net") for key, each in timelines.items()}
    dollars = {key: _cells(each, "dollars") for key, each in timelines.items()}
    random = Random(_SEED)
    found: dict[Key, list[float]] = {key: [] for key in timelines}
    for _ in range(_RESAMPLES):
        blocks = Counter(random.choices(range(BLOCKS), k=BLOCKS))
        of_seeds = Counter(random.choices(range(seeds), k=seeds))
        weights = [of_seeds[s] * blocks[b] for s in range(seeds) for b in range(BLOCKS)]
        for key, values in found.items():
            paid = sum(map(mul, weights, dollars[key]))
            values.append(sum(map(mul, weights, samples[key])) / paid if paid else 0.0)
    return {key: Resampled(tuple(values)) for key, values in found.items()}


def _cells(timelines: Sequence[Timeline], name: str) -> list[float]:
    """The sum of each block of each seed."""
    cells = []
    for timeline in timelines:
        bins: list[float] = getattr(timeline, name)
        width = len(bins) // BLOCKS
        cells += [sum(bins[b * width : (b + 1) * width]) for b in range(BLOCKS)]
    return cells


def _interval(values: Sequence[float]) -> Interval:
    ordered = sorted(values)
    outside = (1 - LEVEL) / 2
    last = len(ordered) - 1
    return Interval(ordered[round(outside * last)], ordered[round((1 - outside) * last)])
