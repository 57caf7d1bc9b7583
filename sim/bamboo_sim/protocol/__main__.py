"""python -m bamboo_sim.protocol [--seconds N] [--fault-seconds N] [--seed N] [--write]
python -m bamboo_sim.protocol --exhaustive [--processes N] [--only WORD] [--write]

Explores histories, then hunts planted faults; prints counts, coverage, and any violation shrunk to
its shortest history with the grid of programs. Exit status 1 if the protocol or the explorer fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from time import time

from benchmarks.options import amount, at_least

from bamboo_sim import results_file
from bamboo_sim.protocol.exploration import exhaustive, full
from bamboo_sim.protocol.exploration.history import History, explain
from bamboo_sim.protocol.exploration.hunting import Hunt, hunt
from bamboo_sim.protocol.exploration.plan_of_runs import SMALL, explore, runs
from bamboo_sim.protocol.exploration.scenarios import FAMILIES
from bamboo_sim.protocol.exploration.tally import Tally
from bamboo_sim.protocol.mutants.planted import FAULTS


def main() -> int:
    options = _options()
    if os.environ.get("PYTHONHASHSEED") != "0":  # so that a seed replays
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "bamboo_sim.protocol", *sys.argv[1:]])
    print(f"seed {options.seed}")
    if options.exhaustive:
        return _exhaust(options)
    tally, lines = explore(options.seconds, options.seed, only=options.only)
    print("\n".join(lines))
    _tell(tally)
    hunts = _hunt_all(options.fault_seconds, options.seed)
    rate = _rate(min(20.0, options.seconds / 5))
    if options.write:
        _write(tally, hunts, rate)
    return 1 if tally.violations or any(not h.text for h in hunts) else 0


def _tell(tally: Tally) -> None:
    print(f"{tally.cases} histories, {len(tally.histories)} distinct ended well")
    print(", ".join(f"{k} {n}" for k, n in sorted(tally.outcomes.items())))
    print(tally.coverage())
    for history, text in tally.violations[:3]:
        print(f"VIOLATION {text}\n{explain(history)}")


def _exhaust(options: argparse.Namespace) -> int:
    """Everything, however long it takes; with --write what is done already is not done again."""
    record = full.begin(exhaustive.units(options.seed, options.only), options.seed)
    if not options.write:
        record.units.clear()
    todo = [u for u in exhaustive.units(record.seed, options.only) if str(u) not in record.units]
    total = Tally()
    for unit, tally in exhaustive.run_all(todo, options.processes):
        total.add(tally)
        record.add(unit, tally)
        if options.write:
            record.write()
    _tell(total)
    print(", ".join(f"{name} {n}" for name, n in record.figures().items()))
    return 1 if record.figures()["violations"] else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bamboo_sim.protocol")
    parser.add_argument("--seconds", type=amount, default=360.0)
    parser.add_argument("--fault-seconds", type=amount, default=360.0)
    parser.add_argument("--seed", type=int, default=None, help="default: from the commit's hash")
    parser.add_argument("--only", default="", help="families whose name has this in it")
    parser.add_argument("--write", action="store_true", help="benchmarks/results/explorer*.json")
    parser.add_argument("--exhaustive", action="store_true", help="everything: hours of a core")
    parser.add_argument("--processes", type=at_least(1), default=os.cpu_count() or 1)
    options = parser.parse_args()
    families = sorted({family for family, *_ in runs()})
    names = [str(unit) for unit in exhaustive.units(0)] if options.exhaustive else families
    if not any(options.only in name for name in names):
        parser.error(
            f"--only {options.only}: no family has that in its name: {', '.join(families)}"
        )
    if options.seed is None:
        head = subprocess.run(
            ["git", "rev-parse", "--short=6", "HEAD"], capture_output=True, text=True, check=False
        )
        options.seed = int(head.stdout.strip() or "0", 16)
    return options


def _hunt_all(seconds: float, seed: int) -> list[Hunt]:
    """What is left over by faults that are found at once goes to those that are not."""
    hunts: list[Hunt] = []
    end = time() + seconds
    if seconds <= 0:
        return hunts
    for i, fault in enumerate(FAULTS):
        share = max(1.0, (end - time()) / (len(FAULTS) - i) * 2)
        hunts.append(hunt(fault, share, seed))
        print(hunts[-1], flush=True)
    return hunts


def _rate(seconds: float) -> float:
    """Distinct histories per second of one core on 2 x 2, single kills."""
    tally = Tally()
    base = History(SMALL, 1)
    end = time() + seconds
    while time() < end:
        tally.run(FAMILIES["singles"](base), base, until=end)
        base = History(SMALL, base.seed + 1)
    print(f"{tally.per_second:.0f} distinct histories/s per core on {SMALL}")
    return tally.per_second


def _write(tally: Tally, hunts: list[Hunt], rate: float) -> None:
    results_file.write(
        "explorer",
        samples={
            "outcomes": dict(tally.outcomes),
            "hunts": {h.fault.row: h.cases if h.text else None for h in hunts},
            "found_as": {h.fault.row: h.text for h in hunts},
        },
        figures={
            "histories_per_s": round(rate, 1),
            "histories": len(tally.histories),
            "cases": tally.cases,
            "violations": len(tally.violations),
            "kill_points": len(tally.points),
            "planted": len(hunts),
            "planted_found": sum(bool(h.text) for h in hunts),
        },
    )


if __name__ == "__main__":
    sys.exit(main())
