"""The record of a run of benchmarks/against_peers.py. A later run of the same code resumes it."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from bamboo_sim.programs import results_file

from .gaps import Cost
from .variants import VARIANTS

NAME = "against_peers"
CODE = ("agent", "core", "sim", "benchmarks/against_peers.py", "benchmarks/peers")
"""What must be the same for all losses of one record."""
OURS = "bamboo"
SUMS = ("redone_steps", "discarded_steps", "skipped_samples")
NOTE = (
    "SIGKILL of one of 8 workers that train the same GPT (benchmarks/peers/workload.py), one thread"
    " each; a fresh start for every loss, one system at a time, in random order. NAME_delay_s:"
    " median over losses of the longest time between commits of new steps, less a normal step;"
    " after the loss and, where the newcomer comes after the pause, before it is started."
    " NAME_joining_s: the same from then on; NAME_quiet_s: the same over 8 steps before the loss,"
    " which is noise. NAME_full_s: from the loss to a commit with 8 workers; for a newcomer after"
    " the pause it contains 3 steps of waiting. redone_steps: committed steps that were trained"
    " again; discarded_steps: computed and thrown away by a survivor; skipped_samples: missing from"
    " committed steps until full strength. over_NAME: delay_s of NAME over that of bamboo."
    " Not comparable: bamboo has 2 pipelines of 4 stages, replicas and equal bits; the others but"
    " pipeline_checkpoint keep the whole model in each worker, so their redundancy is free, and"
    " torchft's batch shrinks; torchrun's launcher survives and sees the death of a child, as on"
    " one node; bamboo and torchft see closed sockets"
)


@dataclass
class Record:
    """costs: name of a variant -> what each loss cost; failures: texts by name of a variant."""

    code: str = field(default_factory=lambda: results_file.fingerprint(CODE))
    costs: dict[str, list[Cost]] = field(default_factory=dict)
    failures: list[tuple[str, str]] = field(default_factory=list)

    def done(self) -> dict[str, int]:
        """Losses so far by name of the variant, survived or not."""
        failed = [name for name, _ in self.failures]
        return {v.name: len(self.costs.get(v.name, ())) + failed.count(v.name) for v in VARIANTS}

    def add(self, name: str, found: Cost | str) -> None:
        """Count a loss: its cost, or the text of a failure."""
        if isinstance(found, str):
            self.failures.append((name, found))
        else:
            self.costs.setdefault(name, []).append(found)

    def figures(self) -> dict[str, Any]:
        """Medians by variant, and ratios, as far as they are known."""
        found: dict[str, Any] = {}
        for variant in VARIANTS:
            found |= _figures(variant.name, self.costs.get(variant.name, []))
        ours = found[f"{OURS}_delay_s"]
        for variant in VARIANTS:
            theirs = found[f"{variant.name}_delay_s"]
            if variant.name != OURS:
                both = ours is not None and ours > 0 and theirs is not None
                found[f"over_{variant.name}"] = round(theirs / ours, 2) if both else None
        known = {name: value for name, value in found.items() if value is not None}
        return known | {"failures": len(self.failures)}

    def save(self) -> None:
        """Write the result and the progress file. SystemExit if the code has changed since."""
        if results_file.fingerprint(CODE) != self.code:
            raise SystemExit(
                f"the code in {', '.join(CODE)} has changed: the last loss is not counted; run"
                " this again"
            )
        costs = {name: [asdict(cost) for cost in costs] for name, costs in self.costs.items()}
        content = {"costs": costs, "failures": self.failures}
        results_file.save_progress(NAME, self.code, content)
        samples = {name: results_file.columns(map_rounded(rows)) for name, rows in costs.items()}
        failures = [[name, text[-500:]] for name, text in self.failures[:5]]
        results_file.write(
            NAME, samples={**samples, "failures": failures}, figures=self.figures(), note=NOTE
        )


def resume() -> Record:
    """The record of an earlier run of the same code; otherwise an empty one."""
    record = Record()
    progress = results_file.load_progress(NAME, record.code)
    if progress is not None:
        record.failures = [(name, text) for name, text in progress["failures"]]
        for name, rows in progress["costs"].items():
            record.costs[name] = [Cost(**row) for row in rows]
    return record


def map_rounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with times to 0.1 ms."""
    return [
        {key: round(x, 4) if isinstance(x, float) else x for key, x in row.items()} for row in rows
    ]


def _figures(name: str, costs: list[Cost]) -> dict[str, Any]:
    found: dict[str, Any] = {f"{name}_kills": len(costs)}
    for key in ("step_s", "delay_s", "quiet_s", "joining_s", "full_s"):
        values = [x for cost in costs if (x := getattr(cost, key)) is not None]
        found[f"{name}_{key}"] = round(statistics.median(values), 4) if values else None
    delays = [cost.delay_s for cost in costs]
    found[f"{name}_delay_min_s"] = round(min(delays), 4) if delays else None
    found[f"{name}_delay_max_s"] = round(max(delays), 4) if delays else None
    for key in SUMS:
        values = [getattr(cost, key) for cost in costs]
        found[f"{name}_{key}"] = statistics.median(values) if values else None
    return found
