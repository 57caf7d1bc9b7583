"""`bamboo explain`: why a job does not run, and what a loss would do."""

from __future__ import annotations

import time
from typing import Any

import click

from bamboo_cli.cluster.place import Place
from bamboo_cli.commands.options import cluster_options
from bamboo_cli.views.terminal.console import make_console


@click.command()
@click.argument("job")
@cluster_options
def explain(job: str, **where: Any) -> None:
    """Say why a job is not running, and what the loss of each zone would do to it now.

    \b
    Example:
      bamboo explain my-model -n team
    """
    from bamboo_cli.job.diagnosis import explain as explained
    from bamboo_cli.views.terminal.diagnosis import explain_view

    console, place = make_console(), Place(**where)
    manifest = place.kube.job(place.namespace, job)
    pods = place.kube.pods(place.namespace, manifest["metadata"]["uid"])
    found = explained(manifest, pods, place.nodes(console), time.time())
    console.print(explain_view(found))
