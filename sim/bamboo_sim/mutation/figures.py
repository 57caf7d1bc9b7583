"""The figures of a finished run, for benchmarks/results/mutation.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from bamboo_sim.mutation.mutants import Mutant
from bamboo_sim.mutation.verdicts import Verdict
from bamboo_sim.programs import results_file


@dataclass(frozen=True)
class Judged:
    """A mutant of the sample. reason: why it is equivalent, "" if nobody says so."""

    mutant: Mutant
    verdict: Verdict
    reason: str = ""

    @property
    def column(self) -> str:
        """Where it counts. A mutant that is killed is not equivalent, whatever is said."""
        if self.verdict.killed_by:
            return "killed"
        return "equivalent" if self.reason else "survived"


def figures(judged: Iterable[Judged]) -> dict[str, Any]:
    """The totals."""
    rows = list(judged)
    columns = Counter(row.column for row in rows)
    kinds = Counter(row.verdict.kind for row in rows)
    real = len(rows) - columns["equivalent"]
    return {
        "mutants": len(rows),
        "killed": columns["killed"],
        "survived": columns["survived"],
        "equivalent": columns["equivalent"],
        "killed_over_all": round(columns["killed"] / real, 4) if real else 0.0,
        "equivalents_share": round(columns["equivalent"] / len(rows), 4) if rows else 0.0,
        "killed_by_tests": kinds["tests"] + kinds["import"],
        "killed_by_exploration": kinds["exploration"],
        "killed_by_time_out": kinds["time-out"],
        "killed_by_crash": kinds["crash"],
        "median_s": round(median(row.verdict.seconds for row in rows), 2) if rows else 0.0,
        "all_s": round(sum(row.verdict.seconds for row in rows)),
    }


def by_module(judged: Iterable[Judged]) -> dict[str, dict[str, int]]:
    """Module -> mutants, and how many of each column."""
    table: dict[str, dict[str, int]] = {}
    for row in sorted(judged, key=lambda r: r.mutant.module):
        counts = table.setdefault(
            row.mutant.module, {"mutants": 0, "killed": 0, "survived": 0, "equivalent": 0}
        )
        counts["mutants"] += 1
        counts[row.column] += 1
    return table


def write(judged: Iterable[Judged], settings: Mapping[str, Any]) -> None:
    """Write the result. ValueError if too many mutants survive for a short file."""
    rows = sorted(judged, key=lambda r: (r.mutant.module, r.mutant.line))
    alive = [row for row in rows if row.column == "survived"]
    if len(alive) > _MOST_ALIVE:
        raise ValueError(
            f"{len(alive)} mutants survive and the file holds {_MOST_ALIVE}; write tests first"
        )
    results_file.write(
        "mutation",
        samples={
            "settings": dict(settings),
            "operators": dict(Counter(row.mutant.operator for row in rows).most_common()),
            "modules": by_module(rows),
            "survivors": [str(row.mutant) for row in alive],
        },
        figures=figures(rows),
    )


_MOST_ALIVE = 200
