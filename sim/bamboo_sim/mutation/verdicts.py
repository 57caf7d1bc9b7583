"""What is known about mutants: kept in the user's cache, so that a run can be resumed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from bamboo_sim.mutation.coverage_map import CoverageMap
from bamboo_sim.programs import results_file

JUDGES = ("core/bamboo_core", "tests/core", "sim/bamboo_sim/protocol")
"""A verdict holds for these sources as they are."""


@dataclass(frozen=True)
class Verdict:
    killed_by: str  # a test, "exploration", "import", "time-out: ...", "crash: ..."; "": survived
    seconds: float
    code: str  # fingerprint of JUDGES

    @property
    def kind(self) -> str:
        """One of survived, tests, exploration, import, time-out, crash."""
        if not self.killed_by:
            return "survived"
        kind = self.killed_by.partition(":")[0]
        return kind if kind in ("exploration", "import", "time-out", "crash") else "tests"


def code() -> str:
    """Fingerprint of all that decides about mutants."""
    return results_file.fingerprint(JUDGES)


class Verdicts:
    """Id of a mutant -> newest verdict."""

    def __init__(self, name: str = "mutation") -> None:
        self._name = name
        saved = results_file.load_progress(name, "verdicts") or {}
        self._all = {key: Verdict(*values) for key, values in saved.items()}

    def valid(self, mutant: str, code: str) -> Verdict | None:
        """The verdict, if it was given about these sources."""
        verdict = self._all.get(mutant)
        return verdict if verdict and verdict.code == code else None

    def newest(self, mutant: str) -> Verdict | None:
        """The verdict about these or earlier sources."""
        return self._all.get(mutant)

    def add(self, mutant: str, verdict: Verdict) -> None:
        """Keep a verdict, on disk as well."""
        self._all[mutant] = verdict
        content = {k: [v.killed_by, v.seconds, v.code] for k, v in self._all.items()}
        results_file.save_progress(self._name, "verdicts", content)


def load_map(code: str) -> CoverageMap | None:
    """The map that was measured with these sources."""
    saved = results_file.load_progress("mutation-map", code)
    if saved is None:
        return None
    functions = {
        module: [(first, last, tests) for first, last, tests in bodies]
        for module, bodies in saved["functions"].items()
    }
    return CoverageMap(saved["durations"], functions)


def save_map(code: str, coverage: CoverageMap) -> None:
    """Keep a map for later runs with the same sources, in place of older ones."""
    for old in results_file.PROGRESS.glob("mutation-map-*.json"):
        old.unlink()
    results_file.save_progress("mutation-map", code, json.loads(json.dumps(asdict(coverage))))
