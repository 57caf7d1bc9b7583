"""Engine and market against the authors' simulator, seed by seed: same draws, same fleets, and the
figures that it printed with the two fitted assumptions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bamboo_sim.market.paper import assumptions
from bamboo_sim.market.policies.authors_simulator import AuthorsSimulator
from bamboo_sim.market.simulation.engine import run

ROWS = Path("shared", "research", "bamboo-sim-rows.json")
"""What it printed, in a folder beside a checkout; the project does not contain it."""


@dataclass(frozen=True)
class Pair:
    """A run of both. ``off``: throughput, cost and value here over there, minus 1."""

    loss_chance: float
    seed: int
    off: tuple[float, ...]

    @property
    def worst(self) -> float:
        """The largest difference, without its sign."""
        return max(map(abs, self.off))


def rows_file() -> Path | None:
    """The nearest one in a folder above this; None: there is none."""
    found = (folder / ROWS for folder in Path(__file__).resolve().parents)
    return next((path for path in found if path.is_file()), None)


def pairs(path: Path) -> list[Pair]:
    """All runs of the file, in its order."""
    rows: Iterable[Mapping[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    with ProcessPoolExecutor() as pool:
        return list(pool.map(_pair, rows, chunksize=5))


def _pair(row: Mapping[str, Any]) -> Pair:
    chance, seed = row["p"], row["seed"]
    policy = AuthorsSimulator(assumptions.published())
    found = run(policy, assumptions.market(chance).events(seed), assumptions.terms())
    ours = found.samples_per_second, found.dollars_per_hour, found.value_time_mean
    theirs = row["thr"], row["cost"], row["value"]
    return Pair(chance, seed, tuple(x / y - 1 for x, y in zip(ours, theirs, strict=True)))
