"""SIGKILL at every instruction: real processes, torch, tcp; not one bit may change.

    python benchmarks/kill_points.py [--slice 29] [--doubles 60] [--seed 1] [--only NAME]

The strikes of tests/fleet/survival.py: every instruction of one pipeline of four stages with
replicas, what commits of two pipelines of three without, the coordinator in its commit, and a
sample of two deaths in one step. Each before, after, and after the results were sent. A slice is
one job that is struck again and again, with a newcomer after each death; it is compared with a job
of as many steps without any. The result is written after each slice, so a run may be ended early.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import results_file
from tests.fleet.local import NurseryProcess
from tests.fleet.survival import (
    COMMITTING,
    COORDINATOR,
    ONE_PIPELINE,
    TWO_DEATHS,
    Ordeal,
    Points,
    survive,
)

NOTE = (
    "wished: places to die, those of the doubles sampled; points: those that were tried before the"
    " run was ended; survived: those in slices whose losses, samples,"
    " weights and optimizer state are equal, bit for bit, to the undisturbed run's, without a"
    " restore, and whose agents' logs replay through the core's state machines; deaths: processes"
    " killed in them; failures: slices that were not so; kinds: what the victims were at, by"
    " moment (counts in the samples). GPT of tests/fleet/jobs.py with dropout and clipping, 8"
    " micro-batches of 2"
)
Sample = dict[str, Any]


def slices(strikes: Sequence[Points], size: int) -> Iterator[Sequence[Points]]:
    """One after the other, the last one shorter."""
    for start in range(0, len(strikes), size):
        yield strikes[start : start + size]


def run(ordeal: Ordeal, strikes: Sequence[Points], nursery: NurseryProcess) -> Sample:
    """One slice. The files of one that fails stay; its sample says where."""
    folder = Path(tempfile.mkdtemp(prefix=f"kill-points-{ordeal.name}-"))
    start = time.monotonic()
    sample: Sample = {"ordeal": ordeal.name, "points": len(strikes), "survived": 0}
    try:
        survived = asyncio.run(survive(folder, nursery, ordeal, strikes))
    except Exception:  # whatever it is, the other slices are run
        sample["failure"] = f"{traceback.format_exc()[-4000:]}\nfiles: {folder}"
        print(sample["failure"], file=sys.stderr, flush=True)
    else:
        sample["survived"], sample["steps"] = len(survived.strikes), survived.steps
        sample["strikes"] = [list(strike.instructions) for strike in survived.strikes]
        shutil.rmtree(folder)
    sample["seconds"] = round(time.monotonic() - start, 1)
    return sample


def figures(samples: Sequence[Sample]) -> dict[str, Any]:
    """Counts over all slices."""
    deaths = [text for s in samples for strike in s.get("strikes", ()) for text in strike]
    return {
        "points": sum(s["points"] for s in samples),
        "survived": sum(s["survived"] for s in samples),
        "deaths": len(deaths),
        "steps": sum(s.get("steps", 0) for s in samples),
        "runs": len(samples),
        "failures": sum("failure" in s for s in samples),
        "seconds": round(sum(s["seconds"] for s in samples), 1),
        "kinds": len(kinds(samples)),
    }


def kinds(samples: Sequence[Sample]) -> dict[str, int]:
    """How many victims died before, after, or having sent the results of each kind of task."""
    deaths = (text for s in samples for strike in s.get("strikes", ()) for text in strike)
    return dict(sorted(Counter(map(_kind, deaths)).items()))


def _kind(death: str) -> str:
    """ "after REDUCE" of "after REDUCE[0:2] m0"."""
    moment, instruction = death.split(" ")[:2]
    return f"{moment} {instruction.partition('[')[0]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slice", type=int, default=29)
    parser.add_argument("--doubles", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="one ordeal's name, such as coordinator")
    given = parser.parse_args()
    doubles = random.Random(given.seed).sample(TWO_DEATHS.strikes, given.doubles)
    wanted = [
        (ordeal, part)
        for ordeal, strikes in (
            (COORDINATOR, COORDINATOR.strikes),
            (COMMITTING, COMMITTING.strikes),
            (TWO_DEATHS, doubles),
            (ONE_PIPELINE, ONE_PIPELINE.strikes),
        )
        if given.only in ("", ordeal.name)
        for part in slices(strikes, given.slice)
    ]
    samples, wished = list[Sample](), sum(len(part) for _, part in wanted)
    with tempfile.TemporaryDirectory() as folder:
        nursery = NurseryProcess(Path(folder) / "socket")
        nursery.start()
        for ordeal, part in wanted:
            samples.append(run(ordeal, part, nursery))
            brief = {k: v for k, v in samples[-1].items() if k not in ("strikes", "failure")}
            print(len(samples), "of", len(wanted), brief, flush=True)
            found = {"wished": wished, **figures(samples)}
            raw = {"kinds": kinds(samples), "runs": samples}
            results_file.write("kill_points", samples=raw, figures=found, note=NOTE)
        nursery.stop()
    return 1 if found["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
