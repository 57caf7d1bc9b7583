"""Which mode of redundancy the cost model takes, and from which hazard on.

    python benchmarks/protection_choice.py [--page]

Equal stages of 4 transformer blocks on 1,024 tokens, on a V100 of 32 GiB with 4-byte numbers, M = 4
P micro-batches for each pipeline, a checkpoint every 100 steps, the default assumptions of ``bamboo
plan``. For each number of pipelines and stages, size of a stage and network: the losses per agent-
hour from which Replica and Eager are taken (none: never). Afterwards, and with --page only,
docs/choosing-protection.md gets its tables and plots from the result files that exist.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import protection_page

from bamboo_core.api.spec import (
    CheckpointSpec,
    DataSpec,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    PipelinesSpec,
    TrainingSpec,
    TransportSpec,
    WorkerSpec,
)
from bamboo_core.protection.choice import EAGER, MODES, REPLICA, Facts, choose
from bamboo_core.protection.facts import Seen, gather
from bamboo_core.protection.hazard import PRIOR
from bamboo_core.protection.shapes import Transformer, costs
from bamboo_sim.programs import results_file
from bamboo_sim.timed.hardware import V100_32, V100_SPEED

PIPELINES, STAGES, WIDTHS, BANDWIDTHS = (1, 2, 4), (4, 8, 12), (512, 1024, 2048), (10, 25, 100)
LEAST, MOST = 1e-4, 20.0  # losses per agent-hour; beyond, no agent is replaced in time
_LOOKS, _HALVINGS = 12, 7


def job(pipelines: int, stages: int, gigabits: float) -> JobSpec:
    return JobSpec(
        model=ModelSpec("a:b"),
        data=DataSpec("a:b"),
        training=TrainingSpec(10_000, 4 * stages * pipelines, 1, OptimizerSpec("a:b")),
        pipelines=PipelinesSpec(pipelines, stages),
        worker=WorkerSpec("a"),
        checkpoint=CheckpointSpec("file:///a", every_steps=100),
        transport=TransportSpec(bandwidth_gbps=gigabits),
    )


def facts(pipelines: int, stages: int, width: int, gigabits: float) -> Facts:
    """Facts without a hazard."""
    blocks = Transformer(4 * stages, width=width, context=1024, vocabulary=0)
    return gather(
        job(pipelines, stages, gigabits),
        costs(blocks, samples=1, speed=V100_SPEED),
        Seen(0.0, memory_bytes=V100_32.memory_bytes),
        pipelines=pipelines,
    )


def level(known: Facts, hazard: float) -> int:
    """0: None, 1: Replica, 2: Eager."""
    return MODES.index(choose(replace(known, hazard_per_agent_hour=hazard)).mode)


def taken_from(known: Facts, least: int) -> float | None:
    """The least hazard from which at least so much redundancy is taken; None: never. Of more losses
    it may be taken no longer: then whole pipelines are missing, and copies save nothing."""
    ratio = (MOST / LEAST) ** (1 / _LOOKS)
    hazards = [LEAST * ratio**i for i in range(_LOOKS + 1)]
    found = next((i for i, x in enumerate(hazards) if level(known, x) >= least), None)
    if not found:
        return None if found is None else LEAST
    low, high = hazards[found - 1], hazards[found]
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if level(known, middle) >= least else (middle, high)
    return float(f"{high:.2g}")


def row(pipelines: int, stages: int, width: int, gigabits: float) -> dict[str, Any]:
    known = facts(pipelines, stages, width, gigabits)
    verdict = choose(known)
    return {
        "pipelines": pipelines,
        "stages": stages,
        "stage_mb": round(known.parameter_bytes / 1e6),
        "gbps": gigabits,
        "step_s": round(known.step_s, 3),
        "replica_over_none": round(verdict.of(REPLICA).overhead, 4),
        "eager_over_none": round(verdict.of(EAGER).overhead, 4),
        "replica_from": taken_from(known, MODES.index(REPLICA)),
        "eager_from": taken_from(known, MODES.index(EAGER)),
        "usual": MODES[level(known, PRIOR)].value,
    }


def measure() -> None:
    """Write the result file."""
    rows = [row(*case) for case in product(PIPELINES, STAGES, WIDTHS, BANDWIDTHS)]
    usual = Counter(found["usual"] for found in rows)
    figures: dict[str, float] = {"cases": len(rows)}
    figures |= {f"{mode.value.lower()}_at_usual_hazard": usual[mode.value] for mode in MODES}
    figures["eager_at_some_hazard"] = sum(found["eager_from"] is not None for found in rows)
    note = f"usual hazard: {PRIOR} losses per agent-hour; null: never"
    path = results_file.write(
        "protection_choice", samples=results_file.columns(rows), figures=figures, note=note
    )
    print(*(f"{name}: {value}" for name, value in figures.items()), f"-> {path}", sep="\n")


def main() -> None:
    """Measure and fill the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", action="store_true", help="only fill the page")
    if not parser.parse_args().page:
        measure()
    protection_page.write()


if __name__ == "__main__":
    main()
