"""python -m bamboo_sim.protocol [--seconds N] [--new-seconds N] [--fault-seconds N] [--seed N]
                              [--write]
python -m bamboo_sim.protocol --exhaustive [--processes N] [--only WORD] [--write]

Explores histories of the protocol at random, then checks that every planted fault is detected.
Prints counts, coverage, and each violation as its shortest history with the agents' programs.
Exit status 1 if a history violates an invariant, a planted fault is not detected, or less has been
tried than such a sample must.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from time import time

from bamboo_sim.programs import arguments, results_file
from bamboo_sim.programs.sample import Sample, TooSmallError
from bamboo_sim.protocol.exploration import exhaustive, exhaustive_record
from bamboo_sim.protocol.exploration.detection import Detection, detect
from bamboo_sim.protocol.exploration.tally import NEW_FAMILIES, Tally
from bamboo_sim.protocol.exploration.time_budget import SMALL, explore, is_chosen, runs
from bamboo_sim.protocol.families.by_name import FAMILIES
from bamboo_sim.protocol.histories.history import History, explain
from bamboo_sim.protocol.planted.faults import FAULTS

_FRESH = 5  # of so many faults, one is searched for as if it had never been found
_HISTORIES, _PLANTED = 1000, 90  # the least that a run of all families must try
_EACH = 1  # the least histories of each family: each is drawn, however slow the machine is
_OTHER_SEEDS = 1_000_003  # of the second search: its histories differ from those of the first
_AGAIN_S = 60.0  # the least time of a fault in the second search


def main() -> int:
    options = _options()
    if os.environ.get("PYTHONHASHSEED") != "0":  # a seed replays only with fixed hashes
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "bamboo_sim.protocol", *sys.argv[1:]])
    print(f"seed {options.seed}")
    if options.exhaustive:
        return _explore_exhaustively(options)
    known = {} if options.write else _known_seeds()
    samples = _samples(options)
    histories, planted = samples
    tally, lines = explore(
        options.seconds,
        options.seed,
        only=options.only,
        least=histories.least["histories"],
        each=_EACH if options.seconds > 0 else 0,
    )
    if options.new_seconds > 0:
        _, more = explore(options.new_seconds, options.seed, tally=tally, only=NEW_FAMILIES)
        lines += more
    print("\n".join(lines))
    _print(tally)
    detections = _detect_all(options.fault_seconds, options.seed, known)
    if options.write:
        _write(tally, detections, _rate(min(20.0, options.seconds / 5)))
    histories.add("histories", tally.cases)
    for family, count in tally.families.items():
        histories.add(_of_family(family), count)
    planted.add("planted faults", sum(d.cases > 0 for d in detections))
    try:
        for sample in samples:
            sample.check()
    except TooSmallError as error:
        print(f"bamboo: {error}", file=sys.stderr)
        return 1
    return 1 if tally.violations or not all(d.is_right for d in detections) else 0


def _samples(options: argparse.Namespace) -> tuple[Sample, Sample]:
    """The least of what is asked for: of histories in all, of each family, of planted faults."""
    histories = {"histories": 0}
    if options.seconds > 0:
        histories = {"histories": 1 if options.only else _HISTORIES}
        families = sorted({family for family, *_ in runs() if is_chosen(family, options.only)})
        histories |= {_of_family(family): _EACH for family in families}
    planted = 0 if options.fault_seconds <= 0 else _PLANTED
    advice = "give more seconds, or a machine with less load"
    return (
        Sample("the exploration", histories, options.seconds, advice),
        Sample("the search", {"planted faults": planted}, options.fault_seconds, advice),
    )


def _of_family(family: str) -> str:
    return f"histories of {family}"


def _print(tally: Tally) -> None:
    print(f"{tally.cases} histories, {len(tally.histories)} of them distinct and complete")
    print(", ".join(f"{k} {n}" for k, n in sorted(tally.outcomes.items())))
    print(tally.coverage())
    effects = ", ".join(f"{kind} {n}" for kind, n in sorted(tally.effects.items()))
    print(f"histories in which each of these had an effect: {effects}")
    print(f"{len(tally.new)} distinct histories in which a new one had")
    for history, text in tally.violations[:3]:
        print(f"VIOLATION {text}\n{explain(history)}")


def _explore_exhaustively(options: argparse.Namespace) -> int:
    """Run every unit. With --write, skip the units that an earlier run has finished."""
    record = exhaustive_record.resume(exhaustive.units(options.seed, options.only), options.seed)
    if not options.write:
        record.units.clear()
    todo = [u for u in exhaustive.units(record.seed, options.only) if str(u) not in record.units]
    total = Tally()
    for unit, tally in exhaustive.run_all(todo, options.processes):
        total.add(tally)
        record.add(unit, tally)
        if options.write:
            record.write()
    _print(total)
    print(", ".join(f"{name} {n}" for name, n in record.figures().items()))
    return 1 if record.figures()["violations"] else 0


def _options() -> argparse.Namespace:
    description = __doc__.partition("\n\n")[2] if __doc__ else ""
    parser = argparse.ArgumentParser(prog="python -m bamboo_sim.protocol", description=description)
    parser.add_argument(
        "--seconds", type=arguments.amount, default=360.0, help="time for random exploration"
    )
    parser.add_argument(
        "--new-seconds",
        type=arguments.amount,
        default=0.0,
        help="more time for families with faults of new kinds",
    )
    parser.add_argument(
        "--fault-seconds", type=arguments.amount, default=360.0, help="time for planted faults"
    )
    parser.add_argument("--seed", type=int, help="default: the first digits of the commit's hash")
    parser.add_argument(
        "--only", default="", help="only families whose name contains this, or one of these: a,b"
    )
    parser.add_argument(
        "--write", action="store_true", help="write benchmarks/results/explorer*.json"
    )
    parser.add_argument(
        "--exhaustive", action="store_true", help="run every unit (hours of processor time)"
    )
    parser.add_argument(
        "--processes",
        type=arguments.at_least(1),
        default=os.cpu_count() or 1,
        help="processes of an exhaustive run (default: one per core)",
    )
    options = parser.parse_args()
    families = sorted({family for family, *_ in runs()})
    names = [str(unit) for unit in exhaustive.units(0)] if options.exhaustive else families
    if not any(is_chosen(name, options.only) for name in names):
        parser.error(f"--only {options.only} matches no family; families: {', '.join(families)}")
    if options.seconds <= 0 and options.fault_seconds <= 0 and not options.exhaustive:
        parser.error("--seconds 0 and --fault-seconds 0 leave nothing to do; give one of them time")
    if options.seed is None:
        head = subprocess.run(
            ["git", "rev-parse", "--short=6", "HEAD"], capture_output=True, text=True, check=False
        )
        options.seed = int(head.stdout.strip() or "0", 16)
    return options


def _detect_all(seconds: float, seed: int, known: Mapping[str, int]) -> list[Detection]:
    """Faults that are found early leave their time to the others, which are then searched again:
    on a slow machine longer than the time that is given.

    known: for a fault's row, the seed with which the recorded run found it. A fifth of the faults,
    others for each seed, is searched for without it at first.
    """
    end = time() + seconds
    if seconds <= 0:
        return []
    detections: dict[str, Detection] = {}
    for i, fault in enumerate(FAULTS):
        share = max(1.0, (end - time()) / (len(FAULTS) - i) * 2)
        first = None if (i + seed) % _FRESH == 0 else known.get(fault.row)
        detections[fault.row] = detect(fault, share, seed, first)
        print(detections[fault.row], flush=True)
    left = [d for d in detections.values() if not d.text]
    for i, before in enumerate(left):
        row, share = before.fault.row, max(_AGAIN_S, (end - time()) / (len(left) - i))
        again = detect(before.fault, share, seed + _OTHER_SEEDS, known.get(row))
        detections[row] = replace(again, cases=before.cases + again.cases)
        print(f"again: {detections[row]}", flush=True)
    return list(detections.values())


def _rate(seconds: float) -> float:
    """Distinct histories per second of one core: single kills on a 2 x 2 grid."""
    tally = Tally()
    base = History(SMALL, 1)
    end = time() + seconds
    while time() < end:
        tally.run(FAMILIES["singles"](base), base, until=end)
        base = History(SMALL, base.seed + 1)
    print(f"{tally.per_second:.0f} distinct histories/s per core on {SMALL}")
    return tally.per_second


def _how(found: Detection) -> str:
    """How a planted fault was found, on one line of the result file."""
    if not found.text:
        return f"not found in {found.cases} cases"
    return f"case {found.cases}: {found.text}"


def _by_seed(detections: list[Detection]) -> dict[str, str]:
    """Seed -> the rows of the planted faults that it has found, so that they share a line."""
    found: dict[str, list[str]] = {}
    for detection in detections:
        if detection.text:
            found.setdefault(str(detection.seed), []).append(detection.fault.row)
    return {seed: " ".join(rows) for seed, rows in found.items()}


def _known_seeds() -> dict[str, int]:
    """Row of a planted fault -> the seed that has found it in the last run on record."""
    found = results_file.read("explorer")["samples"]["found_with_seed"]
    return {row: int(seed) for seed, rows in found.items() for row in rows.split()}


def _write(tally: Tally, detections: list[Detection], rate: float) -> None:
    results_file.write(
        "explorer",
        samples={
            "outcomes": dict(tally.outcomes),
            "found_with_seed": _by_seed(detections),
            "found_as": {d.fault.row: _how(d) for d in detections},
        },
        figures={
            "histories_per_s": round(rate, 1),
            "histories": len(tally.histories),
            "cases": tally.cases,
            "new_histories": len(tally.new),
            "violations": len(tally.violations),
            "kill_points": len(tally.points),
            "planted": len(detections),
            "planted_found": sum(d.is_right for d in detections),
        },
    )


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # to free millions of objects takes half a minute
