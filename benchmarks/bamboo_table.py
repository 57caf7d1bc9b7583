"""Bamboo's comparison of lazy and eager redundancy, with this project's means, in virtual time.

    python benchmarks/bamboo_table.py

BERT-Large and ResNet-152 on the paper's grid (D=4, P=12), on declared V100s in three zones over
10 Gb/s. lazy: mode Replica, forwards are computed after a loss. eager: mode Eager, in the waits
before it. An overhead is the steady step's time over that of mode None, less 1. The pause is that
of the loss of a middle stage in the middle of a step; 100gbps: over that network.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bamboo_core.api.spec import RedundancyMode
from bamboo_sim.programs import arguments, results_file
from bamboo_sim.timed import parallel
from bamboo_sim.timed.hardware import placed
from bamboo_sim.timed.measured import pause, undisturbed
from bamboo_sim.timed.shapes import BERT, RESNET

GIGABITS, FAST = 10, 100
SHAPES = {"bert": BERT, "resnet": RESNET}
MODES = {
    "none": RedundancyMode.NONE, "lazy": RedundancyMode.REPLICA, "eager": RedundancyMode.EAGER,
}  # fmt: skip


def step(model: str, mode: str) -> dict[str, Any]:
    """Step and memory."""
    found = undisturbed(placed(SHAPES[model], MODES[mode], gigabits=GIGABITS))
    return {f"{model}_{mode}_step_s": found.step_s, f"{model}_{mode}_bytes": found.device_bytes}


def loss(model: str, mode: str, gigabits: int) -> dict[str, Any]:
    """The pause."""
    shape = SHAPES[model]
    job = placed(shape, MODES[mode], gigabits=gigabits)
    lost = pause(job, pipeline=shape.pipelines // 2, stage=shape.stages // 2, fraction=0.5)
    return {f"{model}_{pause_of(mode, gigabits)}": round(lost.pause_s, 4)}


def pause_of(mode: str, gigabits: int) -> str:
    """The name of its figure."""
    return f"{mode}_pause_s" if gigabits == GIGABITS else f"{gigabits}gbps_{mode}_pause_s"


def jobs() -> dict[str, dict[str, Callable[[], dict[str, Any]]]]:
    """For each model: steps in all modes, and losses in the modes that survive them."""
    return {
        model: {f"{mode} step": partial(step, model, mode) for mode in MODES}
        | {
            f"{mode} loss at {gigabits}": partial(loss, model, mode, gigabits)
            for mode in ("lazy", "eager")
            for gigabits in (GIGABITS, FAST)
        }
        for model in SHAPES
    }


def figures(found: dict[str, Any]) -> dict[str, float]:
    """Ratios to mode None, and of the pauses."""
    out: dict[str, float] = {}
    for model in SHAPES:
        out[f"{model}_step_s"] = round(found[f"{model}_none_step_s"], 4)
        for mode in ("lazy", "eager"):
            ratios = [
                found[f"{model}_{mode}_{x}"] / found[f"{model}_none_{x}"]
                for x in ("step_s", "bytes")
            ]
            out[f"{model}_{mode}_overhead"] = round(ratios[0] - 1, 4)
            out[f"{model}_{mode}_memory_over_none"] = round(ratios[1], 3)
            for name in (pause_of(mode, GIGABITS), pause_of(mode, FAST)):
                out[f"{model}_{name}"] = found[f"{model}_{name}"]
        shorter = 1 - found[f"{model}_eager_pause_s"] / found[f"{model}_lazy_pause_s"]
        out[f"{model}_eager_pause_shorter_by"] = round(shorter, 4)
    return out


def main() -> None:
    """Measure, write the file, print the figures."""
    arguments.none(__doc__)
    samples: dict[str, Any] = {}
    for model, ways in parallel.rows(jobs()):
        found = {name: value for way in ways.values() for name, value in way.items()}
        print(model, found, flush=True)
        samples |= found
    path = results_file.write("bamboo_table", samples=samples, figures=figures(samples))
    print(*(f"{name}: {x}" for name, x in figures(samples).items()), f"-> {path}", sep="\n")


if __name__ == "__main__":
    main()
