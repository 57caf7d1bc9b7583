"""`bamboo preempt`: deletes pods of a job, then waits until it trains again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from bamboo_cli.cluster.place import Place
from bamboo_cli.commands.options import cluster_options
from bamboo_cli.errors import CommandError
from bamboo_cli.job.pods import Seat, agent_zones
from bamboo_cli.job.state import Job, obstacle, read_job
from bamboo_cli.job.victims import Choice, check, running, victims
from bamboo_cli.run.faults import Fault
from bamboo_cli.views.terminal.console import make_console
from bamboo_core.controller.view import Slot

if TYPE_CHECKING:
    from bamboo_cli.run.consequence import Consequence

_POLL_S = 0.7


@dataclass(frozen=True)
class Chosen:
    """The agents that are to go, and the job before."""

    job: Job
    seats: Sequence[Seat]
    uids: dict[str, str]  # pod -> UID


@dataclass
class Preemption:
    """One preemption by the user. ``now`` is monotonic, in seconds."""

    place: Place
    name: str
    console: Console
    now: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep

    def choose(self, choice: Choice) -> Chosen:
        """Choose the agents, and say what their loss would do."""
        from bamboo_cli.job.what_if import held, loss
        from bamboo_cli.views.terminal.diagnosis import then  # the planner takes long to import

        kube, namespace = self.place.kube, self.place.namespace
        manifest = kube.job(namespace, self.name)
        pods = kube.pods(namespace, manifest["metadata"]["uid"])
        zones = agent_zones(pods, self.place.nodes(self.console))
        agents: dict[Slot, Seat] = running(manifest, pods, zones)
        chosen = victims(self.name, agents, choice, random.Random())
        for seat in chosen:
            where = f"zone {seat.zone or 'unknown'}, node {seat.node}"
            self._say(f"{seat.pod} ({where})")
        training = held(manifest)
        if training is not None:
            self.console.print(then(loss(training, {seat.pod for seat in chosen}, zones)))
        uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}
        return Chosen(read_job(manifest), chosen, uids)

    def run(self, chosen: Chosen, fault: Fault, *, timeout_s: float) -> None:
        """Delete the pods and print what happened. CommandError after timeout_s."""
        names = []
        for seat in chosen.seats:
            grace_s = None if fault is Fault.NOTICED else 0
            uid = chosen.uids[seat.pod]
            if self.place.kube.delete_pod(self.place.namespace, seat.pod, uid, grace_s):
                names.append(seat.pod)
                self._say(f"deleted {seat.pod}")
            else:
                self._say(f"{seat.pod} was gone already")
        if names:
            self._wait(chosen.job, names, fault, timeout_s)

    def _wait(self, before: Job, names: Sequence[str], fault: Fault, timeout_s: float) -> None:
        """Until training goes on without the agents and has committed a step, or the job ends."""
        from bamboo_cli.run.consequence import consequence, consequences_text

        kube, namespace = self.place.kube, self.place.namespace
        deadline = self.now() + timeout_s
        known_at: int | None = None  # the job's step when the operator knew of all
        while True:
            job = read_job(kube.job(namespace, self.name))
            events = kube.events(namespace, before.uid)
            found = [consequence(name, fault, events) for name in names]
            if all(map(attrgetter("is_known"), found)) and known_at is None:
                known_at = job.step
            has_advanced = known_at is not None and job.step != known_at
            is_over = all(map(attrgetter("is_over"), found))
            if job.ended is not None and not is_over:
                self._say(f"The job is {job.ended}; it ended before all of them were gone.")
                return
            if is_over and (has_advanced or job.ended is not None):
                self._say(consequences_text(found, before, events))
                return
            if self.now() > deadline:
                raise CommandError(_too_late(job, found, timeout_s))
            self.pause(_POLL_S)

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def _too_late(job: Job, found: Sequence[Consequence], timeout_s: float) -> str:
    unknown = [each.agent for each in found if not each.is_known]
    staying = [each.agent for each in found if each.is_known and not each.is_over]
    text = f"the job is {job.phase} at step {job.step}, {timeout_s:g} s after the loss"
    if unknown:
        text += f", and no event tells that {', '.join(unknown)} left"
    if staying:
        text += f", and training does not go on without {', '.join(staying)} yet"
    return f"{text}{obstacle(job)}; `bamboo explain {job.name}` says more."


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
@cluster_options
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
    choice = Choice(zone, agent, count)
    check(choice)
    fault = Fault.NOTICED if notice else Fault.SILENT
    preemption = Preemption(Place(**where), job, make_console())
    chosen = preemption.choose(choice)
    if not yes:
        try:
            is_sure = click.confirm("Delete these pods?")
        except click.Abort as error:
            raise CommandError(
                "no answer, so nothing is deleted; give --yes where nobody can answer."
            ) from error
        if not is_sure:
            raise click.Abort
    preemption.run(chosen, fault, timeout_s=timeout_s)
