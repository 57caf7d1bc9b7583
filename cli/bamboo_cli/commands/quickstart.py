"""`bamboo quickstart`: its options. `bamboo_cli.quickstart.scenario` has what it does."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from bamboo_cli.views.terminal.console import make_console
from bamboo_core.api.spec import Channel


@click.command()
@click.option(
    "--keep",
    is_flag=True,
    help="Keep the cluster, even if the job fails, and print how to use it. Ctrl-C removes it.",
)
@click.option(
    "--file", type=click.Path(path_type=Path), help="Run this BambooJob instead of the example."
)
@click.option(
    "--nodes",
    type=click.IntRange(1, 200),
    default=12,
    show_default=True,
    help="Number of GPU nodes.",
)
@click.option(
    "--zones",
    type=click.IntRange(1, 26),
    default=3,
    show_default=True,
    help="Number of zones.",
)
@click.option(
    "--losses/--no-losses", default=True, help="Inject node failures while the job trains."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    help="Seconds after which training is given up.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    help="Write the report of the run into this HTML file.  [default: in your state folder]",
)
@click.option("--picture", type=click.Path(path_type=Path), help="Draw the run into this SVG file.")
@click.option(
    "--channel",
    type=click.Choice([each.value for each in Channel]),
    help="What carries large tensors between agents.  [default: the job's]",
)
@click.option(
    "--grid",
    metavar="PIPELINESxSTAGES",
    help="Train on this grid, such as 1x1. The final state is the same.  [default: the job's]",
)
def quickstart(*, keep: bool, file: Path | None, nodes: int, zones: int, **more: Any) -> None:
    """Train a small GPT on a real Kubernetes control plane on this machine."""
    from bamboo_cli.quickstart.local_cluster import ClusterOptions
    from bamboo_cli.quickstart.scenario import Options, run_quickstart

    cluster = ClusterOptions(keep=keep, nodes=nodes, zones=zones)
    options = Options(cluster=cluster, **more)
    if file is not None:
        options = replace(options, file=file)
    sys.exit(run_quickstart(options, make_console()))
