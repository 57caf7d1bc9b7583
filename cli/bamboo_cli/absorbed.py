"""How a loss was absorbed, read from the job's events. Pure.

The operator's events carry the plan's epoch: ``Stopped`` says why agents were stopped, ``Planned``
what they go on with, ``Resumed`` how long after the stop the next step was committed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bamboo_cli.job import Manifest

_EPOCH = re.compile(r"epoch (\d+): (.*)", re.DOTALL)
_PAUSE = re.compile(r"([0-9.]+) s after the stop")


@dataclass(frozen=True)
class Recovery:
    """why: what stopped training; plan: with whom it went on; pause_s: None if it never did."""

    why: str
    plan: str
    pause_s: float | None


@dataclass(frozen=True)
class _Told:
    reason: str
    epoch: int
    text: str


def recovery(pods: Sequence[str], events: Iterable[Manifest]) -> Recovery | None:
    """What followed upon the loss of these agents; None if no event speaks of it."""
    told = sorted(filter(None, map(_read, events)), key=lambda t: t.epoch)
    stops = [t for t in told if t.reason == "Stopped" and any(pod in t.text for pod in pods)]
    if not stops:
        return None
    stop = stops[0]
    resumed = _first(told, "Resumed", stop.epoch)
    plan = _first(told, "Planned", resumed.epoch if resumed else stop.epoch)
    pause = _PAUSE.search(resumed.text) if resumed else None
    return Recovery(
        why=stop.text,
        plan=plan.text if plan else "",
        pause_s=float(pause[1]) if pause else None,
    )


def _first(told: Sequence[_Told], reason: str, epoch: int) -> _Told | None:
    """A further loss may begin another epoch before training goes on: that one's plan counts."""
    return next((t for t in told if t.reason == reason and t.epoch >= epoch), None)


def _read(event: Manifest) -> _Told | None:
    match = _EPOCH.match(event.get("message") or "")
    return _Told(event.get("reason", ""), int(match[1]), match[2]) if match else None
