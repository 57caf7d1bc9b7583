"""`bamboo sim`: the market simulator, which is a program of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from bamboo_cli.commands.market.simulator import Page, shown, started


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
    sys.exit(started([*arguments, *(["--json"] if is_json else [])]))


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
    sys.exit(started(["fit", *given, *(["--json"] if is_json else []), "--", trace]))


def _of_setting(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say what is simulated."""
    options = (
        click.option("--model", help="One that comes with it.  [default: bert_large]"),
        click.option(
            "--profile",
            type=click.Path(exists=True, dir_okay=False),
            metavar="FILE",
            help="Your own model instead, as `bamboo profile` measured it.",
        ),
        click.option(
            "--global-batch",
            type=click.IntRange(min=1),
            help="With --profile: the samples of a step.",
        ),
        click.option(
            "--network",
            type=click.Choice(["10", "25", "100", "free"]),
            help="Gb/s of each node's interface.  [default: 10]",
        ),
        click.option(
            "--stages",
            type=click.IntRange(min=2),
            help="Depth of systems that keep it.  [default: that of the fastest grid]",
        ),
        click.option(
            "--hours",
            type=click.FloatRange(min=0, min_open=True),
            help="Longest time; a trace ends with its file.  [default: 24]",
        ),
        click.option(
            "--notice",
            type=click.FloatRange(min=0),
            help="Seconds before each loss.  [default: 0: none]",
        ),
        click.option(
            "--price",
            type=click.FloatRange(min=0, min_open=True),
            help="Dollars per spot node-hour.",
        ),
        click.option(
            "--on-demand-price",
            type=click.FloatRange(min=0, min_open=True),
            help="Dollars per node-hour on demand.",
        ),
        click.option(
            "--processes",
            type=click.IntRange(min=1),
            help="Side by side.  [default: one for each core]",
        ),
        click.option("--json", "is_json", is_flag=True, help="Print JSON, with all assumptions."),
    )
    for option in reversed(options):
        command = option(command)
    return command


_HTML = click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a page with drawings to FILE, too. It needs no network.",
)
_MARKDOWN = click.option(
    "--markdown",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the tables as Markdown to FILE, too.",
)


@sim.command("compare")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@_of_setting
@click.option(
    "--seeds", type=click.IntRange(min=1), help="Runs, each with other draws.  [default: 1]"
)
@_HTML
@_MARKDOWN
def compare(
    *,
    sources: tuple[str, ...],
    is_json: bool,
    html: Path | None,
    markdown: Path | None,
    **options: object,
) -> None:
    """Compare all systems on the fleet SOURCE: a recorded trace, or a market by name or file.

    Samples per second, dollars, samples per dollar with its interval, where the time goes, and a
    rank, for ours in each mode and for others: with the same parameters for all, and with those
    that their authors published. Sentences say where ours is not best, by how much and why. With
    several SOURCEs a last table has all of them. Step times are the planner's; they are computed
    once and kept. The assumptions are printed with their sources, and the same seeds give the same
    tables.
    """
    from bamboo_cli.views.market.pages import compare_html, compare_markdown

    pages = [
        Page("--html", html, "compare.html", compare_html),
        Page("--markdown", markdown, "compare.md", compare_markdown),
    ]
    sys.exit(shown(["compare", *_given(options, is_json)], list(sources), pages))


@sim.command("run")
@click.argument("source")
@click.option(
    "--policy", metavar="NAME", help="A system; a wrong name lists all.  [default: ours-none]"
)
@_of_setting
@click.option("--seed", type=click.IntRange(min=1), help="Of its draws.  [default: 1]")
@_HTML
def run(*, source: str, is_json: bool, html: Path | None, **options: object) -> None:
    """Run one system on the fleet SOURCE: a recorded trace, or a market by name or file.

    It shows samples, hours, dollars by zone and capacity, states over time, and every pause with
    its cause. The run is the one that `bamboo sim compare` has in a row.
    """
    from bamboo_cli.views.market.pages import run_html

    pages = [Page("--html", html, "run.html", run_html)]
    sys.exit(shown(["run", *_given(options, is_json)], [source], pages))


@sim.command("advise")
@click.option("--trace", "source", required=True, help="A recorded trace, or a market.")
@_of_setting
@click.option(
    "--samples",
    type=click.FloatRange(min=0, min_open=True),
    help="That the job trains.  [default: 1e6]",
)
@click.option(
    "--deadline", type=click.FloatRange(min=0, min_open=True), help="Hours until it must end."
)
@click.option("--budget", type=click.FloatRange(min=0, min_open=True), help="Dollars at most.")
@click.option(
    "--sure",
    type=click.FloatRange(min=0, max=1, min_open=True),
    help="Share of the histories that must keep both.  [default: 0.95]",
)
@click.option("--seeds", type=click.IntRange(min=1), help="Histories.  [default: 20]")
@_HTML
def advise(*, source: str, is_json: bool, html: Path | None, **options: object) -> None:
    """Advise which grid, mode and nodes to take for a job on the nodes of a recorded trace.

    It says in one sentence what to take and why, and shows the front of cost against time: grids,
    modes, spot nodes and nodes on demand, with the part of the histories that keeps --deadline and
    --budget. Without either it takes the cheapest; with a budget alone, the fastest. Where nothing
    keeps them, it says what was found. Step times are computed once and kept.
    """
    from bamboo_cli.views.market.pages import advise_html

    pages = [Page("--html", html, "advice.html", advise_html)]
    sys.exit(shown(["advise", f"--trace={source}", *_given(options, is_json)], [], pages))


def _given(options: Mapping[str, object], is_json: bool) -> list[str]:
    """Options as the simulator has them."""
    given = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in options.items()
        if value is not None
    ]
    return [*given, *(["--json"] if is_json else [])]
