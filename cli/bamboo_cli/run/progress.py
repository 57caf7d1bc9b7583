"""Pauses and committed steps over time, from events and from what was seen between them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from bamboo_cli.job.events import JobEvent
from bamboo_cli.run.model import Pause, Span
from bamboo_cli.run.pauses import Zones, before, during, guess, why
from bamboo_cli.run.recovery import FaultPause
from bamboo_core.api.events import EventFact, EventReason


@dataclass(frozen=True)
class Seen:
    """So many steps were committed at this time."""

    at: float
    step: int
    may_be_fewer: bool = False  # than before: a restore takes steps back, a late report does not


@dataclass(frozen=True)
class Standstill:
    """A time without commits. A restore in it has undone steps: fewer than before are left."""

    span: Span
    before: int  # steps committed before it
    left: int  # of them when training goes on
    is_start: bool  # of the job, which is no pause
    cause: str = ""
    why: str = ""

    @property
    def steps(self) -> list[Seen]:
        """The committed steps at its begin and, with the first commit after it, at its end."""
        end, is_restored = self.span.end, self.left < self.before
        return [
            Seen(self.span.begin, self.before),
            Seen(end, self.before),
            Seen(end, self.left + 1, may_be_fewer=is_restored),
        ]


def standstills(
    known: Iterable[JobEvent], zones: Zones, faults: Sequence[FaultPause] = ()
) -> list[Standstill]:
    """By their begin: the operator's STOP, or the fault that caused it, if it is known."""
    found: list[Standstill] = []
    every, after = sorted(known, key=lambda event: event.at), -inf
    for event in every:
        if event.reason != EventReason.RESUMED:
            continue
        stopped_at = event.at - event.pause_s
        begins = [pause.began_at for pause in faults if pause.ended_at == event.at]
        left, cause = event.number(EventFact.STEP), event.facts.get(EventFact.CAUSE, "")
        inside = during(every, stopped_at, event.at, after)
        found.append(
            Standstill(
                Span(min([stopped_at, *begins]), event.at),
                left + event.number(EventFact.UNDONE_STEPS),
                left,
                is_start=not found and event.epoch == 1 and not cause,
                cause=cause,
                why=why(cause, inside, before(every, stopped_at), zones),
            )
        )
        after = event.at
    return sorted(found, key=lambda stop: stop.span.begin)


def pauses(stops: Iterable[Standstill], whole: Span) -> list[Pause]:
    """The standstills without the job's start. One begins when the one before is over, as the
    operator counts them."""
    found: list[Pause] = []
    for stop in stops:
        begin, end = stop.span.begin, stop.span.end
        if stop.is_start or begin < whole.begin or end > whole.end:
            continue
        begin = max([begin, *(pause.end for pause in found[-1:])])
        found.append(Pause(begin, max(begin, end), stop.cause, stop.why))
    return found


def lasting(known: Sequence[JobEvent], zones: Zones, whole: Span) -> list[Pause]:
    """The pause that is not over, if there is one. known: by time."""
    ends = (event.at for event in known if event.reason == EventReason.RESUMED)
    over = max(ends, default=-inf)
    begins = [e.at for e in known if e.reason == EventReason.STOPPED and e.at > over]
    if not begins or not whole.begin <= begins[0] < whole.end:
        return []
    inside = during(known, begins[0], whole.end, over)
    cause = guess(inside)
    text = why(cause, inside, before(known, begins[0]), zones)
    return [Pause(begins[0], whole.end, cause, text, is_over=False)]


def progress(points: Iterable[Seen], whole: Span) -> list[tuple[float, int]]:
    """(time, committed steps) in the whole span, without late reports of fewer steps."""
    found: list[tuple[float, int]] = []
    for point in sorted(points, key=lambda point: point.at):
        is_inside = whole.begin <= point.at <= whole.end
        if is_inside and (point.may_be_fewer or not found or point.step >= found[-1][1]):
            found.append((point.at, point.step))
    return found
