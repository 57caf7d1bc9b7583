"""`bamboo plan`: a job's plan and its costs, without a cluster."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from bamboo_cli.commands.options import manifest_option
from bamboo_cli.errors import CommandError
from bamboo_cli.views.terminal.console import make_console
from bamboo_core.protection.hazard import PRIOR


@contextmanager
def _without_collector() -> Iterator[None]:
    """Planning makes millions of objects and no cycles: to visit them takes half of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@click.command()
@manifest_option
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
    help="Network between two agents, in Gbit/s. A running job counts with what its agents measure,"
    " if that is less.  [default: spec.transport.bandwidthGbps]",
)
@click.option(
    "--memory",
    help="Memory of a device, such as 80Gi.  [default: the profile's, or that of the GPU that the"
    " manifest asks for]",
)
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
    """Show a job's grid, cut, memory and schedule, what one loss would cost in each way to share
    the work, and what each mode of redundancy would cost.

    It needs no cluster. A job that does not fit onto its devices is an error. The memory of a
    device follows from labels of nodes in the manifest, such as cloud.google.com/gke-accelerator,
    node.kubernetes.io/instance-type or nvidia.com/gpu.product. The mode that it
    recommends is the one that redundancy.mode Auto takes with the same figures;
    status.protection.inputs of a job has those that were measured.
    """
    from bamboo_cli.estimate.plan import as_json, plan_of
    from bamboo_cli.views.terminal.plan import plan_view

    is_json = given.pop("is_json")
    with _without_collector():
        found = plan_of(**given)
        shown = json.dumps(as_json(found), indent=1) if is_json else plan_view(found)
    if is_json:
        click.echo(shown)
    else:
        make_console().print(shown)
    if found.shortage:
        raise CommandError(f"{found.shortage}.")
