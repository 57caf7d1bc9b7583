"""How a loss was absorbed, read from the job's events. Pure.

The operator's events carry the plan's epoch: ``Stopped`` says why agents were stopped, ``Planned``
what they go on with, ``Resumed`` that the next step was committed. Their ``eventTime`` says when.
Who is lost while all are stopped for another reason is named by ``AgentLost`` or ``AgentLeft``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf
from operator import attrgetter, itemgetter

from bamboo_cli.job import Manifest

_GONE = ("AgentLost", "AgentLeft")
_EPOCH = re.compile(r"epoch (\d+): (.*)", re.DOTALL)


@dataclass(frozen=True)
class Recovery:
    """why: what stopped training, or how the loss was told while it was stopped; plan: with whom it
    went on; stopped_at, resumed_at: Unix time in seconds of the stop, which may have begun before
    the loss, and of the first commit after it, None if it never came."""

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


def recovery(
    pods: Sequence[str], events: Iterable[Manifest], *, lost_at: float = -inf
) -> Recovery | None:
    """What followed upon the loss of these agents; None if no event speaks of it.

    lost_at: Unix time in seconds: a stop that was over by then was for something else, and stands
    here only if nothing later stopped for them.
    """
    events = list(events)
    told = sorted(filter(None, map(_read, events)), key=lambda t: t.epoch)
    stops = _stops(pods, told)
    later = (t for t in stops if not _is_over(t, told, lost_at))
    stop = next(later, None) or _loss_while_stopped(pods, told, events) or next(iter(stops), None)
    if stop is None:
        return None
    resumed = _first(told, "Resumed", stop.epoch)
    plan = _first(told, "Planned", resumed.epoch if resumed else stop.epoch)
    return Recovery(
        why=stop.text,
        plan=plan.text if plan else "",
        stopped_at=stop.at,
        resumed_at=resumed.at if resumed else None,
    )


def _stops(pods: Sequence[str], told: Sequence[_Told]) -> list[_Told]:
    """Those that name one of the pods."""
    names = re.compile("|".join(rf"(?<![\w-]){re.escape(pod)}(?!\w)" for pod in pods))
    return [t for t in told if t.reason == "Stopped" and names.search(t.text)]


def _is_over(stop: _Told, told: Sequence[_Told], at: float) -> bool:
    resumed = _first(told, "Resumed", stop.epoch)
    return resumed is not None and resumed.at <= at


def _loss_while_stopped(
    pods: Sequence[str], told: Sequence[_Told], events: Iterable[Manifest]
) -> _Told | None:
    """The stop of that time, in the words of the first event about one of the pods itself."""
    names = tuple(f"{pod}{end}" for pod in pods for end in (": ", " "))
    about = [e for e in events if e.get("reason") in _GONE and e["message"].startswith(names)]
    first = min(
        ((_when(e), e) for e in about if e.get("eventTime")), key=itemgetter(0), default=None
    )
    if first is None:
        return None
    at, event = first
    stop = max(
        (t for t in told if t.reason == "Stopped" and t.at <= at),
        key=attrgetter("epoch"), default=None,
    )  # fmt: skip
    return stop and replace(stop, text=event["message"])


def _first(told: Sequence[_Told], reason: str, epoch: int) -> _Told | None:
    """A further loss may begin another epoch before training goes on: that one's plan counts."""
    return next((t for t in told if t.reason == reason and t.epoch >= epoch), None)


def _read(event: Manifest) -> _Told | None:
    match = _EPOCH.match(event.get("message") or "")
    if match is None or not event.get("eventTime"):
        return None
    return _Told(event.get("reason", ""), int(match[1]), match[2], _when(event))


def _when(event: Manifest) -> float:
    return datetime.fromisoformat(event["eventTime"]).timestamp()
