"""`bamboo top`: jobs, or the agents of a job, once or again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console, RenderableType

from bamboo_cli.cluster.place import Place, allowed
from bamboo_cli.commands.options import cluster_options
from bamboo_cli.errors import CommandError
from bamboo_cli.job.state import Manifest
from bamboo_cli.views.terminal.console import make_console

_EVERY_S = 2.0
_NO_EVENTS = (
    "The last preemption, and the pauses by agent, are not known without the right to list events"
)


@dataclass
class Top:
    """The screen. ``clock`` gives Unix time in seconds."""

    place: Place
    job: str | None  # None: all jobs
    console: Console
    is_everywhere: bool = False
    clock: Callable[[], float] = time.time
    pause: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        """CommandError for options that contradict each other."""
        if self.job is not None and self.is_everywhere:
            raise CommandError("-A shows the jobs of all namespaces; give it without a job.")

    def show(self) -> None:
        """Print it once."""
        self.console.print(self.look())

    def watch(self) -> None:
        """Redraw until Ctrl-C; without a terminal, print again and again."""
        from rich.live import Live

        if not self.console.is_terminal:
            while True:
                self.show()
                self.pause(_EVERY_S)
        with Live(self.look(), console=self.console, auto_refresh=False) as live:
            while True:
                self.pause(_EVERY_S)
                live.update(self.look(), refresh=True)

    def look(self) -> RenderableType:
        """The cluster now."""
        from bamboo_cli.job.listing import agent_rows, job_row
        from bamboo_cli.views.terminal.jobs_table import agents_view, jobs_view

        kube, namespace, now = self.place.kube, self.place.namespace, self.clock()
        if self.job is None:
            where = None if self.is_everywhere else namespace
            events = _by_job(allowed(lambda: kube.job_events(where), self.console, _NO_EVENTS))
            rows = [job_row(x, events.get(x["metadata"]["uid"], []), now) for x in kube.jobs(where)]
            return jobs_view(rows, now, has_namespaces=self.is_everywhere)
        manifest = kube.job(namespace, self.job)
        uid = manifest["metadata"]["uid"]
        about = allowed(lambda: kube.events(namespace, uid), self.console, _NO_EVENTS)
        nodes = self.place.nodes(self.console)
        agents = agent_rows(manifest, kube.pods(namespace, uid), nodes, about, now)
        return agents_view(job_row(manifest, about, now), agents, now)


def _by_job(events: list[Manifest]) -> Mapping[str, list[Manifest]]:
    """UID of a job -> its events."""
    found: dict[str, list[Manifest]] = {}
    for event in events:
        found.setdefault((event.get("involvedObject") or {}).get("uid", ""), []).append(event)
    return found


@click.command()
@click.argument("job", required=False)
@click.option("-A", "--all-namespaces", is_flag=True, help="The jobs of all namespaces.")
@click.option("-w", "--watch", is_flag=True, help="Refresh every 2 s, until Ctrl-C.")
@cluster_options
def top(job: str | None, all_namespaces: bool, watch: bool, **where: Any) -> None:
    """Show jobs, or the agents of JOB: progress, speed, loss, zones, pauses, preemptions.

    Pauses and preemptions are those in the events that the API server still has, by default of the
    last hour.

    \b
    Examples:
      bamboo top -A -w
      bamboo top my-model
    """
    console = make_console(has_rows=True)
    screen = Top(Place(**where), job, console, is_everywhere=all_namespaces)
    if watch:
        screen.watch()
    else:
        screen.show()
