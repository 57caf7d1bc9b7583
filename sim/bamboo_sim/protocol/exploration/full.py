"""The record of an exhaustive run, which takes hours of a core: it is written after every unit, and
a run of the same code goes on where the last one was ended."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bamboo_sim import results_file
from bamboo_sim.protocol.exploration.exhaustive import Unit
from bamboo_sim.protocol.exploration.tally import Tally

NAME = "explorer_full"
CODE = (
    "core/bamboo_core",
    "sim/bamboo_sim/protocol",
    ":!sim/bamboo_sim/protocol/__main__.py",
    ":!sim/bamboo_sim/protocol/exploration/full.py",
    ":!tests/explore/test_*.py",
)
"""What must be the same in all units of one record."""

Entry = dict[str, Any]


@dataclass
class Full:
    """units: those that are done, by name; todo: all that belong to the run -> their rows."""

    seed: int
    todo: dict[str, str]
    code: str = field(default_factory=lambda: results_file.fingerprint(CODE))
    units: dict[str, Entry] = field(default_factory=dict)

    def add(self, unit: Unit, tally: Tally) -> None:
        """One more is done."""
        self.units[str(unit)] = {
            "row": unit.row,
            "cases": tally.cases,
            "distinct": len(tally.histories),
            "outcomes": dict(sorted(tally.outcomes.items())),
            "kills": {" / ".join(point): n for point, n in sorted(tally.points.items())},
            "violations": [f"{text}: {history}" for history, text in tally.violations],
            "core_s": round(tally.cpu_s, 1),
        }

    def rows(self) -> dict[str, Entry]:
        """Units of one family and job together; ``units``: how many of how many."""
        found: dict[str, Entry] = {}
        for name, entry in self.units.items():
            row = found.setdefault(entry["row"], {"units": 0, "of": 0, "cases": 0, "distinct": 0})
            row["units"] += name in self.todo
            for key, n in {**entry, **entry["outcomes"]}.items():
                if isinstance(n, int):
                    row[key] = row.get(key, 0) + n
            row["core_s"] = round(row.get("core_s", 0.0) + entry["core_s"], 1)
        for row, entry in found.items():
            entry["of"] = sum(each == row for each in self.todo.values())
        return dict(sorted(found.items()))

    def figures(self) -> dict[str, Any]:
        """Counts over all units that are done."""
        entries = list(self.units.values())
        return {
            "units": len(self.todo),
            "units_done": sum(name in self.units for name in self.todo),
            "cases": _total(entries, "cases"),
            "histories": _total(entries, "distinct"),
            "violations": sum(len(e["violations"]) for e in entries),
            "kill_points": len(self.kills()),
            "core_min": round(_total(entries, "core_s") / 60, 1),
        }

    def kills(self) -> Counter[str]:
        """Instruction, role and phase at which an agent was killed -> how often."""
        out: Counter[str] = Counter()
        for entry in self.units.values():
            out.update(entry["kills"])
        return out

    def write(self) -> None:
        """SystemExit if the code has been changed meanwhile."""
        if results_file.fingerprint(CODE) != self.code:
            raise SystemExit(f"{', '.join(CODE)} have changed: run this again")
        samples = {
            "code": self.code,
            "seed": self.seed,
            "rows": self.rows(),
            "kills": dict(sorted(self.kills().items())),
            "by_unit": self.units,
        }
        results_file.write(NAME, samples=samples, figures=self.figures())


def begin(todo: Iterable[Unit], seed: int) -> Full:
    """What the last run of the same code has done already, with its seed; else nothing."""
    names = {str(unit): unit.row for unit in todo}
    fresh = Full(seed, names)
    path = results_file.RESULTS / f"{NAME}.json"
    samples = json.loads(path.read_text(encoding="utf-8"))["samples"] if path.exists() else {}
    if samples.get("code") != fresh.code:
        return fresh
    return Full(samples["seed"], names, fresh.code, samples["by_unit"])


def _total(entries: Iterable[Entry], key: str) -> float:
    return sum(e[key] for e in entries)
