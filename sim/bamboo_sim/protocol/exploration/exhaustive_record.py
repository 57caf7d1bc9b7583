"""The record of an exhaustive run, which takes more than an hour of processor time.

It is written after every unit. A later run of the same code resumes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bamboo_sim.programs import results_file
from bamboo_sim.protocol.exploration.exhaustive import Unit
from bamboo_sim.protocol.exploration.tally import Tally

NAME = "explorer_full"
CODE = (
    "core/bamboo_core",
    "sim/bamboo_sim/protocol",
    ":!sim/bamboo_sim/protocol/__main__.py",
    ":!sim/bamboo_sim/protocol/planted",
    ":!sim/bamboo_sim/protocol/exploration/detection.py",
    ":!sim/bamboo_sim/protocol/exploration/exhaustive_record.py",
)
"""Git pathspecs of the code that must be the same for all units of one record."""

Entry = dict[str, Any]


@dataclass
class ExhaustiveRecord:
    seed: int
    rows: dict[str, str]  # every unit of the run -> the row that counts it
    code: str = field(default_factory=lambda: results_file.fingerprint(CODE))
    units: dict[str, Entry] = field(default_factory=dict)  # the finished ones, by name

    def add(self, unit: Unit, tally: Tally) -> None:
        """Record a finished unit."""
        self.units[str(unit)] = {
            "row": unit.row,
            "cases": tally.cases,
            "distinct": len(tally.histories),
            "outcomes": dict(sorted(tally.outcomes.items())),
            "kills": {" / ".join(point): n for point, n in sorted(tally.points.items())},
            "violations": [f"{text}: {history}" for history, text in tally.violations],
            "core_s": round(tally.cpu_s, 1),
        }

    def by_row(self) -> dict[str, Entry]:
        """Counts by family and job. ``units``: how many are finished, ``of``: how many exist."""
        found: dict[str, Entry] = {}
        for name, entry in self.units.items():
            row = found.setdefault(entry["row"], {"units": 0, "of": 0, "cases": 0, "distinct": 0})
            row["units"] += name in self.rows
            for key, n in {**entry, **entry["outcomes"]}.items():
                if isinstance(n, int):
                    row[key] = row.get(key, 0) + n
            row["core_s"] = round(row.get("core_s", 0.0) + entry["core_s"], 1)
        for name, row in found.items():
            row["of"] = sum(each == name for each in self.rows.values())
        return dict(sorted(found.items()))

    def figures(self) -> dict[str, Any]:
        """Counts over all finished units."""
        entries = list(self.units.values())
        return {
            "units": len(self.rows),
            "units_done": sum(name in self.units for name in self.rows),
            "cases": int(_total(entries, "cases")),
            "histories": int(_total(entries, "distinct")),
            "violations": sum(len(e["violations"]) for e in entries),
            "kill_points": len(self.kills()),
            "core_min": round(_total(entries, "core_s") / 60, 1),
        }

    def kills(self) -> Counter[str]:
        """(Instruction / role / phase) of each killed agent -> how often."""
        out: Counter[str] = Counter()
        for entry in self.units.values():
            out.update(entry["kills"])
        return out

    def write(self) -> None:
        """Write the result and the progress file. SystemExit if the code has changed since."""
        if results_file.fingerprint(CODE) != self.code:
            raise SystemExit(f"the explored code has changed: run this again ({', '.join(CODE)})")
        progress = {"seed": self.seed, "units": self.units}
        results_file.save_progress(NAME, self.code, progress)
        violations = [text for entry in self.units.values() for text in entry["violations"]]
        samples = {
            "code": self.code,
            "seed": self.seed,
            "rows": self.by_row(),
            "kills": by_instruction(self.kills()),
            "violations": violations[:20],
        }
        results_file.write(NAME, samples=samples, figures=self.figures())


def by_instruction(kills: Counter[str]) -> dict[str, dict[str, int]]:
    """{instruction: {"role / phase": count}}."""
    found: dict[str, dict[str, int]] = {}
    for point, count in sorted(kills.items()):
        instruction, _, rest = point.partition(" / ")
        found.setdefault(instruction, {})[rest] = count
    return found


def resume(units: Iterable[Unit], seed: int) -> ExhaustiveRecord:
    """The record of an earlier run of the same code, with its seed; otherwise an empty one."""
    record = ExhaustiveRecord(seed, {str(unit): unit.row for unit in units})
    progress = results_file.load_progress(NAME, record.code)
    if progress is not None:
        record.seed, record.units = progress["seed"], progress["units"]
    return record


def _total(entries: Iterable[Entry], key: str) -> float:
    return sum(float(e[key]) for e in entries)
