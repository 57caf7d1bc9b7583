"""What protection costs an undisturbed step, in virtual time: production programs and executors.

    python benchmarks/redundancy_overhead.py

The models of the Bamboo paper on its grids, and equal stages on D=4 P=8 M=32, on declared V100s
with 4-byte numbers in three zones, over 10, 25 and 100 Gb/s (the paper's: 10 and 100). A ratio is
the steady step's time in a mode over that of mode None. Memory is what the fullest device holds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bamboo_core.api.spec import RedundancyMode
from bamboo_sim import arguments, results_file
from bamboo_sim.timed import parallel, shapes
from bamboo_sim.timed.declared import Device
from bamboo_sim.timed.hardware import A100, A100_SPEED, V100, V100_SPEED, placed
from bamboo_sim.timed.measured import Undisturbed, undisturbed

BANDWIDTHS = (100, 10, 25)
PLAIN = shapes.uniform(4, 8, 32)
HOSTED = (PLAIN, shapes.BERT)
NONE, REPLICA, EAGER = RedundancyMode.NONE, RedundancyMode.REPLICA, RedundancyMode.EAGER
NOTE = (
    "virtual time; V100: 8e12 operations/s with 4-byte numbers; a100: 140e12 with 2-byte numbers"
    " (sizes stay those of 4 bytes); goals at 100 Gb/s: Replica <= 1.02, Eager <= 1.05"
)


Job = Callable[[], Undisturbed]


def cases(shape: shapes.Shape, gigabits: float, speed: float, device: Device) -> dict[str, Job]:
    """The shape in each mode; at 100 Gb/s some also with what is computed ahead on the host."""
    ways = [(mode, False) for mode in (NONE, REPLICA, EAGER)]
    if gigabits == max(BANDWIDTHS) and shape in HOSTED:
        ways += [(REPLICA, True), (EAGER, True)]
    out: dict[str, Job] = {}
    for mode, offloads in ways:
        job = placed(shape, mode, gigabits=gigabits, speed=speed, device=device, offloads=offloads)
        out[mode.value.lower() + "_offload" * offloads] = partial(undisturbed, job)
    return out


def summary(found: dict[str, Undisturbed]) -> dict[str, Any]:
    """One row of the samples."""
    none = found["none"]
    out: dict[str, Any] = {"step_s": round(none.step_s, 4), "busy": round(none.busy, 3)}
    for name, run in found.items():
        if name != "none":
            out[f"{name}_over_none"] = round(run.step_s / none.step_s, 4)
        out[f"{name}_gb"] = round(run.device_bytes / 1e9, 2)
        if run.host_bytes:
            out[f"{name}_host_gb"] = round(run.host_bytes / 1e9, 2)
    out["ahead"] = round(found["eager"].ahead, 3)
    if "eager_offload" in found:
        out["ahead_offload"] = round(found["eager_offload"].ahead, 3)
    return out


def jobs() -> dict[str, dict[str, Job]]:
    """What is measured, the most important first."""
    out = {f"{PLAIN.name} {x} Gb/s": cases(PLAIN, x, V100_SPEED, V100) for x in BANDWIDTHS}
    for gigabits in (max(BANDWIDTHS), min(BANDWIDTHS)):
        for shape in shapes.PAPER:
            out[f"{shape.name} {gigabits} Gb/s"] = cases(shape, gigabits, V100_SPEED, V100)
    out[f"{PLAIN.name} a100 100 Gb/s"] = cases(PLAIN, 100, A100_SPEED, A100)
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
    """Ratios at 100 Gb/s, and memory over that of None."""
    plain = samples[f"{PLAIN.name} 100 Gb/s"]
    out = {name: plain[name] for name in ("replica_over_none", "eager_over_none")}
    for name, found in samples.items():
        words = name.replace(" Gb/s", "_gbps").split()
        if (words[0], words[-1]) != (PLAIN.name, "100_gbps") or len(words) > 2:
            for mode in ("replica", "eager"):
                out["_".join([*words, mode, "over_none"])] = found[f"{mode}_over_none"]
    for shape in HOSTED:
        found = samples[f"{shape.name} 100 Gb/s"]
        for mode in ("replica", "replica_offload", "eager", "eager_offload"):
            ratio = found[f"{mode}_gb"] / found["none_gb"]
            out[f"{shape.name}_{mode}_memory_over_none"] = round(ratio, 3)
            if mode.endswith("offload"):
                out[f"{shape.name}_{mode}_over_none"] = found[f"{mode}_over_none"]
    return out


if __name__ == "__main__":
    main()
