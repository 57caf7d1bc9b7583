"""Carries out `bamboo preempt`: deletes pods, then waits until the job trains again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from rich.console import Console

from bamboo_cli.chaos import Fault
from bamboo_cli.errors import CommandError
from bamboo_cli.explain import agent_zones
from bamboo_cli.explain_view import then
from bamboo_cli.job import Job, Seat, read_job
from bamboo_cli.place import Place
from bamboo_cli.preempt import (
    Choice,
    Consequence,
    consequence,
    consequences_text,
    running,
    victims,
)
from bamboo_cli.watch import obstacle
from bamboo_cli.what_if import held, loss
from bamboo_core.controller.view import Slot

_POLL_S = 0.7


@dataclass(frozen=True)
class Chosen:
    """The agents that are to go, and the job before."""

    job: Job
    seats: Sequence[Seat]
    uids: dict[str, str]  # pod -> UID


@dataclass
class Drill:
    """One preemption by the user. ``now`` is monotonic, in seconds."""

    place: Place
    name: str
    console: Console
    now: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep

    def choose(self, choice: Choice) -> Chosen:
        """Choose the agents, and say what their loss would do."""
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
