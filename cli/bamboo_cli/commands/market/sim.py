"""`bamboo sim`: the market simulator, which is a program of its own."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import click

from bamboo_cli.errors import CommandError

_PROGRAM = "bamboo_sim"


@click.group()
def sim() -> None:
    """Simulate spot nodes: what training costs on them."""


@sim.command("paper-table")
@click.option(
    "--seeds", type=click.IntRange(min=1), default=1000, show_default=True, help="Runs of each row."
)
@click.option(
    "--processes", type=click.IntRange(min=1), help="Side by side.  [default: one for each core]"
)
@click.option("--json", "is_json", is_flag=True, help="Print JSON, with all assumptions.")
def paper_table(*, seeds: int, processes: int | None, is_json: bool) -> None:
    """Compute the table of Bamboo's paper: BERT to completion on spot nodes.

    Throughput, cost and value for each chance that a node is preempted within an hour, beside what
    the slides of the talk say. The assumptions are printed with their sources, and the two that
    were fitted to the slide are called fitted. The same seeds give the same table.
    """
    arguments = ["paper-table", "--seeds", str(seeds)]
    arguments += [] if processes is None else ["--processes", str(processes)]
    sys.exit(_run([*arguments, *(["--json"] if is_json else [])]))


@sim.command("fit")
@click.argument("trace", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--within",
    type=click.FloatRange(min=0),
    help="Seconds: losses with gaps of at most this are one burst.  [default: 30]",
)
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@click.option("--write", "target", type=click.Path(), help="Write the market that follows to FILE.")
@click.option(
    "--refill-minutes",
    type=click.FloatRange(min=0, min_open=True),
    help="With --write: the mean time until a lost node is replaced, where TRACE does not say it.",
)
def fit(
    *,
    trace: str,
    within: float | None,
    is_json: bool,
    target: str | None,
    refill_minutes: float | None,
) -> None:
    """Measure the recorded fleet in the file TRACE: losses, bulks, gaps and refills.

    TRACE may be a CSV of events, JSON lines of events, a series of counts, lifetimes, or your own
    history of nodes and prices; its content says which. Figures have intervals. The written market
    draws fleets like the recorded one, and each of its numbers has its source.
    """
    options = {"--within": within, "--write": target, "--refill-minutes": refill_minutes}
    given = [f"{name}={value}" for name, value in options.items() if value is not None]
    sys.exit(_run(["fit", *given, *(["--json"] if is_json else []), "--", trace]))


@sim.command("compare")
@click.argument("source")
@click.option("--model", help="Of which step times are known.  [default: bert_large]")
@click.option(
    "--network",
    type=click.Choice(["10", "25", "100", "free"]),
    help="Gb/s of each node's interface.  [default: 10]",
)
@click.option(
    "--stages",
    type=click.IntRange(min=2),
    help="Depth of systems that keep it.  [default: that of the fastest grid]",
)
@click.option(
    "--hours",
    type=click.FloatRange(min=0, min_open=True),
    help="Longest time; a trace ends with its file.  [default: 24]",
)
@click.option(
    "--seeds", type=click.IntRange(min=1), help="Runs, each with other draws.  [default: 1]"
)
@click.option(
    "--notice", type=click.FloatRange(min=0), help="Seconds before each loss.  [default: 0: none]"
)
@click.option(
    "--price", type=click.FloatRange(min=0, min_open=True), help="Dollars per spot node-hour."
)
@click.option(
    "--processes", type=click.IntRange(min=1), help="Side by side.  [default: one for each core]"
)
@click.option("--json", "is_json", is_flag=True, help="Print JSON, with all assumptions.")
def compare(*, source: str, is_json: bool, **options: object) -> None:
    """Compare all systems on the fleet SOURCE: a recorded trace, or a market by name or file.

    Samples per second, dollars, samples per dollar, where the time goes, and a rank, for ours in
    each mode and for others: with the same parameters for all, and with those that their authors
    published. Step times are the planner's; they are computed once and kept. The assumptions are
    printed with their sources, and the same seeds give the same tables.
    """
    given = [f"--{name}={value}" for name, value in options.items() if value is not None]
    sys.exit(_run(["compare", *given, *(["--json"] if is_json else []), "--", source]))


def _run(arguments: list[str]) -> int:
    """The exit code. CommandError if the simulator is not installed."""
    if find_spec(_PROGRAM) is None:
        raise CommandError(
            "the simulator is not in this installation; install bamboo-train[cli] with pip, or run"
            " .venv/bin/bamboo in a checkout after scripts/setup."
        )
    return subprocess.run([sys.executable, "-m", f"{_PROGRAM}.market", *arguments]).returncode
