"""The events about a job as lines for a screen: all, or the few that matter. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from bamboo_cli.job.state import Manifest
from bamboo_core.api.events import ANNOTATION_PREFIX, EventFact, EventReason, Severity

_MATTER = (
    EventReason.AGENT_LOST,
    EventReason.AGENT_LEAVING,
    EventReason.AGENT_LEFT,
    EventReason.STOPPED,
    EventReason.RESUMED,
    EventReason.RESTORING,
)
"""Losses and pauses. Warnings matter, too."""
_STEP = f"{ANNOTATION_PREFIX}{EventFact.STEP}"


def event_time(event: Manifest) -> str:
    """The time of the last occurrence, RFC 3339."""
    return str(
        event.get("lastTimestamp")
        or (event.get("series") or {}).get("lastObservedTime")
        or event.get("eventTime")
        or event["metadata"]["creationTimestamp"]
    )


def line(event: Manifest) -> str:
    """An event as one line: time of day, reason, message."""
    return _line(event, str(event.get("message", "")))


def headlines(events: Sequence[Manifest], most: int) -> list[str]:
    """At most so many lines, oldest first: all checkpoints together are one, and the others are the
    newest losses, pauses and warnings, before all else. events: oldest first."""
    sealed = [n for n, event in enumerate(events) if _is_seal(event)]
    others = [n for n, event in enumerate(events) if not _is_seal(event)]
    ranked = sorted(others, key=lambda n: (_matters(events[n]), n), reverse=True)
    shown = sorted([*sealed[-1:], *ranked[: most - len(sealed[-1:])]])
    return [_seals(events, sealed) if n in sealed else line(events[n]) for n in shown]


def _is_seal(event: Manifest) -> bool:
    return event.get("reason") == EventReason.CHECKPOINT_SEALED


def _matters(event: Manifest) -> bool:
    return event.get("reason") in _MATTER or event.get("type") == Severity.WARNING


def _seals(events: Sequence[Manifest], sealed: Sequence[int]) -> str:
    newest = events[sealed[-1]]
    step = ((newest.get("metadata") or {}).get("annotations") or {}).get(_STEP)
    of = f" of step {step}" if step is not None else ""
    if len(sealed) == 1:
        return _line(newest, f"the checkpoint{of} is complete")
    return _line(newest, f"{len(sealed)} checkpoints, the newest{of}")


def _line(event: Manifest, text: str) -> str:
    return f"{event_time(event)[11:19]} {event.get('reason', '')}: {text}"
