"""What a killed worker costs Bamboo, torchrun, torchft, and a pipeline with checkpoints.

    python benchmarks/against_peers.py [--kills 20] [--only WORDS] [--seed 1] [--minutes M]

The same small GPT on 8 workers of this machine. Each loss has a fresh start: wait for undisturbed
steps, SIGKILL one worker at a random moment, wait until 8 workers train again. The systems take
turns, loss by loss. bamboo, torchft_tuned and torchrun_forked are compared; the others are shown
beside them, with a quarter of the losses. torchft is installed into an environment of its own in
the user's cache. --only takes names of variants, or parts of names, separated by commas:

    bamboo                    newcomer after the pause
    bamboo_at_once            newcomer with the loss
    pipeline_checkpoint       Bamboo without copies: one pipeline of 8 stages, checkpoints
    torchrun_forked           workers are forked from a process that has loaded torch
    torchrun_standard         workers are new interpreters, as people start it
    torchft_tuned[_at_once]   the shortest time-outs that work
    torchft_defaults[_at_once]

The result file is written after each loss; a run of the same code resumes the last one.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from peers import environment, record, variants
from peers.bamboo_fleet import BambooFleet
from peers.gaps import Cost
from peers.peer_fleets import TorchftFleet, TorchrunFleet
from peers.procedure import Fleet, one_kill
from peers.variants import System, Variant

from bamboo_sim.fleet.local_fleet import ForkServerProcess
from bamboo_sim.programs import arguments


class Starter:
    """Makes fleets. Its forkserver and torchft's environment are made at the first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._forkserver: ForkServerProcess | None = None

    def fleet(self, variant: Variant, folder: Path) -> Fleet:
        """A fleet that has not started yet."""
        if variant.system is System.TORCHRUN:
            return TorchrunFleet(folder, variant)
        if variant.system is System.TORCHFT:
            return TorchftFleet(folder, variant, environment.interpreter())
        if self._forkserver is None:
            self._forkserver = ForkServerProcess(self._folder / "forkserver")
            self._forkserver.start()
        pipeline = variant.system is System.PIPELINE
        return BambooFleet(folder, self._forkserver, pipeline=pipeline)

    def stop(self) -> None:
        """End what all fleets share."""
        if self._forkserver is not None:
            self._forkserver.stop()


def measure(starter: Starter, variant: Variant, chance: random.Random) -> Cost | str:
    """One loss: its cost, or why it was not survived."""
    prefix = f"peers-{variant.name}-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name:
        try:
            return asyncio.run(_measure(starter, variant, Path(name), chance))
        except (AssertionError, RuntimeError, TimeoutError, ValueError) as error:
            return f"{type(error).__name__}: {error}"


async def _measure(starter: Starter, variant: Variant, folder: Path, chance: random.Random) -> Cost:
    return await one_kill(starter.fleet(variant, folder), variant.newcomer, chance)


def run(given: argparse.Namespace) -> record.Record:
    """Measure what is left of the given losses."""
    kept = record.resume()
    left = variants.order(given.only, given.kills, kept.done(), given.seed)
    until = time.monotonic() + 60 * given.minutes
    with tempfile.TemporaryDirectory() as name:
        starter = Starter(Path(name))
        try:
            for number, variant in enumerate(left, start=1):
                if time.monotonic() > until:
                    break
                turn = kept.done()[variant.name]
                chance = random.Random(f"{given.seed}/{variant.name}/{turn}")
                found = measure(starter, variant, chance)
                kept.add(variant.name, found)
                kept.save()
                print(f"{number} of {len(left)}: {variant.name}: {found}", flush=True)
        finally:
            starter.stop()
    return kept


def word(text: str) -> tuple[Variant, ...]:
    """A type for ``add_argument``: the variants that a word chooses."""
    try:
        return variants.chosen(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument(
        "--kills", type=arguments.at_least(1), default=20, help="of each compared one"
    )
    parser.add_argument("--only", type=word, default=variants.VARIANTS, metavar="WORDS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--minutes", type=arguments.amount, default=1e6, help="start no loss after this time"
    )
    kept = run(parser.parse_args())
    for name, value in kept.figures().items():
        print(f"{name}: {value}")
    for name, text in kept.failures:
        print(f"{name}: {text}", file=sys.stderr)
    return 1 if kept.failures else 0


if __name__ == "__main__":
    sys.exit(main())
