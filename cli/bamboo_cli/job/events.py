"""Reads the operator's events about a job. Pure.

Only an event's facts (see `bamboo_core.api.events`) and its ``eventTime`` count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from bamboo_cli.job.state import Manifest
from bamboo_core.api.events import ANNOTATION_PREFIX, EventFact, EventReason, RestoreCause

GONE = (EventReason.AGENT_LOST, EventReason.AGENT_LEFT, EventReason.AGENTS_RELEASED)


@dataclass(frozen=True)
class JobEvent:
    """An event of the operator about a job."""

    reason: str
    at: float  # Unix time in seconds
    facts: Mapping[str, str]

    @property
    def agents(self) -> frozenset[str]:
        return frozenset(filter(None, self.facts.get(EventFact.AGENTS, "").split(",")))

    @property
    def epoch(self) -> int:
        """-1 if the event belongs to no plan."""
        return self.number(EventFact.EPOCH, -1)

    @property
    def pause_s(self) -> float:
        """Seconds of the pause that the event ends; 0 if it ends none."""
        return float(self.facts.get(EventFact.PAUSE_S, 0.0))

    def number(self, fact: EventFact, default: int = 0) -> int:
        return int(self.facts.get(fact, default))


_FAILURES = (EventReason.WORKER_FAILED, EventReason.AGENT_REFUSED)


def failed_by_themselves(known: Iterable[JobEvent]) -> frozenset[str]:
    """Agents that were not taken away, whatever an AgentLost says of them later."""
    return frozenset[str]().union(*(e.agents for e in known if e.reason in _FAILURES))


def is_resume(event: JobEvent) -> bool:
    """Whether a suspended job goes on, with new agents."""
    cause = event.facts.get(EventFact.CAUSE)
    return event.reason == EventReason.RESTORING and cause == RestoreCause.RESUMED


def read_events(events: Iterable[Manifest]) -> list[JobEvent]:
    """The events that say when they happened."""
    return [_read(event) for event in events if event.get("eventTime")]


def _read(event: Manifest) -> JobEvent:
    annotations = (event.get("metadata") or {}).get("annotations") or {}
    return JobEvent(
        reason=event.get("reason", ""),
        at=datetime.fromisoformat(event["eventTime"]).timestamp(),
        facts={
            key.removeprefix(ANNOTATION_PREFIX): text
            for key, text in annotations.items()
            if key.startswith(ANNOTATION_PREFIX)
        },
    )
