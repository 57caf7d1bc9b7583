"""The commands about jobs in a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bamboo_cli.place import Place

Command = Callable[..., Any]


def _cluster(command: Command) -> Command:
    """The options that say where the job is."""
    for add in (
        click.option("--context", help="Context in the kubeconfig.  [default: the current one]"),
        click.option(
            "--kubeconfig", type=click.Path(path_type=Path), help="[default: $KUBECONFIG]"
        ),
        click.option("-n", "--namespace", help="Namespace.  [default: the context's]"),
    ):
        command = add(command)
    return command


@click.command()
@click.argument("job")
@_cluster
def explain(job: str, **where: Any) -> None:
    """Say why a job is not running, and what the loss of each zone would do to it now.

    \b
    Example:
      bamboo explain my-model -n team
    """
    from bamboo_cli.explain import explain as explained
    from bamboo_cli.explain_view import explain_view

    console, place = Console(), Place(**where)
    manifest = place.kube.job(place.namespace, job)
    pods = place.kube.pods(place.namespace, manifest["metadata"]["uid"])
    found = explained(manifest, pods, place.nodes(console), time.time())
    console.print(explain_view(found))


COMMANDS = (explain,)
