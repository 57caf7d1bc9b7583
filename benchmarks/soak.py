"""Random faults in long-lived jobs of real agents: no bit may change, and no job may stand still.

    python benchmarks/soak.py [--minutes 60] [--fleets 2] [--steps 180] [--seed 1]
                              [--fresh | --write]

Each fleet is a process with its own operator and agents. It trains one job after the other, on
small grids. A round kills or freezes agents, breaks connections, makes storage slow or takes it
away, suspends the job, or replaces the operator, and then compares weights and optimizer state with
a job without faults. The last round of a job meets a full disk. Faults that have had no effect do
not count. The time begins with a fleet's first round. If it is over and there
are less than --least rounds, or less faults with an effect than that, the fleets go on for up to
ten minutes; the exit status is 1 if there are still less. A run of the same code adds to the last
one, except with --fresh; --write writes the result file. A failed job's files are kept.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bamboo_core.api.spec import RedundancyMode
from bamboo_sim.fleet.local_fleet import ForkServerProcess
from bamboo_sim.fleet.logs.state_log import EVERY
from bamboo_sim.fleet.runs import side_by_side
from bamboo_sim.fleet.runs.side_by_side import Rows
from bamboo_sim.programs import arguments
from bamboo_sim.programs.sample import Sample, TooSmallError
from bamboo_sim.soak import record as records
from bamboo_sim.soak.job import FAULTS, ROUNDS, Round, soak
from bamboo_sim.soak.record import SoakRecord
from bamboo_sim.soak.reference import Grid, Reference, compute

GRIDS = (
    Grid(2, 2, RedundancyMode.REPLICA),
    Grid(1, 3, RedundancyMode.REPLICA),
    Grid(2, 2, RedundancyMode.NONE),
    Grid(1, 2, RedundancyMode.REPLICA),
    Grid(2, 3, RedundancyMode.REPLICA),
    Grid(2, 3, RedundancyMode.NONE),
)
SAVE_S = 30.0
Row = tuple[str, Round]


@dataclass(frozen=True)
class Order:
    """The work of one fleet's process."""

    number: int
    seed: str
    first: int  # number of its first job
    seconds: float  # from its first round
    least: int  # rounds, and faults with an effect
    socket: Path  # of the forkserver
    reference: Reference


def sample(least: int, seconds: float) -> Sample:
    """Rounds and faults of one fleet, or of all."""
    advice = "run it again on a machine with less load, or look in the log for what stops the jobs"
    return Sample("the soak", {ROUNDS: least, FAULTS: least}, seconds, advice)


def serve(order: Order, rows: Rows[Row]) -> None:
    """Run one job after the other until the time is over."""
    asyncio.run(_serve(order, rows))


async def _serve(order: Order, rows: Rows[Row]) -> None:
    number, mine = order.first, sample(order.least, order.seconds)
    end = time.monotonic() + order.seconds
    while not mine.is_over:
        name = f"{order.number}.{number}"
        chance = random.Random(f"{order.seed}/{name}")
        grid = GRIDS[(number + order.number) % len(GRIDS)]
        folder = Path(tempfile.mkdtemp(prefix=f"soak-{name}-"))
        forkserver = ForkServerProcess(order.socket)
        failed = False
        jobs = soak(folder, forkserver, order.reference, grid, chance, mine)
        async for done in jobs:
            rows.put((name, done))
            failed = failed or bool(done.failure)
        if failed:
            print(f"files: {folder}", file=sys.stderr, flush=True)
            if time.monotonic() > end:
                return  # the whole run has failed, whatever follows
        else:
            shutil.rmtree(folder)
        number += 1


def reference(forkserver: ForkServerProcess, steps: int, *, fresh: bool) -> Reference:
    """Compute it, unless an earlier run of the same code has."""
    found = None if fresh else records.load_reference(steps)
    if found is None:
        say(f"computing {steps} steps without faults")
        with tempfile.TemporaryDirectory() as folder:
            found = asyncio.run(compute(Path(folder), forkserver, steps))
        if not fresh:
            records.save_reference(found)
    return found


def say(text: str) -> None:
    print(text, flush=True)


def run(given: argparse.Namespace, done: Sample) -> SoakRecord:
    """Add rounds to the record for the given time. done: counts them."""
    record = SoakRecord() if given.fresh else records.resume()
    with tempfile.TemporaryDirectory() as folder:
        forkserver = ForkServerProcess(Path(folder) / "socket")
        forkserver.start()
        steps = given.steps // EVERY * EVERY + 1  # the last one is hashed
        expected = reference(forkserver, steps, fresh=given.fresh)
        start, before = time.monotonic(), record.seconds
        first = 1 + max((int(x["job"].split(".")[1]) for x in record.rounds), default=0)
        share = math.ceil(given.least / given.fleets)
        orders = [
            Order(n, given.seed, first, done.seconds, share, forkserver.socket, expected)
            for n in range(given.fleets)
        ]
        save_at = start + SAVE_S
        for name, each in side_by_side.rows(serve, orders):
            record.add(name, each)
            done.add(ROUNDS, each.faults > 0)
            done.add(FAULTS, each.faults)
            record.seconds = before + time.monotonic() - start
            report(record, name, each)
            if time.monotonic() > save_at and not given.fresh:
                record.save()
                save_at = time.monotonic() + SAVE_S
        forkserver.stop()
    if not given.fresh:
        record.save()
    return record


def report(record: SoakRecord, name: str, done: Round) -> None:
    """One line for each round."""
    state = f"FAILED {done.failure}" if done.failure else f"pause {done.pause_s:.1f} s"
    say(f"{len(record.rounds)} {name} {done.grid} {done.seconds:.1f} s: {done.did}: {state}")


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--minutes", type=arguments.amount, default=60.0)
    parser.add_argument("--fleets", type=arguments.at_least(1), default=2, help="side by side")
    parser.add_argument("--steps", type=arguments.at_least(100), default=180, help="of a job")
    parser.add_argument(
        "--least", type=arguments.at_least(1), default=4, help="rounds (default: 4)"
    )
    parser.add_argument("--seed", default="1")
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--fresh", action="store_true", help="neither resume nor save")
    kept.add_argument("--write", action="store_true", help="write the result file")
    given = parser.parse_args()
    done = sample(given.least, 60 * given.minutes)
    record = run(given, done)
    if given.write:
        record.write()
    for name, value in record.figures().items():
        say(f"{name}: {value}")
    say("effects: " + ", ".join(f"{kind} {n}" for kind, n in record.effects().items()))
    for text in record.failures:
        print(text, file=sys.stderr)
    try:
        done.check()
    except TooSmallError as error:
        print(f"bamboo: {error}", file=sys.stderr)
        return 1
    return 1 if record.failures else 0


if __name__ == "__main__":
    sys.exit(main())
