"""`bamboo logs`: the lines of a job's agents by time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import click

from bamboo_cli.cluster.place import Place
from bamboo_cli.commands.options import cluster_options
from bamboo_cli.errors import CommandError
from bamboo_cli.job.state import Manifest, read_job
from bamboo_core.controller.view import parse_pod_name


def show(
    place: Place,
    name: str,
    agent: str | None,
    *,
    is_followed: bool,
    tail: int,
    write: Callable[[str], None] = click.echo,
    say: Callable[[str], None] | None = None,
) -> None:
    """Print the lines. CommandError if no such agent has run yet.

    say: is told what is left out (default: on standard error).
    """
    from bamboo_cli.cluster.log_lines import Writer
    from bamboo_cli.cluster.log_streams import Streams, newest

    say = say or partial(click.echo, err=True)
    kube, namespace = place.kube, place.namespace
    manifest = kube.job(namespace, name)
    uid = manifest["metadata"]["uid"]
    pods = kube.pods(namespace, uid)
    if not pods and read_job(manifest).ended is not None:
        raise CommandError(
            f"no pod of {name} is left, so its logs are gone; `bamboo report {name}` and"
            f" `kubectl describe bj {name}` say how it ended."
        )
    found = started(name, pods, agent)
    writer = Writer(name)
    if not is_followed:
        for line in newest(kube, namespace, sorted(found), tail, say):
            write(writer.write(line))
        return

    seen: set[str] = set()

    def running() -> tuple[list[str], bool]:
        """Agents that run, and at first those that have ended, too."""
        job = read_job(kube.job(namespace, name))
        pods = started(name, kube.pods(namespace, uid), agent, is_needed=False)
        new = [pod for pod, phase in pods.items() if phase == "Running" or pod not in seen]
        seen.update(pods)
        return new, job.ended is not None

    for line in Streams(kube, namespace, running, tail).lines():
        write(writer.write(line))


def started(
    job: str, pods: Iterable[Manifest], agent: str | None, *, is_needed: bool = True
) -> dict[str, str]:
    """Agents whose pod has started -> phase; agent: one of them, by name or seat (``p0-s1``)."""
    phases = {
        pod["metadata"]["name"]: (pod.get("status") or {}).get("phase", "Pending") for pod in pods
    }
    every = {
        name: phase
        for name, phase in phases.items()
        if phase != "Pending" and parse_pod_name(job, name) is not None
    }
    found = {name: phase for name, phase in every.items() if _is_named(job, name, agent)}
    if found or not is_needed:
        return found
    if agent is None or not every:
        raise CommandError(
            f"no agent of the job has started; `bamboo explain {job}` says what it waits for."
        )
    listed = ", ".join(sorted(every)[:4]) + (", ..." if len(every) > 4 else "")
    raise CommandError(f'--agent "{agent}": no such agent has started; there are {listed}.')


def _is_named(job: str, pod: str, agent: str | None) -> bool:
    short = pod.removeprefix(f"{job}-")
    return agent is None or agent in (pod, short, short.rpartition("-")[0])


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
@cluster_options
def logs(job: str, agent: str | None, follow: bool, tail: int, **where: Any) -> None:
    """Show the agents' logs by time, each line with its agent, and the agent's step and loss.

    \b
    Examples:
      bamboo logs my-model --tail 5
      bamboo logs my-model --agent p0-s1 -f
    """
    show(Place(**where), job, agent, is_followed=follow, tail=tail)
