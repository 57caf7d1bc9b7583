"""SIGKILL at every instruction: real processes, torch, tcp; not one bit may change.

    python benchmarks/kill_points.py [--only NAME] [--minutes M] [--slice 29] [--doubles 60]

The faults of sim/bamboo_sim/protocol/fleet/survival.py: every instruction of one pipeline of four
stages with replicas, what commits of two pipelines of three without, and a sample of two deaths in
one step. Each before, after, and after the results were sent. A slice is one job that is hit
again and again, with a newcomer after each death; it is compared with a job of as many steps
without any. The result is written after each slice. A run goes on where the last one of the same
code was ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bamboo_sim import arguments, results_file
from bamboo_sim.protocol.fleet.campaign import COMMIT
from bamboo_sim.protocol.fleet.local_fleet import ForkServerProcess
from bamboo_sim.protocol.fleet.scenarios import (
    COMMITTING,
    ONE_PIPELINE,
    TWO_DEATHS,
    Points,
    Scenario,
    run_scenario,
)

NAME = "kill_points"
CODE = ("agent", "core", "sim")
"""What must be the same in all slices of one result."""

NOTE = (
    "NAME_wished: faults of this scenario, that is (seat, moment, instruction), of two_deaths a"
    " sample of pairs; NAME_survived: the different ones of them in slices whose losses, samples,"
    " weights and optimizer state are equal, bit for bit, to the undisturbed run's, without a"
    " restore, and whose agents' logs replay through the core's state machines. That one_pipeline"
    " options every instruction is compared with what each victim ran in a whole step. deaths:"
    " processes killed at their points; commits: those of coordinators in COMMIT; pairs: faults in"
    " which both got to their points; failures: slices that were not so; kinds: what the victims"
    " were at, by moment (counts in the samples). GPT of bamboo_sim/protocol/fleet/jobs.py with"
    " dropout and"
    " clipping, 8 micro-batches of 2"
)
Sample = dict[str, Any]


def written(faults: Sequence[Points]) -> list[list[str]]:
    """Strikes as they stand in the samples: "pipeline.stage moment instruction"."""
    return [[str(point) for point in fault] for fault in faults]


def earlier(begun: str) -> list[Sample]:
    """The slices of an earlier run of the same code; begun: its hash."""
    path = results_file.RESULTS / f"{NAME}.json"
    samples = json.loads(path.read_text(encoding="utf-8"))["samples"] if path.exists() else {}
    return list(samples["runs"]) if samples.get("code") == begun else []


def survived(samples: Sequence[Sample], scenario: str) -> set[tuple[str, ...]]:
    """The different faults of an scenario that came, in slices in which no bit has changed."""
    good = [s for s in samples if s["scenario"] == scenario and "failure" not in s]
    came = [(fault, set(s["deaths"])) for s in good for fault in s["faults"]]
    return {tuple(fault) for fault, deaths in came if not deaths.isdisjoint(fault)}


def run(scenario: Scenario, faults: Sequence[Points], forkserver: ForkServerProcess) -> Sample:
    """One slice. The files of one that fails stay; its sample says where."""
    folder = Path(tempfile.mkdtemp(prefix=f"kill-points-{scenario.name}-"))
    start = time.monotonic()
    sample: Sample = {"scenario": scenario.name, "faults": written(faults)}
    try:
        found = asyncio.run(run_scenario(folder, forkserver, scenario, faults))
    except Exception:  # whatever it is, the other slices are run
        sample["failure"] = f"{traceback.format_exc()[-4000:]}\nfiles: {folder}"
        print(sample["failure"], file=sys.stderr, flush=True)
    else:
        sample["deaths"] = [str(point) for fault in found.faults for point in fault.points]
        sample["pairs"] = sum(len(fault.points) > 1 for fault in found.faults)
        sample["steps"] = found.steps
        shutil.rmtree(folder)
    sample["seconds"] = round(time.monotonic() - start, 1)
    return sample


def figures(samples: Sequence[Sample], wished: Mapping[str, Sequence[Points]]) -> dict[str, Any]:
    """Counts over all slices."""
    done = {name: survived(samples, name) for name in wished}
    found: dict[str, Any] = {}
    for name, faults in wished.items():
        found[f"{name}_wished"] = len(faults)
        found[f"{name}_survived"] = len(done[name].intersection(map(tuple, written(faults))))
    deaths = [text for s in samples for text in s.get("deaths", ())]
    return found | {
        "deaths": len(deaths),
        "commits": sum(text.endswith(COMMIT) for text in deaths),
        "pairs": sum(s.get("pairs", 0) for s in samples),
        "steps": sum(s.get("steps", 0) for s in samples),
        "runs": len(samples),
        "failures": sum("failure" in s for s in samples),
        "seconds": round(sum(s["seconds"] for s in samples), 1),
        "kinds": len(kinds(samples)),
    }


def kinds(samples: Sequence[Sample]) -> dict[str, int]:
    """How many victims died before, after, or having sent the results of each kind of task."""
    deaths = (text for s in samples for text in s.get("deaths", ()))
    return dict(sorted(Counter(" ".join(text.split(" ")[1:3]) for text in deaths).items()))


def pending(
    samples: Sequence[Sample], wished: Mapping[Scenario, Sequence[Points]], size: int
) -> list[tuple[Scenario, Sequence[Points]]]:
    """Slices of the faults that no good slice has."""
    found: list[tuple[Scenario, Sequence[Points]]] = []
    for scenario, faults in wished.items():
        done = survived(samples, scenario.name)
        left = [s for s in faults if tuple(map(str, s)) not in done]
        found += [(scenario, left[at : at + size]) for at in range(0, len(left), size)]
    return found


def write(
    begun: str, samples: Sequence[Sample], wished: Mapping[Scenario, Sequence[Points]]
) -> dict[str, Any]:
    """Write the result of all slices up to now; its figures. SystemExit if the code is another."""
    if results_file.fingerprint(CODE) != begun:
        sys.exit(f"{', '.join(CODE)} have changed: the last slice is not counted; run this again")
    found = figures(samples, {scenario.name: faults for scenario, faults in wished.items()})
    raw = {"code": begun, "kinds": kinds(samples), "runs": samples}
    results_file.write(NAME, samples=raw, figures=found, note=NOTE)
    return found


NAMES = tuple(scenario.name for scenario in (COMMITTING, ONE_PIPELINE, TWO_DEATHS))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slice", type=arguments.at_least(1), default=29)
    parser.add_argument("--doubles", type=arguments.at_least(0), default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", choices=["", *NAMES], help="one scenario")
    parser.add_argument(
        "--minutes", type=arguments.amount, default=1e6, help="begin no slice after so many"
    )
    given = parser.parse_args()
    doubles = random.Random(given.seed).sample(
        TWO_DEATHS.faults, min(given.doubles, len(TWO_DEATHS.faults))
    )
    wished = {
        COMMITTING: COMMITTING.faults,
        ONE_PIPELINE: ONE_PIPELINE.faults,
        TWO_DEATHS: doubles,
    }
    begun = results_file.fingerprint(CODE)
    samples = earlier(begun)
    found = figures(samples, {scenario.name: faults for scenario, faults in wished.items()})
    with tempfile.TemporaryDirectory() as folder:
        forkserver = ForkServerProcess(Path(folder) / "socket")
        forkserver.start()
        until = time.monotonic() + 60 * given.minutes
        slices = pending(samples, wished, given.slice)
        slices = [each for each in slices if given.only in ("", each[0].name)]
        for number, (scenario, part) in enumerate(slices, start=1):
            if time.monotonic() > until:
                break
            samples.append(run(scenario, part, forkserver))
            found = write(begun, samples, wished)
            state = "failed" if "failure" in samples[-1] else "survived"
            print(f"{number} of {len(slices)}: {len(part)} of {scenario.name} {state}", flush=True)
        forkserver.stop()
    return 1 if found["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
