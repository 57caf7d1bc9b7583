"""`bamboo preempt`: takes agents away as a preemption would, and says what happened. No clock."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bamboo_cli.chaos import Fault, Hit
from bamboo_cli.errors import CommandError
from bamboo_cli.history import Span, merged
from bamboo_cli.job import Job, Manifest, Seat, read_job, seats
from bamboo_cli.recoveries import GONE, JobEvent, read_events, recovery
from bamboo_cli.report import pause_of, plan_text
from bamboo_core.api.events import EventFact, EventReason
from bamboo_core.controller.view import Slot, pod_name
from bamboo_core.model.counts import counted, repeated

_MOST_NAMES = 4
_ABOUT_THE_LOSS = (*GONE, EventReason.AGENT_LEAVING, EventReason.STOPPED)


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


@dataclass(frozen=True)
class Consequence:
    """What the loss of one agent did."""

    agent: str
    is_known: bool  # the operator has said that it is gone or leaves
    pause: Span | None  # Unix time; None: training did not stop for it, or has not resumed
    is_over: bool  # training has resumed, or the agent is gone and training did not stop
    plan: str  # with which training continued


def consequence(agent: str, fault: Fault, events: Sequence[Manifest]) -> Consequence:
    """Read from the events, whose times are all the operator's."""
    about = [e for e in read_events(events) if e.reason in _ABOUT_THE_LOSS and agent in e.agents]
    if not about:
        return Consequence(agent, False, None, False, "")
    hit = Hit(fault, (agent,), 0, min(e.at for e in about))
    pause = pause_of(hit, events)
    if pause is None:
        is_gone = any(e.reason in GONE for e in about)
        return Consequence(agent, True, None, is_gone, "")
    found = recovery(hit.pods, events, lost_at=hit.at_s)
    plan = plan_text(found.plan) if found else ""
    if pause.ended_at is None:
        return Consequence(agent, True, None, False, plan)
    return Consequence(agent, True, Span(pause.began_at, pause.ended_at), True, plan)


def consequences_text(found: Sequence[Consequence], before: Job, events: Sequence[Manifest]) -> str:
    """What happened, in a sentence or two."""
    stops = sorted(
        ((each.pause, each.plan) for each in found if each.pause is not None),
        key=lambda stop: (stop[0].begin, stop[0].end),
    )
    text = "Training did not stop: nothing waited for what was lost."
    if stops:
        seconds = sum(span.seconds for span in merged(span for span, _ in stops))
        plan = max(stops, key=lambda stop: stop[0].end)[1]
        text = f"Training stood still for {seconds:.2f} s"
        text += f" and went on with {plan}." if plan else "."
    restores = [e for e in read_events(events) if _is_restore(e, before)]
    for event in restores:
        step, again = event.number(EventFact.STEP), event.number(EventFact.REPEATED_STEPS)
        text += f" It was restored from step {step}; {repeated(again)}."
    return text


def _is_restore(event: JobEvent, before: Job) -> bool:
    is_newer = event.number(EventFact.ATTEMPT) > before.attempt
    return event.reason == EventReason.RESTORING and is_newer
