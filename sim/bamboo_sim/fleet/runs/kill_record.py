"""The record of a run of benchmarks/kill_points.py: which faults were survived, and what is left.

It is written after every slice. A later run of the same code resumes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bamboo_sim.fleet.runs.campaign import COMMIT
from bamboo_sim.fleet.runs.scenarios import Points, Scenario
from bamboo_sim.programs import results_file

NAME = "kill_points"
CODE = ("agent", "core", "sim")
"""Folders whose code must be the same for all slices of one record."""

NOTE = (
    "NAME_scheduled: faults of the scenario; a fault is a seat, a moment and an instruction (for"
    " two_deaths: a pair of them, sampled). NAME_survived: distinct faults injected in slices whose"
    " losses, samples, weights and optimizer state equal the undisturbed run's bit for bit, without"
    " a restore, and whose agents' logs replay through the core's state machines. one_pipeline"
    " covers every instruction: each victim's instructions of a whole step are compared with the"
    " schedule. in_groups: deaths while a process group is made, and within a piece of at least 256"
    " KiB that goes over one. deaths: processes killed at their point; commits: coordinators"
    " killed at COMMIT; pairs: faults whose two victims both reached their point; failures: slices"
    " that did not survive; kinds: deaths by moment and instruction. Model: GPT of"
    " bamboo_sim/fleet/runs/jobs.py with dropout and clipping, 8 micro-batches of 2"
)


@dataclass(frozen=True)
class Slice:
    """One job that took some faults, one after the other."""

    scenario: str
    faults: list[list[str]]  # the points of each, as text
    seconds: float
    deaths: list[str] = field(default_factory=list)  # points at which a process was killed
    pairs: int = 0  # faults whose two victims both reached their point
    steps: int = 0
    failure: str = ""  # a traceback; "" if every bit is right


def as_text(faults: Sequence[Points]) -> list[list[str]]:
    """Each point as "pipeline.stage moment instruction"."""
    return [[str(point) for point in fault] for fault in faults]


@dataclass
class KillRecord:
    scheduled: Mapping[Scenario, Sequence[Points]]
    name: str = NAME
    code: str = field(default_factory=lambda: results_file.fingerprint(CODE))
    slices: list[Slice] = field(default_factory=list)

    def survived(self, scenario: str) -> set[tuple[str, ...]]:
        """Distinct faults of the scenario that were injected in slices without a failure."""
        good = [s for s in self.slices if s.scenario == scenario and not s.failure]
        injected = [(fault, set(s.deaths)) for s in good for fault in s.faults]
        return {tuple(fault) for fault, deaths in injected if not deaths.isdisjoint(fault)}

    def pending(self, size: int) -> list[tuple[Scenario, Sequence[Points]]]:
        """Faults that were not survived yet, in slices of ``size``."""
        found: list[tuple[Scenario, Sequence[Points]]] = []
        for scenario, faults in self.scheduled.items():
            done = self.survived(scenario.name)
            left = [fault for fault in faults if tuple(map(str, fault)) not in done]
            found += [(scenario, left[at : at + size]) for at in range(0, len(left), size)]
        return found

    def figures(self) -> dict[str, Any]:
        """Counts over all slices."""
        found: dict[str, Any] = {}
        for scenario, faults in self.scheduled.items():
            survived = self.survived(scenario.name)
            found[f"{scenario.name}_scheduled"] = len(faults)
            found[f"{scenario.name}_survived"] = len(
                survived.intersection(map(tuple, as_text(faults)))
            )
        deaths = [text for s in self.slices for text in s.deaths]
        return found | {
            "deaths": len(deaths),
            "commits": sum(text.endswith(COMMIT) for text in deaths),
            "pairs": sum(s.pairs for s in self.slices),
            "steps": sum(s.steps for s in self.slices),
            "runs": len(self.slices),
            "failures": sum(bool(s.failure) for s in self.slices),
            "seconds": round(sum(s.seconds for s in self.slices), 1),
            "kinds": len(self.kinds()),
        }

    def kinds(self) -> dict[str, int]:
        """Deaths by moment and instruction, such as "before UPDATE"."""
        deaths = (text for s in self.slices for text in s.deaths)
        return dict(sorted(Counter(" ".join(text.split(" ")[1:3]) for text in deaths).items()))

    def write(self) -> None:
        """Write the result and the progress file. SystemExit if the code has changed since."""
        if results_file.fingerprint(CODE) != self.code:
            raise SystemExit(
                f"the code in {', '.join(CODE)} has changed: the last slice is not counted;"
                " run this again"
            )
        results_file.save_progress(self.name, self.code, {"slices": list(map(asdict, self.slices))})
        samples = {
            "code": self.code,
            "kinds": self.kinds(),
            "runs": results_file.columns([summary(s) for s in self.slices]),
            "failures": [s.failure for s in self.slices if s.failure][:5],
        }
        results_file.write(self.name, samples=samples, figures=self.figures(), note=NOTE)


def summary(each: Slice) -> dict[str, Any]:
    """A slice in the result file: counts in the place of lists."""
    return {
        "scenario": each.scenario,
        "faults": len(each.faults),
        "deaths": len(each.deaths),
        "pairs": each.pairs,
        "steps": each.steps,
        "seconds": each.seconds,
    }


def resume(scheduled: Mapping[Scenario, Sequence[Points]], name: str = NAME) -> KillRecord:
    """The record of an earlier run of the same code; otherwise an empty one."""
    record = KillRecord(scheduled, name)
    progress = results_file.load_progress(name, record.code)
    if progress is not None:
        record.slices = [Slice(**each) for each in progress["slices"]]
    return record
