"""`bamboo report`: a run of a job, as text or as a page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from bamboo_cli.cluster.place import Place, allowed
from bamboo_cli.commands.options import cluster_options
from bamboo_cli.views.terminal.console import make_console


@click.command()
@click.argument("job")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page into this file.")
@click.option(
    "--price",
    "prices",
    multiple=True,
    metavar="POOL=USD",
    help="Price of an hour of a node of this pool or zone, or of all `others`; may be repeated.",
)
@click.option(
    "--prometheus",
    "url",
    metavar="URL",
    help="Read the fleet, the progress and the loss curve from this Prometheus.",
)
@cluster_options
def report(
    job: str, html: Path | None, prices: tuple[str, ...], url: str | None, **where: Any
) -> None:
    """Report what a job did and cost: fleet, losses, pauses, progress, throughput, money.

    It shows what the status, the pods and the events tell, by default of the last hour, and with
    --prometheus the whole run. Prices are those of the operator, which the chart's value `prices`
    sets. The job's annotation bamboo.dev/prices goes before them, as in "spot-a=1.47,others=3",
    and --price before both.

    \b
    Example:
      bamboo report my-model --html run.html --price spot-pool=1.47
    """
    from bamboo_cli.run.cost import prices_of, read_prices, unused, with_prices
    from bamboo_cli.run.from_cluster import from_cluster
    from bamboo_cli.run.prometheus import Prometheus, with_history
    from bamboo_cli.views.output_file import check_file, write_file
    from bamboo_cli.views.page import page
    from bamboo_cli.views.terminal.run_report import text_report

    read_prices(prices)
    check_file("--html", html, "report.html")
    server = Prometheus(url) if url is not None else None
    console, place = make_console(), Place(**where)
    manifest = place.kube.job(place.namespace, job)
    uid = manifest["metadata"]["uid"]
    run = from_cluster(
        manifest,
        allowed(
            lambda: place.kube.events(place.namespace, uid),
            console,
            "Losses and pauses come from the status only, without the right to list events",
        ),
        place.kube.pods(place.namespace, uid),
        place.nodes(console),
        allowed(
            lambda: place.kube.pod_events(place.namespace, "Scheduled"),
            console,
            "Nodes of agents that are gone are not known",
        ),
        time.time(),
        has_history=server is not None,
    )
    if server is not None:
        run = with_history(run, server)
    known = prices_of(manifest, prices)
    run = with_prices(run, prices, manifest)
    if text := unused(run, prices, manifest):
        click.echo(text, err=True)
    if html is None:
        console.print(text_report(run, known))
        return
    write_file(html, page(run, known))
    click.echo(f"The report is {html.resolve()}")
