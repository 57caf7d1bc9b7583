"""Users' code that has trained wrong bits in silence: refused by name, or equal bits.

    python benchmarks/probe.py [--only NAME ...] [--list] [--before COMMIT] [--pairs 3]

Runs every case of bamboo_sim.user_code.cases in real processes. cases: how many; unequal: those
that did not come out as they must. setup_over_before: processor time of the set-up of a GPT of 98 M
parameters over that of an earlier commit, median of interleaved pairs, each in a fresh process.
With --only, some cases run, and no file is written. The exit status is 1 if a case came out wrong.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bamboo_sim.programs import arguments, results_file
from bamboo_sim.user_code.case import Case
from bamboo_sim.user_code.cases import BY_NAME, CASES
from bamboo_sim.user_code.judge import Verdict, judge

BEFORE = "8729827e"
"""The last commit whose set-up had no probe."""
PACKAGES = ("core", "agent", "sim")
MODEL = {"layers": 12, "width": 768, "heads": 12, "context": 64, "vocab": 8192}
SET_UP = f"""
import resource
import torch
from bamboo_agent.setup.determinism import make_deterministic
from bamboo_agent.setup.lazy_dynamo import defer_import
from bamboo_agent.worker import main
from bamboo_core.api.spec import *

spec = JobSpec(
    model=ModelSpec("bamboo_agent.models.gpt:build", {MODEL}),
    data=DataSpec("bamboo_agent.datasets.text:build", {{"context": {MODEL["context"]}}}),
    training=TrainingSpec(10, 32, 4, OptimizerSpec("torch.optim:AdamW", {{"lr": 1e-3}})),
    pipelines=PipelinesSpec(1, 1),
    worker=WorkerSpec("none"),
    seed=1,
)
make_deterministic()
defer_import()

def spent():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime

begun = spent()
main.build_setup("a", spec, torch.device("cpu"))
print(spent() - begun)
"""
NOTE = (
    "samples: cases that came out wrong; processor seconds of the set-up (now, before);"
    f" GPT {MODEL}, micro-batches of 4, one thread; goals 0 and 1.5"
)


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """The files of another commit, for as long as they are needed."""
    git = ["git", "-C", str(results_file.ROOT), "worktree"]
    with tempfile.TemporaryDirectory(prefix="bamboo-before-") as folder:
        path = Path(folder) / "tree"
        subprocess.run([*git, "add", "--detach", str(path), commit], check=True)
        try:
            yield path
        finally:
            subprocess.run([*git, "remove", "--force", str(path)], check=True)


def set_up_s(tree: Path) -> float:
    """Processor time of the set-up by the code in ``tree``, after all imports, in seconds."""
    folders = [str(tree / package) for package in PACKAGES]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-P", "-c", SET_UP]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def pairs_with(commit: str, count: int) -> list[tuple[float, float]]:
    """Seconds of this code and of the commit, in turns."""
    pairs = []
    with checkout(commit) as before:
        set_up_s(before)  # files are in memory afterwards
        for _ in range(count):
            pairs.append((set_up_s(results_file.ROOT), set_up_s(before)))
            print(f"set-up: {pairs[-1][0]:.2f} s, before {pairs[-1][1]:.2f} s", flush=True)
    return pairs


def judged(cases: Sequence[Case]) -> list[Verdict]:
    """Run the cases, one after the other, with a line for each."""
    verdicts = []
    for number, case in enumerate(cases, start=1):
        verdicts.append(found := judge(case))
        mark = "as expected" if found.is_expected else f"NOT {case.expected}"
        print(
            f"{number} of {len(cases)}: {case.name} {found}; {mark} ({found.seconds} s)", flush=True
        )
    return verdicts


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--only", nargs="+", default=[], choices=[*BY_NAME], metavar="NAME")
    parser.add_argument("--list", action="store_true", help="print the cases")
    parser.add_argument("--before", default=BEFORE, help="commit whose set-up is compared")
    parser.add_argument("--pairs", type=arguments.at_least(2), default=3)
    given = parser.parse_args()
    if given.list:
        for case in CASES:
            print(f"{case.name:30} {case.source:30} {case.expected}")
        return 0
    verdicts = judged([BY_NAME[name] for name in given.only] or CASES)
    wrong = [verdict for verdict in verdicts if not verdict.is_expected]
    if not given.only:
        pairs = pairs_with(given.before, given.pairs)
        ratio = results_file.ratios(pairs)
        path = results_file.write(
            "probe",
            samples={
                "unequal": {verdict.case.name: str(verdict)[:120] for verdict in wrong},
                "set_up": [(round(a, 3), round(b, 3)) for a, b in pairs],
            },
            figures={
                "cases": len(verdicts),
                "unequal": len(wrong),
                "setup_over_before": ratio["median"],
            },
            note=NOTE,
        )
        print(path)
    print(f"{len(wrong)} of {len(verdicts)} came out wrong: {[x.case.name for x in wrong]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
