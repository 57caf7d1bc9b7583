"""The `bamboo` command, also `kubectl bamboo`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bamboo_cli import screen
from bamboo_cli.display import make_display
from bamboo_cli.errors import CommandError
from bamboo_core import __version__
from bamboo_devcluster.errors import DevclusterError

_DAY_S = 86400.0


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Train large models on spot GPUs, and lose no work when nodes are preempted."""


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(__version__)


@cli.command()
@click.argument("job")
@click.option("-n", "--namespace", help="Namespace of the job.  [default: the context's]")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="[default: $KUBECONFIG]")
@click.option("--context", help="Context in the kubeconfig.  [default: the current one]")
@click.option("-w", "--watch", is_flag=True, help="Refresh until the job ends.")
def status(
    job: str, namespace: str | None, kubeconfig: Path | None, context: str | None, watch: bool
) -> None:
    """Show a BambooJob: progress, grid, zones, conditions, checkpoint."""
    from bamboo_cli.kube import Kube
    from bamboo_cli.watch import follow, look

    console = Console()
    kube = Kube(kubeconfig, context)
    where = namespace or kube.namespace
    if watch:
        with make_display(console) as display:
            for snapshot in follow(kube, where, job, timeout_s=_DAY_S):
                display.show(snapshot)
    else:
        snapshot = look(kube, where, job)
    console.print(screen.job_screen(snapshot))
    console.print(screen.conditions(snapshot.job))
    console.print(screen.checkpoint_line(snapshot.job))


@cli.command()
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
@click.option("--picture", type=click.Path(path_type=Path), help="Draw the run into this SVG file.")
def quickstart(*, keep: bool, file: Path | None, nodes: int, zones: int, **more: Any) -> None:
    """Train a small GPT on a real Kubernetes control plane on this machine."""
    from bamboo_cli import local_cluster
    from bamboo_cli.quickstart import Options, run_quickstart

    cluster = local_cluster.ClusterOptions(keep=keep, nodes=nodes, zones=zones)
    options = Options(cluster=cluster, **more)
    if file is not None:
        options = replace(options, file=file)
    sys.exit(run_quickstart(options, Console()))


def main() -> None:
    """Run the command. Errors of the user print one sentence and exit with 1."""
    try:
        cli(standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except (CommandError, DevclusterError) as error:
        click.echo(f"bamboo: {error}", err=True)
        sys.exit(1)
