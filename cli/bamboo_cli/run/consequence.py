"""What the loss of agents did to a job, from the events. Pure; all times are the operator's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bamboo_cli.job.events import GONE, JobEvent, read_events
from bamboo_cli.job.state import Job, Manifest
from bamboo_cli.run.faults import Fault, Hit
from bamboo_cli.run.model import Span, merged
from bamboo_cli.run.recovery import pause_of, plan_text, recovery
from bamboo_core.api.events import EventFact, EventReason
from bamboo_core.model.counts import repeated

_ABOUT_THE_LOSS = (*GONE, EventReason.AGENT_LEAVING, EventReason.STOPPED)


@dataclass(frozen=True)
class Consequence:
    """What the loss of one agent did."""

    agent: str
    is_known: bool  # the operator has said that it is gone or leaves
    pause: Span | None  # Unix time; None: training did not stop for it, or has not resumed
    is_over: bool  # training has resumed, or the agent is gone and training did not stop
    plan: str  # with which training continued


def consequence(agent: str, fault: Fault, events: Sequence[Manifest]) -> Consequence:
    """The consequence of losing this agent, as far as the events tell it."""
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
    """The pause, the plan and the restores, in a sentence or two."""
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
