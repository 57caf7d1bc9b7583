"""How near the market simulator's step times come to virtual time, and what they and pauses are.

    python benchmarks/sim_step_table.py

GPT-2 as fast as on p3.2xlarge nodes with 8 stages, and BERT-Large of Bamboo's paper with 12, on 2
to 4 pipelines, over networks of 10, 25 and 100 Gb/s with 0.5 ms. Agents, arbiter and planner run in
virtual time, and up to five agents are lost one after another at drawn seats; then a step is
compared with the table's for the seats that are empty. An error is the share by which the table's
step is off. ``worst_permutation``: by which share a step differs most if the pipelines of a pattern
change places, for which the table has one time. Then mean and worst step by empty seats with 4
pipelines of GPT-2, over those of the whole grid, and pauses, for each network.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

from bamboo_core.api.spec import RedundancyMode
from bamboo_sim.market.step_times.dry import Job, step_s
from bamboo_sim.market.step_times.models import GPT2_P3, PAPER, ModelProfile
from bamboo_sim.market.step_times.networks import Network
from bamboo_sim.market.step_times.pauses import Question, after_losses, pauses
from bamboo_sim.market.step_times.table import StepTable
from bamboo_sim.programs import arguments, results_file
from bamboo_sim.timed import parallel

NONE, REPLICA, EAGER = RedundancyMode.NONE, RedundancyMode.REPLICA, RedundancyMode.EAGER
GPT2 = replace(GPT2_P3, name="gpt2", microbatches=48)  # equal shares for 2, 3 and 4 pipelines
BERT = PAPER["bert_large"]
STAGES = {GPT2: 8, BERT: 12}
BANDWIDTHS = (10, 25, 100)
EMPTY = (1, 3, 7)
PERMUTED = ((0, 1), (0, 5), (1, 3), (2, 6))


@dataclass(frozen=True)
class Case:
    """A job that loses so many agents."""

    model: ModelProfile
    mode: RedundancyMode
    pipelines: int
    lost: int
    gbps: int

    @property
    def question(self) -> Question:
        """The job as it begins."""
        job = Job(self.model, self.mode, Network(self.gbps))
        return Question(job, self.pipelines, STAGES[self.model])

    @property
    def name(self) -> str:
        """All of it in words."""
        grid = f"{self.pipelines}x{STAGES[self.model]}"
        mode = self.mode.value.lower()
        return f"{self.model.name} {mode} {grid} lost {self.lost}, {self.gbps} Gb/s"


CASES = (
    *(
        Case(GPT2, REPLICA, pipelines, lost, gbps)
        for pipelines, lost, gbps in (
            (4, 0, 10), (4, 1, 10), (4, 3, 10), (3, 2, 10), (2, 1, 10),
            (4, 2, 25), (3, 0, 25), (3, 3, 25), (2, 2, 25),
            (4, 1, 100), (4, 3, 100), (3, 1, 100), (2, 0, 100), (2, 3, 100),
        )
    ),
    Case(GPT2, NONE, 4, 2, 10),
    Case(GPT2, EAGER, 3, 1, 25),
    Case(BERT, REPLICA, 2, 1, 10),
    Case(BERT, REPLICA, 3, 0, 25),
    Case(BERT, REPLICA, 2, 2, 100),
)  # fmt: skip


def compare(case: Case) -> dict[str, Any]:
    """One case in both ways. Seats are drawn by its name among those that do not make it fatal."""
    random, stages, asked = Random(case.name), STAGES[case.model], case.question
    seats = [(d, s) for d in range(case.pipelines) for s in range(stages)]
    columns = random.sample(range(stages), case.lost)
    lost = [random.choice([seat for seat in seats if seat[1] == s]) for s in columns]
    timed = after_losses(asked, lost)
    table_s = step_s(asked.job, timed.pipelines, stages, timed.holes)
    assert table_s is not None, f"{case.name} has trained"
    return {
        "empty": " ".join(f"{d},{s}" for d, s in sorted(timed.holes)),
        "timed_s": round(timed.step_s, 4),
        "table_s": round(table_s, 4),
        "error": round(table_s / timed.step_s - 1, 4),
    }


def permuted(gbps: int) -> float:
    """By which share the steps of equal patterns differ."""
    job = Job(GPT2_P3, REPLICA, Network(gbps))
    orders = list(permutations(range(4)))[::5]
    patterns = {frozenset((order[d], s) for d, s in PERMUTED) for order in orders}
    times = [step_s(job, 4, 8, holes) or 0.0 for holes in sorted(patterns, key=sorted)]
    return max(times) / min(times) - 1


def table(gbps: int, place: Path) -> dict[str, float]:
    """Steps of GPT-2 with four pipelines."""
    steps, name = StepTable(Job(GPT2_P3, REPLICA, Network(gbps)), place), f"{gbps}_gbps"
    whole = steps.whole_ms(4, 8)
    assert whole is not None, "GPT-2 fits"
    out = {f"whole_{name}_s": round(whole / 1000, 3)}
    for empty in EMPTY:
        found = steps.spread(4, 8, empty)
        assert found is not None, "patterns have copies"
        out[f"{empty}_empty_mean_{name}"] = round(found.mean_ms / whole, 3)
        out[f"{empty}_empty_worst_{name}"] = round(found.worst_ms / whole, 3)
    return out


def paused(gbps: int, place: Path) -> dict[str, float]:
    """Pauses of the same."""
    found = pauses(Question(Job(GPT2_P3, REPLICA, Network(gbps)), 4, 8), place)
    assert found is not None, "GPT-2 fits"
    return {f"{name}_{gbps}_gbps": round(ms, 1) for name, ms in found._asdict().items()}


def main() -> None:
    """Measure, write the file, print the figures."""
    arguments.none(__doc__)
    jobs: dict[str, Mapping[str, Callable[[], Any]]] = {
        x.name: {"case": partial(compare, x)} for x in CASES
    }
    jobs |= {f"{gbps}": {"permuted": partial(permuted, gbps)} for gbps in BANDWIDTHS}
    samples: dict[str, Any] = {}
    changes: list[float] = []
    for name, found in parallel.rows(jobs):
        print(name, *found.values(), flush=True)
        if "case" in found:
            samples[name] = found["case"]
        else:
            changes.append(found["permuted"])
    errors = {name: abs(x["error"]) for name, x in samples.items()}
    figures: dict[str, float] = {
        "states": len(errors),
        "worst_error": max(errors.values()),
        "mean_error": round(sum(errors.values()) / len(errors), 4),
        "worst_permutation": round(max(changes), 4),
    }
    with tempfile.TemporaryDirectory() as place:
        for gbps in BANDWIDTHS:
            figures |= table(gbps, Path(place)) | paused(gbps, Path(place))
    path = results_file.write("sim_step_table", samples=samples, figures=figures)
    print(*(f"{name}: {value}" for name, value in figures.items()), f"-> {path}", sep="\n")


if __name__ == "__main__":
    main()
