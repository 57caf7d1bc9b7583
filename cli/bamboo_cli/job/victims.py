"""Which agents `bamboo preempt` takes away."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bamboo_cli.errors import CommandError
from bamboo_cli.job.pods import Seat, seats
from bamboo_cli.job.state import Manifest, read_job
from bamboo_core.controller.view import Slot, pod_name
from bamboo_core.model.counts import counted

_MOST_NAMES = 4


@dataclass(frozen=True)
class Choice:
    """Which agents the user wants to lose."""

    zone: str | None = None  # of all agents there, or ``count`` of them
    agent: str | None = None  # a pod's name, or its end, such as p0-s1
    count: int | None = None


def check(choice: Choice) -> None:
    """CommandError for options that contradict each other."""
    if choice.agent is not None and (choice.zone is not None or choice.count is not None):
        raise CommandError("--agent names one agent; give it without --zone and --count.")


def running(
    manifest: Manifest, pods: Iterable[Manifest], zones: Mapping[str, str]
) -> dict[Slot, Seat]:
    """The running agents. CommandError if there is none, or the job has ended.

    zones: pod -> zone.
    """
    job = read_job(manifest)
    if job.ended is not None:
        raise CommandError(f"the job is {job.ended}: it has no agents to lose; apply another job.")
    found = {s: x for s, x in seats(job.name, pods, zones).items() if x.phase == "Running"}
    if not found:
        raise CommandError(
            f"no agent of the job runs; `bamboo explain {job.name}` says what it waits for."
        )
    return found


def victims(
    job: str, agents: Mapping[Slot, Seat], choice: Choice, dice: random.Random
) -> list[Seat]:
    """The agents to take away: all of a zone, the one that is named, or as many as asked for."""
    if choice.agent is not None:
        return [_named(job, agents, choice.agent)]
    able = [agents[slot] for slot in sorted(agents)]
    if choice.zone is not None:
        known = sorted({seat.zone for seat in able if seat.zone})
        able = [seat for seat in able if seat.zone and seat.zone == choice.zone]
        if not able:
            there = ", ".join(known) or "none is known"
            raise CommandError(
                f'--zone "{choice.zone}": no agent runs there; zones with agents: {there}.'
            )
    count = choice.count or (1 if choice.zone is None else len(able))
    if count > len(able):
        there = f"{counted(len(able), 'agent')} run{'s' if len(able) == 1 else ''} there"
        raise CommandError(f"--count {count} is too many: {there}.")
    return sorted(dice.sample(able, count), key=lambda seat: seat.pod)


def _named(job: str, agents: Mapping[Slot, Seat], name: str) -> Seat:
    for slot, seat in agents.items():
        short = pod_name(job, slot, seat.incarnation).removeprefix(f"{job}-")
        if name in (seat.pod, short, short.rpartition("-")[0]):
            return seat
    pods = sorted(seat.pod for seat in agents.values())
    listed = ", ".join(pods[:_MOST_NAMES]) + (", ..." if len(pods) > _MOST_NAMES else "")
    raise CommandError(f'--agent "{name}": no such agent runs; running are {listed}.')
