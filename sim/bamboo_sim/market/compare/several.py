"""How systems stand on several fleets together."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean
from typing import NamedTuple

from bamboo_sim.market.compare.comparison import BOUND, Comparison
from bamboo_sim.market.compare.verdict import systems


class Standing(NamedTuple):
    """A system on all fleets. ``ratios``: on each of them, its samples per dollar over those of the
    bound; ``mean``: their geometric one, 0 where one is 0; ``rank``: by it."""

    name: str
    ratios: tuple[float, ...]
    mean: float
    rank: int


def standings(found: Sequence[Comparison]) -> list[Standing]:
    """The systems of the first table by rank; none where there is one fleet alone."""
    if len(found) < 2:
        return []
    of: dict[str, tuple[float, ...]] = {}
    for row in systems(found[0]):
        of[row.name] = tuple(
            each.row(row.name).samples_per_dollar / each.row(BOUND).samples_per_dollar
            for each in found
        )
    means = {name: geometric_mean(x) if all(x) else 0.0 for name, x in of.items()}
    made = [
        Standing(name, of[name], mean, 1 + sum(x > mean for x in means.values()))
        for name, mean in means.items()
    ]
    return sorted(made, key=lambda each: (each.rank, each.name))
