"""The commands about jobs in a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from bamboo_cli import terminal
from bamboo_cli.errors import CommandError
from bamboo_cli.place import Place, allowed

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

    console, place = terminal.console(), Place(**where)
    manifest = place.kube.job(place.namespace, job)
    pods = place.kube.pods(place.namespace, manifest["metadata"]["uid"])
    found = explained(manifest, pods, place.nodes(console), time.time())
    console.print(explain_view(found))


@click.command()
@click.argument("job", required=False)
@click.option("-A", "--all-namespaces", is_flag=True, help="The jobs of all namespaces.")
@click.option("-w", "--watch", is_flag=True, help="Refresh every 2 s, until Ctrl-C.")
@_cluster
def top(job: str | None, all_namespaces: bool, watch: bool, **where: Any) -> None:
    """Show jobs, or the agents of JOB: progress, speed, loss, zones, pauses, preemptions.

    Pauses and preemptions are those in the events that the API server still has, by default of the
    last hour.

    \b
    Examples:
      bamboo top -A -w
      bamboo top my-model
    """
    from bamboo_cli.top_screen import Top

    console = terminal.console(has_rows=True)
    screen = Top(Place(**where), job, console, is_everywhere=all_namespaces)
    if watch:
        screen.watch()
    else:
        screen.show()


@click.command()
@click.argument("job")
@click.option("--zone", help="Take the agents of this zone.")
@click.option("--agent", help="Take this agent, such as my-model-p0-s1-i4 or p0-s1.")
@click.option(
    "--count",
    type=click.IntRange(min=1),
    help="Take so many agents, chosen at random.  [default: 1, or all of --zone]",
)
@click.option(
    "--notice",
    is_flag=True,
    help="Give them their grace period to hand over. Without it, they have about a second.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=300.0,
    show_default=True,
    help="Seconds to wait until training goes on.",
)
@_cluster
def preempt(
    job: str,
    zone: str | None,
    agent: str | None,
    count: int | None,
    notice: bool,
    yes: bool,
    timeout_s: float,
    **where: Any,
) -> None:
    """Take agents of a job away, as a preemption would, and say what happened.

    It deletes their pods, for practice on a real cluster. It says beforehand what the planner
    expects, and afterwards how long training stood still. Agents always get SIGTERM, so they count
    as lost with notice. No notice at all comes before the loss of a machine: delete the instance at
    the cloud, or use `bamboo-devcluster node kill`.

    \b
    Examples:
      bamboo preempt my-model --zone europe-west4-a
      bamboo preempt my-model --count 2 --notice --yes
    """
    from bamboo_cli import preempt as by_user
    from bamboo_cli.chaos import Fault
    from bamboo_cli.drill import Drill

    choice = by_user.Choice(zone, agent, count)
    by_user.check(choice)
    fault = Fault.NOTICED if notice else Fault.SILENT
    drill = Drill(Place(**where), job, terminal.console())
    chosen = drill.choose(choice)
    if not yes:
        try:
            is_sure = click.confirm("Delete these pods?")
        except click.Abort as error:
            raise CommandError(
                "no answer, so nothing is deleted; give --yes where nobody can answer."
            ) from error
        if not is_sure:
            raise click.Abort
    drill.run(chosen, fault, timeout_s=timeout_s)


@click.command()
@click.argument("job")
@click.option("--agent", help="Only this agent, such as my-model-p0-s1-i4 or p0-s1.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends.")
@click.option(
    "--tail",
    type=click.IntRange(min=1, max=10_000),
    default=20,
    show_default=True,
    help="Number of newest lines of each agent.",
)
@_cluster
def logs(job: str, agent: str | None, follow: bool, tail: int, **where: Any) -> None:
    """Show the agents' logs by time, each line with its agent, and the agent's step and loss.

    \b
    Examples:
      bamboo logs my-model --tail 5
      bamboo logs my-model --agent p0-s1 -f
    """
    from bamboo_cli.agent_logs import show

    show(Place(**where), job, agent, is_followed=follow, tail=tail)


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
@_cluster
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
    from bamboo_cli.money import prices_of, read_prices, unused
    from bamboo_cli.page import page, text_report
    from bamboo_cli.prometheus import Prometheus, with_history
    from bamboo_cli.record import from_cluster
    from bamboo_cli.report_file import check_file, write_file

    read_prices(prices)
    check_file("--html", html, "report.html")
    server = Prometheus(url) if url is not None else None
    console, place = terminal.console(), Place(**where)
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
    if text := unused(run, prices, manifest):
        click.echo(text, err=True)
    if html is None:
        console.print(text_report(run, known))
        return
    write_file(html, page(run, known))
    click.echo(f"The report is {html.resolve()}")


COMMANDS = (explain, top, preempt, logs, report)
