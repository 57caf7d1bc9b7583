"""What forwards computed ahead save after a loss, and when that pays, in virtual time.

    python benchmarks/frc_value.py

Equal stages of 4 transformer blocks (slices of a quarter of a forward) on declared V100s of 16 GiB,
which keep forwards ahead on the device, in three zones over 100 Gb/s; M = 2 P micro-batches for
each pipeline. Beside them one grid over 10 Gb/s, and BERT-Large in one pipeline, whose longest
stage leaves the other agents room for nearly all forwards. The agents of the first, the middle and
the last stage are lost at a quarter, a half and three quarters of a step. A pause is how much
longer that step takes than an undisturbed one of the same mode, with detection and decision. A slot
is the forward of a stage (mean of all stages). Losses per agent-hour above ``hazard`` make Eager
the faster mode; -1: no rate does, since Eager saves nothing.
"""

from __future__ import annotations

import gc
import os
import pickle
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from bamboo_core.api.spec import RedundancyMode
from bamboo_sim.programs import arguments, results_file
from bamboo_sim.timed import parallel
from bamboo_sim.timed.declared import TimedJob
from bamboo_sim.timed.hardware import DELAYS, V100_SPEED, placed
from bamboo_sim.timed.measured import Pause, lose, warm
from bamboo_sim.timed.shapes import BERT, Shape, uniform

REPLICA, EAGER = RedundancyMode.REPLICA, RedundancyMode.EAGER
FRACTIONS = (0.25, 0.5, 0.75)
FIXED_S = DELAYS.detection_s + 3 * DELAYS.message_s + DELAYS.persist_s + DELAYS.decision_s
EQUAL = [(1, 4), (4, 4), (1, 6), (1, 8), (4, 8), (1, 12), (4, 12)]
GRIDS = {f"d{d}_p{p}": (uniform(d, p, 2 * p), 100) for d, p in EQUAL} | {
    "10gbps_d1_p8": (uniform(1, 8, 16), 10),
    "bert_d1_p12": (replace(BERT, pipelines=1), 100),
}


def losses(job: TimedJob) -> list[Pause]:
    """One loss for each stage and fraction, each in a copy of this process."""
    fleet, stages = warm(job), (0, job.stages // 2, job.stages - 1)
    gc.freeze()  # for the copies
    found = [
        in_a_copy(partial(lose, fleet, pipeline=job.pipelines // 2, stage=stage, fraction=fraction))
        for stage in stages
        for fraction in FRACTIONS
    ]
    gc.unfreeze()
    return found


def timed(grid: str, mode: RedundancyMode) -> TimedJob:
    shape, gigabits = GRIDS[grid]
    return placed(shape, mode, gigabits=gigabits)


def in_a_copy(call: Callable[[], Pause]) -> Pause:
    """The result of a call in a forked process; EOFError if it fails there."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with os.fdopen(writing, "wb") as file:
                pickle.dump(call(), file)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        found: Pause = pickle.load(file)
    os.waitpid(child, 0)
    return found


def compare(shape: Shape, found: dict[RedundancyMode, list[Pause]]) -> dict[str, Any]:
    """Both modes, and at which hazard their times are equal."""
    slot_s = sum(x.forward_s for x in shape.layers(V100_SPEED)) / shape.stages
    mean = {mode: statistics.mean(x.pause_s for x in runs) for mode, runs in found.items()}
    replica, eager = (found[mode][0].step_s for mode in (REPLICA, EAGER))
    saved_s, extra_s = mean[REPLICA] - mean[EAGER], eager - replica
    agent_hours = replica / 3600 * shape.pipelines * shape.stages  # of one step
    return {
        "slot_s": round(slot_s, 4),
        "step_s": round(replica, 4),
        "eager_over_replica": round(eager / replica, 4),
        "replica_pause_s": round(mean[REPLICA], 4),
        "eager_pause_s": round(mean[EAGER], 4),
        "replica_slots": round((mean[REPLICA] - FIXED_S) / slot_s, 2),
        "eager_slots": round((mean[EAGER] - FIXED_S) / slot_s, 2),
        "shorter_by": round(saved_s / mean[REPLICA], 4),
        "hazard": round(max(0.0, extra_s) / saved_s / agent_hours, 2) if saved_s > 0 else -1,
        "replica_each_s": [round(x.pause_s, 3) for x in found[REPLICA]],
        "eager_each_s": [round(x.pause_s, 3) for x in found[EAGER]],
    }


def main() -> None:
    """Measure, write the file, print the figures."""
    arguments.none(__doc__)
    jobs = {
        grid: {mode: partial(losses, timed(grid, mode)) for mode in (REPLICA, EAGER)}
        for grid in GRIDS
    }
    samples: dict[str, dict[str, Any]] = {}
    for grid, found in parallel.rows(jobs):
        samples[grid] = compare(GRIDS[grid][0], found)
        print(grid, samples[grid], flush=True)
    reached, note = figures(samples), f"declared delays {FIXED_S:.3f} s of each pause"
    path = results_file.write("frc_value", samples=samples, figures=reached, note=note)
    print(*(f"{name}: {value}" for name, value in reached.items()), f"-> {path}", sep="\n")


def figures(samples: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Every grid's figures, and the mean share that Eager cuts off a pause with equal stages."""
    out: dict[str, float] = {}
    names = ("replica_slots", "eager_slots", "replica_pause_s", "eager_pause_s", "shorter_by")
    for grid, found in samples.items():
        out |= {f"{grid}_{name}": found[name] for name in (*names, "eager_over_replica", "hazard")}
    for d in (1, 4):
        shares = [x["shorter_by"] for grid, x in samples.items() if grid.startswith(f"d{d}_")]
        out[f"d{d}_shorter_by_mean"] = round(statistics.mean(shares), 4)
    return out


if __name__ == "__main__":
    main()
