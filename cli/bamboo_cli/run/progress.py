"""Pauses and committed steps over time, from events and from what was seen between them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bamboo_cli.job.events import JobEvent
from bamboo_cli.run.model import Span, merged
from bamboo_cli.run.recovery import Pause
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

    @property
    def steps(self) -> list[Seen]:
        """The committed steps at its begin and, with the first commit after it, at its end."""
        end, is_restored = self.span.end, self.left < self.before
        return [
            Seen(self.span.begin, self.before),
            Seen(end, self.before),
            Seen(end, self.left + 1, may_be_fewer=is_restored),
        ]


def standstills(known: Iterable[JobEvent], faults: Sequence[Pause] = ()) -> list[Standstill]:
    """By their begin: the operator's STOP, or the fault that caused it, if it is known."""
    found: list[Standstill] = []
    for event in sorted(known, key=lambda event: event.at):
        if event.reason != EventReason.RESUMED:
            continue
        begins = [pause.began_at for pause in faults if pause.ended_at == event.at]
        span = Span(min([event.at - event.pause_s, *begins]), event.at)
        left = event.number(EventFact.STEP)
        before = left + event.number(EventFact.UNDONE_STEPS)
        found.append(Standstill(span, before, left, is_start=not found and event.epoch == 1))
    return sorted(found, key=lambda stop: stop.span.begin)


def pauses(stops: Iterable[Standstill], whole: Span) -> list[Span]:
    """The standstills as spans that do not overlap, without the job's start."""
    spans = [stop.span for stop in stops if not stop.is_start]
    inside = [s for s in spans if s.begin >= whole.begin and s.end <= whole.end]
    return merged(span for span in inside if span.seconds > 0)


def progress(points: Iterable[Seen], whole: Span) -> list[tuple[float, int]]:
    """(time, committed steps) in the whole span, without late reports of fewer steps."""
    found: list[tuple[float, int]] = []
    for point in sorted(points, key=lambda point: point.at):
        is_inside = whole.begin <= point.at <= whole.end
        if is_inside and (point.may_be_fewer or not found or point.step >= found[-1][1]):
            found.append((point.at, point.step))
    return found
