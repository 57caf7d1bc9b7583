"""What protection costs an undisturbed step, in virtual time: production programs and executors.

    python benchmarks/redundancy_overhead.py

The models of the Bamboo paper on its grids, and equal stages on D=4 P=8 M=32, on declared V100s
with 4-byte numbers in three zones, over 10, 25 and 100 Gb/s (the paper's: 10 and 100). A ratio is
the steady step's time in a mode over that of mode None. Memory is what the fullest device holds.
Where forwards computed ahead and replicas are kept is the planner's decision, which depends on the
size of the device. V100s have 16 GiB, those of the paper's models 32 GiB, so that every mode fits.
The same jobs on smaller devices show what host memory costs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from bamboo_core.api.spec import RedundancyMode
from bamboo_sim.programs import arguments, results_file
from bamboo_sim.timed import parallel, shapes
from bamboo_sim.timed.declared import Device
from bamboo_sim.timed.hardware import (
    A100,
    A100_SPEED,
    V100,
    V100_32,
    V100_SPEED,
    of_size,
    placed,
)
from bamboo_sim.timed.measured import Undisturbed, undisturbed
from bamboo_sim.timed.sizes import AHEAD

BANDWIDTHS = (100, 10, 25)
PLAIN = shapes.uniform(4, 8, 32)
NONE, REPLICA, EAGER = RedundancyMode.NONE, RedundancyMode.REPLICA, RedundancyMode.EAGER
SMALLER = (
    (PLAIN, 9.5, (NONE, REPLICA, EAGER)),  # Eager keeps in host memory what is computed ahead
    (PLAIN, 7.4, (NONE, REPLICA, EAGER)),  # and its replicas
    (PLAIN, 6.9, (NONE, REPLICA)),  # Replica, too, and Eager does not fit
    (shapes.BERT, 9.5, (NONE, REPLICA, EAGER)),
)
"""Devices in GiB on which something goes to host memory, and the modes that fit."""
NOTE = (
    "virtual time; V100: 8e12 operations/s with 4-byte numbers; a100: 140e12 with 2-byte numbers"
    " (sizes stay those of 4 bytes); goals at 100 Gb/s: Replica <= 1.02, Eager <= 1.05"
)


Job = Callable[[], Undisturbed]


def cases(
    shape: shapes.Shape,
    gigabits: float,
    speed: float = V100_SPEED,
    device: Device = V100,
    modes: Collection[RedundancyMode] = (NONE, REPLICA, EAGER),
) -> dict[str, Job]:
    """The shape in each mode."""
    return {
        mode.value.lower(): partial(
            undisturbed, placed(shape, mode, gigabits=gigabits, speed=speed, device=device)
        )
        for mode in modes
    }


def summary(found: dict[str, Undisturbed]) -> dict[str, Any]:
    """One row of the samples."""
    none = found["none"]
    out: dict[str, Any] = {"step_s": round(none.step_s, 4), "busy": round(none.busy, 3)}
    for name, run in found.items():
        if name != "none":
            out[f"{name}_over_none"] = round(run.step_s / none.step_s, 4)
        out[f"{name}_gb"] = round(run.device_bytes / 1e9, 2)
        if run.hosted:
            out[f"{name}_host_gb"] = round(run.host_bytes / 1e9, 2)
            out[f"{name}_hosts"] = hosts(run)
    if "eager" in found:
        out["ahead"] = round(found["eager"].ahead, 3)
    return out


def hosts(run: Undisturbed) -> str:
    """A few words that say what is in host memory."""
    replicas = ["replicas"] if len(run.hosted) > (AHEAD in run.hosted) else []
    return " and ".join(["ahead"] * (AHEAD in run.hosted) + replicas)


def jobs() -> dict[str, dict[str, Job]]:
    """The jobs that are measured, the most important first."""
    out = {f"{PLAIN.name} {x} Gb/s": cases(PLAIN, x) for x in BANDWIDTHS}
    most = max(BANDWIDTHS)
    for shape, size, modes in SMALLER:
        device = of_size(V100, size)
        out[f"{shape.name} {most} Gb/s {size} GiB"] = cases(shape, most, device=device, modes=modes)
    for gigabits in (most, min(BANDWIDTHS)):
        for shape in shapes.PAPER:
            out[f"{shape.name} {gigabits} Gb/s"] = cases(shape, gigabits, device=V100_32)
    out[f"{PLAIN.name} a100 {most} Gb/s"] = cases(PLAIN, most, A100_SPEED, A100)
    return out


def main() -> None:
    """Measure, write the file, print the figures."""
    arguments.none(__doc__)
    samples: dict[str, dict[str, Any]] = {}
    for name, found in parallel.rows(jobs()):
        samples[name] = summary(found)
        print(name, samples[name], flush=True)
    reached = figures(samples)
    path = results_file.write("redundancy_overhead", samples=samples, figures=reached, note=NOTE)
    print(*(f"{name}: {value}" for name, value in reached.items()), f"-> {path}", sep="\n")


def figures(samples: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Ratios at 100 Gb/s, and on smaller devices; memory over that of None."""
    most = f"{PLAIN.name} {max(BANDWIDTHS)} Gb/s"
    out = {name: samples[most][name] for name in ("replica_over_none", "eager_over_none")}
    memory = {most, f"{shapes.BERT.name} {max(BANDWIDTHS)} Gb/s"}
    for name, found in samples.items():
        key = name.replace(" Gb/s", "_gbps").replace(".", "_").replace(" ", "_").lower()
        for mode in ("replica", "eager"):
            if f"{mode}_over_none" not in found:
                continue
            if name != most:
                out[f"{key}_{mode}_over_none"] = found[f"{mode}_over_none"]
            if name in memory or "GiB" in name:
                ratio = found[f"{mode}_gb"] / found["none_gb"]
                out[f"{key}_{mode}_memory_over_none"] = round(ratio, 3)
    return out


if __name__ == "__main__":
    main()
