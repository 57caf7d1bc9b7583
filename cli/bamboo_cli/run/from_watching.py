"""A run as somebody saw it who watched it from its start, and injected its faults. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from bamboo_cli.job.events import read_events
from bamboo_cli.job.snapshot import Snapshot
from bamboo_cli.job.state import Job
from bamboo_cli.run.agents import gone_of
from bamboo_cli.run.faults import Fault, FaultLog, Hit
from bamboo_cli.run.model import NO_ZONE, InjectedLoss, Life, Run, Span
from bamboo_cli.run.progress import Seen, Standstill, pauses, progress, standstills
from bamboo_cli.run.recovery import pause_of
from bamboo_core.controller.view import Slot, parse_pod_name

_RUNNING_PHASES = ("Running", "Recovering", "Complete")


@dataclass(frozen=True)
class Frame:
    """What one look at the cluster showed."""

    at_s: float  # Unix time in seconds
    job: Job
    running: Mapping[Slot, str]  # slot -> its running pod
    zones: Mapping[str, str] = field(default_factory=dict)  # pod -> zone


def frame(snapshot: Snapshot, at_s: float) -> Frame:
    running = {slot: s.pod for slot, s in snapshot.seats.items() if s.phase == "Running"}
    zones = {s.pod: s.zone for s in snapshot.seats.values()}
    return Frame(at_s, snapshot.job, running, zones)


def from_frames(
    frames: Sequence[Frame],
    log: FaultLog,
    batch: int,
    undisturbed_loss: Sequence[tuple[int, float]] = (),
) -> Run:
    """The run from the start of training on.

    frames: in order, at least one; batch: samples in a step; undisturbed_loss: of the run to
    compare with.
    """
    began = (f.at_s for f in frames if f.job.phase in _RUNNING_PHASES)
    span = Span(next(began, frames[0].at_s), frames[-1].at_s)
    job = frames[-1].job
    known = sorted(read_events(log.events), key=lambda event: event.at)
    faults = [pause_of(hit, log.events) for hit in log.hits]
    zones = {pod: zone for f in frames for pod, zone in f.zones.items() if zone}
    stops = standstills(known, zones, [pause for pause in faults if pause is not None])
    return Run(
        job,
        batch,
        span,
        _lives(frames, log.hits, zones, span),
        gone_of(known, {pod: (zone, "") for pod, zone in zones.items()}),
        pauses(stops, span),
        progress(_seen(frames, stops, span), span),
        loss_curve(frames),
        injected=_injected(log.hits, job.name),
        validation=_validation_curve(frames),
        undisturbed_loss=undisturbed_loss,
    )


def loss_curve(frames: Iterable[Frame]) -> list[tuple[int, float]]:
    """(committed steps, training loss), each once."""
    found: list[tuple[int, float]] = []
    for job in (f.job for f in frames):
        if job.loss is not None and (not found or found[-1] != (job.step, job.loss)):
            found.append((job.step, job.loss))
    return found


def _validation_curve(frames: Iterable[Frame]) -> list[tuple[int, float]]:
    """(step at which it was first seen, validation loss), without repetitions."""
    found: list[tuple[int, float]] = []
    for job in (f.job for f in frames):
        value = job.validation_loss
        if value is not None and (not found or found[-1][1] != value):
            found.append((job.step, value))
    return found


def _lives(
    frames: Sequence[Frame], hits: Sequence[Hit], zones: Mapping[str, str], whole: Span
) -> list[Life]:
    """When each pod ran. One that a fault killed still looks alive for a while, so its span ends
    with the fault."""
    killed = {pod: h.at_s for h in hits if h.fault is not Fault.NOTICED for pod in h.pods}
    spans: dict[str, Span] = {}
    for now, following in pairwise(frames):
        for pod in now.running.values():
            end = min(following.at_s, killed.get(pod, inf))
            begin = max(now.at_s, whole.begin)
            if end > begin:
                spans[pod] = Span(spans[pod].begin if pod in spans else begin, end)
    return [Life(pod, zones.get(pod, NO_ZONE), "", span) for pod, span in spans.items()]


def _injected(hits: Iterable[Hit], job: str) -> list[InjectedLoss]:
    slots = [(hit, parse_pod_name(job, pod)) for hit in hits for pod in hit.pods]
    return [
        InjectedLoss(hit.at_s, hit.step, parsed[0], hit.fault is Fault.NOTICED)
        for hit, parsed in slots
        if parsed is not None
    ]


def _seen(frames: Sequence[Frame], stops: Sequence[Standstill], whole: Span) -> list[Seen]:
    """The committed steps by status and events.

    The operator writes the status every few seconds, so it gives the steps between the pauses; the
    events give them exactly before and after each pause.
    """
    seen = [(f.at_s, f.job.step) for f in frames if f.at_s >= whole.begin]
    changes = [seen[0], *(b for a, b in pairwise(seen) if b[1] > a[1])] if seen else []
    still = [stop.span for stop in stops if not stop.is_start]
    between = [
        Seen(at, step)
        for at, step in changes
        if not any(span.begin <= at <= span.end for span in still)
    ]
    return between + [seen for stop in stops for seen in stop.steps]
