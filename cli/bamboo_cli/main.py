"""The `bamboo` command, also `kubectl bamboo`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from bamboo_cli import job_commands, screen, terminal
from bamboo_cli.display import make_display
from bamboo_cli.errors import CommandError
from bamboo_core import __version__
from bamboo_core.api.spec import Channel
from bamboo_core.model.counts import counted
from bamboo_core.protection.hazard import PRIOR
from bamboo_devcluster.errors import DevclusterError

_DAY_S = 86400.0
_manifest = click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path),
    required=True,
    help="YAML file with the BambooJob.",
)


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

    console = terminal.console()
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
def quickstart(*, keep: bool, file: Path | None, nodes: int, zones: int, **more: Any) -> None:
    """Train a small GPT on a real Kubernetes control plane on this machine."""
    from bamboo_cli import local_cluster
    from bamboo_cli.quickstart import Options, run_quickstart

    cluster = local_cluster.ClusterOptions(keep=keep, nodes=nodes, zones=zones)
    options = Options(cluster=cluster, **more)
    if file is not None:
        options = replace(options, file=file)
    sys.exit(run_quickstart(options, terminal.console()))


@cli.command()
@_manifest
@click.option(
    "--profile",
    type=click.Path(path_type=Path),
    help="Costs of the layers that `bamboo profile` has measured.",
)
@click.option("--shape", help="Costs of a known model: bert-large, gpt2, gpt2-medium, gpt2-xl.")
@click.option(
    "--tflops",
    type=click.FloatRange(min=0, min_open=True),
    default=50.0,
    show_default=True,
    help="Speed of a device, for costs that are not measured.",
)
@click.option(
    "--hazard",
    type=click.FloatRange(min=0),
    default=PRIOR,
    show_default=True,
    help="Losses per agent-hour to expect.",
)
@click.option(
    "--bandwidth",
    "gbits",
    type=click.FloatRange(min=0, min_open=True),
    help="Network between two agents, in Gbit/s.  [default: spec.transport.bandwidthGbps]",
)
@click.option("--memory", help="Memory of a device, such as 80Gi.  [default: the profile's]")
@click.option(
    "--restart",
    "restart_s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds that a restore from a checkpoint takes.",
)
@click.option(
    "--refill",
    "refill_s",
    type=click.FloatRange(min=0, min_open=True),
    default=180.0,
    show_default=True,
    help="Seconds until another agent has a lost one's layers.",
)
@click.option(
    "--stop",
    "stop_s",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Seconds from a loss until the other agents compute again.",
)
@click.option(
    "--step",
    "step_s",
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds of an undisturbed step.  [default: as the planner schedules it]",
)
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def plan(**given: Any) -> None:
    """Show a job's grid, cut, memory and schedule, and what each mode of redundancy would cost.

    It needs no cluster. A job that does not fit onto its devices is an error. The mode that it
    recommends is the one that redundancy.mode Auto takes with the same figures;
    status.protection.inputs of a job has those that were measured.
    """
    from bamboo_cli.plan import as_json, plan_of
    from bamboo_cli.plan_view import plan_view

    is_json = given.pop("is_json")
    found = plan_of(**given)
    if is_json:
        click.echo(json.dumps(as_json(found), indent=1))
    else:
        terminal.console().print(plan_view(found))
    if found.shortage:
        raise CommandError(f"{found.shortage}.")


@cli.command()
@_manifest
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    default=Path("profile.json"),
    show_default=True,
    help="File to write.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=1800.0,
    show_default=True,
    help="Seconds after which measuring is given up.",
)
def profile(file: Path, out: Path, timeout_s: float) -> None:
    """Measure what each layer of a job costs on this machine, for `bamboo plan --profile`."""
    from bamboo_cli.manifest import read_manifest
    from bamboo_cli.profile import measure

    name, spec = read_manifest(file)
    found = measure(spec, out, timeout_s=timeout_s)
    forward_s = sum(x.forward_s for x in found.layers)
    click.echo(
        f"{name}: {counted(len(found.layers), 'layer')} on {found.device}, {forward_s:.4g} s for"
        f" the forward of a micro-batch -> {out}"
    )


for each in job_commands.COMMANDS:
    cli.add_command(each)


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
