"""The history of a run that `picture` draws: agents, progress and pauses over time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from bamboo_cli.chaos import Fault, Hit
from bamboo_cli.job import Job
from bamboo_cli.recoveries import read_events
from bamboo_cli.report import RunRecord, pause_of
from bamboo_cli.screen import Snapshot
from bamboo_core.api.events import EventFact, EventReason
from bamboo_core.controller.view import Slot, parse_pod_name

_RUNNING_PHASES = ("Running", "Recovering", "Complete")


@dataclass(frozen=True)
class Frame:
    """What one look at the cluster showed."""

    at_s: float  # Unix time in seconds
    job: Job
    running: Mapping[Slot, str]  # slot -> its running pod
    zones: Mapping[str, str] = field(default_factory=dict)  # pod -> zone


@dataclass(frozen=True)
class Span:
    """An interval of time, in seconds since training began."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True)
class Loss:
    """An agent that a fault took away."""

    at_s: float  # since training began
    step: int
    slot: Slot
    noticed: bool


@dataclass(frozen=True)
class History:
    """A run, in seconds since training began."""

    job: Job
    seconds: float
    agents: Mapping[Slot, Sequence[Span]]  # when an agent of the slot ran
    losses: Sequence[Loss]
    pauses: Sequence[Span]  # when nothing was committed because of a change
    progress: Sequence[tuple[float, int]]  # (time, committed steps)
    loss: Sequence[tuple[int, float]]  # (committed steps, training loss)
    undisturbed_loss: Sequence[tuple[int, float]] = ()  # of the run to compare with


@dataclass(frozen=True)
class _Standstill:
    """A pause. A restore in it has undone steps: fewer than before are left."""

    span: Span
    before: int  # steps committed before it
    left: int  # of them when training goes on


def frame(snapshot: Snapshot, at_s: float) -> Frame:
    running = {slot: s.pod for slot, s in snapshot.seats.items() if s.phase == "Running"}
    zones = {s.pod: s.zone for s in snapshot.seats.values()}
    return Frame(at_s, snapshot.job, running, zones)


def history(
    frames: Sequence[Frame], record: RunRecord, undisturbed: Sequence[tuple[int, float]] = ()
) -> History:
    """frames: in order; at least one."""
    began = (f.at_s for f in frames if f.job.phase in _RUNNING_PHASES)
    start = next(began, frames[0].at_s)
    job = frames[-1].job
    end = frames[-1].at_s - start
    stops = _standstills(record, start, end)
    return History(
        job=job,
        seconds=end,
        agents=_agents(frames, record.hits, start),
        losses=_losses(record.hits, job.name, start),
        pauses=merged(stop.span for stop in stops),
        progress=_progress(frames, stops, start),
        loss=[(f.job.step, f.job.loss) for f in frames if f.job.loss is not None],
        undisturbed_loss=undisturbed,
    )


def _agents(
    frames: Sequence[Frame], hits: Sequence[Hit], start: float
) -> dict[Slot, Sequence[Span]]:
    found: dict[Slot, Sequence[Span]] = {}
    for (slot, _), span in lives(frames, hits, start).items():
        found[slot] = [*found.get(slot, ()), span]
    return found


def lives(
    frames: Sequence[Frame], hits: Sequence[Hit], start: float
) -> dict[tuple[Slot, str], Span]:
    """(slot, pod) -> when it ran, in seconds since ``start``.

    A pod that a fault killed still looks alive for a while: its span ends with the fault.
    """
    killed = {pod: h.at_s for h in hits if h.fault is not Fault.NOTICED for pod in h.pods}
    spans: dict[tuple[Slot, str], Span] = {}
    for now, following in pairwise(frames):
        for slot, pod in now.running.items():
            end = min(following.at_s, killed.get(pod, inf)) - start
            begin = max(now.at_s - start, 0.0)
            if end > begin:
                known = spans.get((slot, pod))
                spans[slot, pod] = Span(known.begin if known else begin, end)
    return spans


def _losses(hits: Sequence[Hit], job: str, start: float) -> list[Loss]:
    slots = [(hit, parse_pod_name(job, pod)) for hit in hits for pod in hit.pods]
    return [
        Loss(hit.at_s - start, hit.step, parsed[0], hit.fault is Fault.NOTICED)
        for hit, parsed in slots
        if parsed is not None
    ]


def _standstills(record: RunRecord, start: float, end: float) -> list[_Standstill]:
    """By their begin: the stop, or the fault that caused it."""
    found = []
    faults = [pause_of(hit, record.events) for hit in record.hits]
    for event in read_events(record.events):
        if event.reason != EventReason.RESUMED:
            continue
        paused_s = float(event.facts.get(EventFact.PAUSE_S, 0.0))
        begins = [p.began_at for p in faults if p is not None and p.ended_at == event.at]
        span = Span(min([event.at - paused_s, *begins]) - start, event.at - start)
        if span.begin > 0 and span.end <= end:
            left = event.number(EventFact.STEP)
            found.append(_Standstill(span, left + event.number(EventFact.UNDONE_STEPS), left))
    return sorted(found, key=lambda stop: stop.span.begin)


def merged(spans: Iterable[Span]) -> list[Span]:
    """Overlapping spans as one; the spans come sorted by their begin."""
    found: list[Span] = []
    for span in spans:
        if found and span.begin <= found[-1].end:
            found[-1] = Span(found[-1].begin, max(found[-1].end, span.end))
        else:
            found.append(span)
    return found


def _progress(
    frames: Sequence[Frame], stops: Sequence[_Standstill], start: float
) -> list[tuple[float, int]]:
    """The status is written every few seconds, so it gives the steps between the pauses; the events
    give them exactly before and after each pause. Only a restore takes steps back."""
    seen = [(f.at_s - start, f.job.step) for f in frames if f.at_s >= start]
    changes = [seen[0], *(b for a, b in pairwise(seen) if b[1] > a[1])] if seen else []
    points = [
        (at, step, False)
        for at, step in changes
        if not any(stop.span.begin <= at <= stop.span.end for stop in stops)
    ]
    for stop in stops:
        begin, end = stop.span.begin, stop.span.end
        points += [(begin, stop.before, False), (end, stop.before, False)]
        points.append((end, stop.left + 1, stop.left < stop.before))
    found: list[tuple[float, int]] = []
    for at, step, is_restored in sorted(points, key=lambda point: point[0]):
        if is_restored or not found or step >= found[-1][1]:
            found.append((at, step))
    return found
