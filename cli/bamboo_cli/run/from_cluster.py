"""A run as the cluster's objects and events tell it. Pure.

An API server keeps events for an hour, so the beginning of a long run may be missing; the notes of
the run say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bamboo_cli.job.events import JobEvent, read_events
from bamboo_cli.job.state import Job, Manifest, instant, read_job
from bamboo_cli.run.agents import began_at, gone_of, lives_of, places_of
from bamboo_cli.run.model import NO_ZONE, SOON_S, Account, Run, Span, clock
from bamboo_cli.run.progress import (
    Seen,
    Standstill,
    lasting,
    pauses,
    progress,
    standstills,
)
from bamboo_core.api.events import EventFact, EventReason
from bamboo_core.api.reasons import ConditionType, JobPhase


def from_cluster(
    manifest: Manifest,
    events: Iterable[Manifest],
    pods: Sequence[Manifest],
    nodes: Sequence[Manifest],
    scheduled: Sequence[Manifest],
    now: float,
    *,
    has_history: bool = False,
) -> Run:
    """The run, as far as the API server still knows it.

    scheduled: events ``Scheduled`` about pods.
    has_history: a Prometheus tells the rest, so the whole run is shown.
    """
    job, status = read_job(manifest, now), manifest.get("status") or {}
    known = sorted(read_events(events), key=lambda event: event.at)
    begin, notes = _beginning(manifest, known, now, has_history=has_history)
    end = _end(status, known, now)
    span = Span(min(begin, end), end)
    places = places_of(job.name, pods, nodes, scheduled)
    zones = {agent: zone for agent, (zone, _) in places.items()}
    stops = standstills(known, zones)
    halts = pauses(stops, span)
    if job.phase in (JobPhase.RECOVERING, JobPhase.FAILED):
        halts += lasting(known, zones, span)
    found = lives_of(job.name, known, pods, places, span, began_at(job.name, scheduled))
    if any(life.zone == NO_ZONE for life in found) and not has_history:
        gone = "their pods and nodes are gone"
        unseen = "the right to list nodes is missing, or there are no nodes"
        notes.append(f"The zones of some agents are not known, since {gone if nodes else unseen}.")
    loss = [] if job.loss is None else [(job.step, job.loss)]
    if job.loss is not None and not has_history:
        notes.append(
            "The status keeps only the newest loss, so there is no loss curve. Give --prometheus"
            " URL if a Prometheus scrapes the operator."
        )
    return Run(
        job,
        int((manifest["spec"].get("training") or {}).get("globalBatchSize", 0)),
        span,
        found,
        gone_of(known, places),
        halts,
        progress(_seen(known, stops, job, status, span), span),
        loss,
        notes,
        account=_account(status.get("cost") or {}, span.end),
    )


def _beginning(
    manifest: Manifest, known: Sequence[JobEvent], now: float, *, has_history: bool
) -> tuple[float, list[str]]:
    """Since when the job is shown, and what is said of the time before. known: by time.

    The status has a start only while the job is not suspended: the last one.
    """
    status = manifest.get("status") or {}
    created = instant(manifest["metadata"].get("creationTimestamp"))
    started = instant(status.get("startTime"))
    first = known[0].at if known else None
    begin = min((at for at in (started, first) if at is not None), default=now)
    if has_history and created is not None:
        begin = min(begin, created)
    had_plan = status.get("planEpoch", 0) > 0
    origin = created if had_plan and created is not None else begin
    is_late = (begin if first is None else first) > origin + SOON_S
    if not is_late or _has_first_plan(known):
        return begin, []
    if has_history:
        return begin, [] if first is None else [_events_gone(first, has_history=True)]
    if first is not None and (started is None or not 0 <= first - started <= SOON_S):
        return first, [_events_gone(first, has_history=False)]
    if started is None:
        text = f"The job is suspended, and its events are gone: nothing before {clock(now)} is"
        return begin, [f"{text} shown."]
    text = f"The job began, or was last resumed after a suspension, at {clock(started)}."
    return begin, [f"{text} What happened before is not shown."]


def _events_gone(before: float, *, has_history: bool) -> str:
    what = "Earlier losses and pauses are" if has_history else "What happened earlier is"
    return (
        f"Events before {clock(before)} are gone: an API server keeps them for an hour, unless its"
        f" --event-ttl says otherwise. {what} not shown."
    )


def _end(status: Manifest, known: Sequence[JobEvent], now: float) -> float:
    """When the job has ended, or rests since. The last pause may end in the same second, of which
    the status gives no fraction."""
    ended = instant(status.get("completionTime")) or _suspended_at(status)
    if ended is None:
        return now
    return max([ended, *(event.at for event in known if event.at < ended + 1.0)])


def _suspended_at(status: Manifest) -> float | None:
    """When the agents of a job that rests have gone."""
    if status.get("phase") != JobPhase.SUSPENDED:
        return None
    found = (c for c in status.get("conditions") or () if c["type"] == ConditionType.SUSPENDED)
    return next((instant(c.get("lastTransitionTime")) for c in found), None)


def _account(cost: Manifest, until: float) -> Account | None:
    if not cost:
        return None
    names = ("dollarsPerHour", "onDemandDollarsPerHour")
    now, on_demand = (float(cost.get(name, 0.0)) for name in names)
    return Account((now, on_demand), _spent(cost, until), int(cost.get("unpricedNodes", 0)))


def _spent(cost: Manifest, until: float) -> tuple[float, float] | None:
    """The operator writes when the rate changes, and what was spent until then."""
    since = instant(cost.get("since"))
    if since is None:
        return None
    hours = max(0.0, until - since) / 3600
    spot, on_demand = (
        float(cost[name]) + hours * float(cost[f"{name}PerHour"])
        for name in ("dollars", "onDemandDollars")
    )
    return spot, on_demand


def _has_first_plan(known: Iterable[JobEvent]) -> bool:
    return any(e.reason == EventReason.PLANNED and e.epoch <= 1 for e in known)


def _seen(
    known: Iterable[JobEvent],
    stops: Sequence[Standstill],
    job: Job,
    status: Manifest,
    whole: Span,
) -> list[Seen]:
    """Exact before and after each standstill, at least so many at a checkpoint, and the newest by
    the status."""
    found = []
    for event in known:
        step = event.number(EventFact.STEP)
        if event.reason == EventReason.CHECKPOINT_SEALED:
            found.append(Seen(event.at, step))
        elif event.reason == EventReason.RESTORING:
            found.append(Seen(event.at, step + event.number(EventFact.REPEATED_STEPS)))
    found += [seen for stop in stops for seen in stop.steps]
    reported = instant((status.get("progress") or {}).get("reportTime")) or whole.end
    if not any(stop.span.end > reported for stop in stops):
        newest = Seen(min(reported, whole.end), job.step, may_be_fewer=True)
        found.append(newest)
        if job.phase != "Running":  # it stands still, and its pause counts
            found.append(Seen(whole.end, newest.step))
    return found
