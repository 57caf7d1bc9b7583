"""How a loss was absorbed, read from the job's events. Pure.

The operator's events carry the plan's epoch: ``Stopped`` says why agents were stopped, ``Planned``
what they go on with, ``Resumed`` that the next step was committed. Their ``eventTime`` says when.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from bamboo_cli.job import Manifest

_EPOCH = re.compile(r"epoch (\d+): (.*)", re.DOTALL)


@dataclass(frozen=True)
class Recovery:
    """why: what stopped training; plan: with whom it went on; stopped_at, resumed_at: Unix time of
    the operator's STOP and of the first commit after it, in seconds; None if it never came."""

    why: str
    plan: str
    stopped_at: float
    resumed_at: float | None


@dataclass(frozen=True)
class _Told:
    reason: str
    epoch: int
    text: str
    at: float


def recovery(pods: Sequence[str], events: Iterable[Manifest]) -> Recovery | None:
    """What followed upon the loss of these agents; None if no event speaks of it."""
    told = sorted(filter(None, map(_read, events)), key=lambda t: t.epoch)
    stops = [t for t in told if t.reason == "Stopped" and any(pod in t.text for pod in pods)]
    if not stops:
        return None
    stop = stops[0]
    resumed = _first(told, "Resumed", stop.epoch)
    plan = _first(told, "Planned", resumed.epoch if resumed else stop.epoch)
    return Recovery(
        why=stop.text,
        plan=plan.text if plan else "",
        stopped_at=stop.at,
        resumed_at=resumed.at if resumed else None,
    )


def _first(told: Sequence[_Told], reason: str, epoch: int) -> _Told | None:
    """A further loss may begin another epoch before training goes on: that one's plan counts."""
    return next((t for t in told if t.reason == reason and t.epoch >= epoch), None)


def _read(event: Manifest) -> _Told | None:
    match, at = _EPOCH.match(event.get("message") or ""), event.get("eventTime")
    if match is None or at is None:
        return None
    when = datetime.fromisoformat(at).timestamp()
    return _Told(event.get("reason", ""), int(match[1]), match[2], when)
