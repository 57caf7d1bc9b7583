"""What is known of a run over time: agents by zone, losses, pauses, progress. Pure.

It is read from the events and pods that a cluster still has, or from what the quick start has seen.
Times are Unix times in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import accumulate, pairwise

from bamboo_cli.explain import agent_zones
from bamboo_cli.history import Frame, History, Span, lives, merged
from bamboo_cli.job import Job, Manifest, read_job
from bamboo_cli.recoveries import GONE, JobEvent, read_events
from bamboo_cli.report import RunRecord
from bamboo_core.api.events import EventFact, EventReason
from bamboo_core.controller.view import parse_pod_name
from bamboo_core.placement.node_pools import pool_of

SOON_S = 60.0
_NO_ZONE = "zone not known"


@dataclass(frozen=True)
class Life:
    """An agent, from its start to its end."""

    agent: str
    zone: str
    pool: str  # of its node; "" if not known
    span: Span


@dataclass(frozen=True)
class Gone:
    """An agent that was preempted or lost."""

    at: float
    agent: str
    zone: str
    is_noticed: bool


@dataclass(frozen=True)
class Account:
    """The operator's account of the job's whole life, in USD: (what it pays, on demand)."""

    per_hour: tuple[float, float]  # of the nodes that it has now
    spent: tuple[float, float] | None  # None: not known
    unpriced: int = 0  # nodes that it has now for which there is no price


@dataclass(frozen=True)
class Run:
    """A run, or the part of it of which something is known."""

    job: Job
    batch: int  # samples in a step
    span: Span  # what the page shows
    lives: Sequence[Life] = ()
    gone: Sequence[Gone] = ()
    pauses: Sequence[Span] = ()
    progress: Sequence[tuple[float, int]] = ()  # (time, committed steps), times ascending
    loss: Sequence[tuple[int, float]] = ()  # (committed steps, training loss)
    notes: Sequence[str] = ()  # what is not known, one sentence each
    # Zone -> (time, agents that run from then on), by a Prometheus; empty: ``lives`` say it.
    counts: Mapping[str, Sequence[tuple[float, int]]] = field(default_factory=dict)

    account: Account | None = None  # None: the operator knows no prices

    @property
    def zones(self) -> list[str]:
        """Those where agents have run, sorted."""
        if self.counts:
            return sorted(z for z, points in self.counts.items() if any(n for _, n in points))
        return sorted({life.zone for life in self.lives})

    def fleet(self, zone: str) -> list[tuple[float, int]]:
        """(time, agents that run from then on) in a zone; begins with the run."""
        if self.counts:
            inside = [point for point in self.counts[zone] if point[0] <= self.span.end]
            return [(self.span.begin, 0), *inside, (self.span.end, 0)]
        changes = {self.span.begin: 0, self.span.end: 0}
        for life in self.lives:
            if life.zone == zone:
                changes[life.span.begin] = changes.get(life.span.begin, 0) + 1
                changes[life.span.end] = changes.get(life.span.end, 0) - 1
        found, count = [], 0
        for at in sorted(changes):
            count += changes[at]
            found.append((at, count))
        return found

    def agent_hours(self) -> dict[str, float]:
        """Zone -> hours that agents ran there, added up."""
        return {
            zone: sum(n * (b - a) for (a, n), (b, _) in pairwise(self.fleet(zone))) / 3600
            for zone in self.zones
        }

    @property
    def new_samples(self) -> int:
        """Those shown beyond the highest step before: what is computed again after a restore counts
        once."""
        steps = [step for _, step in self.progress]
        return (max(steps) - steps[0]) * self.batch if steps else 0

    @property
    def rate(self) -> float | None:
        """New samples per second, over all the time from the first to the last known step, if
        known."""
        if not self.progress or self.progress[-1][0] <= self.progress[0][0]:
            return None
        return self.new_samples / (self.progress[-1][0] - self.progress[0][0])

    def throughput(self, buckets: int = 40) -> list[tuple[Span, float]]:
        """(interval, samples per second): between the first and the last known step. Those that are
        computed again count, too."""
        if self.rate is None:
            return []
        first, last = self.progress[0][0], self.progress[-1][0]
        width = (last - first) / buckets
        edges = [first + n * width for n in range(buckets + 1)]
        more = (max(0, b - a) for (_, a), (_, b) in pairwise(self.progress))
        times = (at for at, _ in self.progress)
        computed = list(zip(times, accumulate(more, initial=0), strict=True))
        steps = [_at(computed, edge) for edge in edges]
        return [
            (Span(edges[n], edges[n + 1]), (steps[n + 1] - steps[n]) * self.batch / width)
            for n in range(buckets)
        ]


def _at(points: Sequence[tuple[float, int]], at: float) -> float:
    """The value at an instant, on straight lines between the points."""
    for (begin, low), (end, high) in pairwise(points):
        if begin <= at <= end:
            return low + (high - low) * ((at - begin) / (end - begin) if end > begin else 1.0)
    return float(points[-1][1] if at > points[-1][0] else points[0][1])


def from_cluster(
    manifest: Manifest,
    events: Iterable[Manifest],
    pods: Sequence[Manifest],
    nodes: Sequence[Manifest],
    scheduled: Iterable[Manifest],
    now: float,
    *,
    has_history: bool = False,
) -> Run:
    """What the API server still knows. scheduled: events ``Scheduled`` about pods.

    has_history: a Prometheus tells the rest, so the whole run is shown.
    """
    job, status = read_job(manifest), manifest.get("status") or {}
    known = sorted(read_events(events), key=lambda event: event.at)
    begin, notes = _beginning(manifest, known, now, has_history=has_history)
    end = _time(status.get("completionTime")) or now
    span = Span(min(begin, end), end)
    places = _places(job.name, pods, nodes, scheduled)
    found = _lives(job.name, known, pods, places, span)
    if any(life.zone == _NO_ZONE for life in found) and not has_history:
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
        _gone(known, places),
        _pauses(known, span),
        _progress(known, job, status, span),
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
    created = _time(manifest["metadata"].get("creationTimestamp"))
    started = _time(status.get("startTime"))
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


def _account(cost: Manifest, until: float) -> Account | None:
    if not cost:
        return None
    names = ("dollarsPerHour", "onDemandDollarsPerHour")
    now, on_demand = (float(cost.get(name, 0.0)) for name in names)
    return Account((now, on_demand), _spent(cost, until), int(cost.get("unpricedNodes", 0)))


def _spent(cost: Manifest, until: float) -> tuple[float, float] | None:
    """The operator writes when the rate changes, and what was spent until then."""
    since = _time(cost.get("since"))
    if since is None:
        return None
    hours = max(0.0, until - since) / 3600
    spot, on_demand = (
        float(cost[name]) + hours * float(cost[f"{name}PerHour"])
        for name in ("dollars", "onDemandDollars")
    )
    return spot, on_demand


def from_frames(frames: Sequence[Frame], record: RunRecord, shown: History, batch: int) -> Run:
    """What the quick start has seen; shown: the same, in seconds since training began."""
    start = frames[-1].at_s - shown.seconds
    zones = {pod: zone for f in frames for pod, zone in f.zones.items() if zone}

    def moved(span: Span) -> Span:
        return Span(span.begin + start, span.end + start)

    known = sorted(read_events(record.events), key=lambda event: event.at)
    places = {pod: (zone, "") for pod, zone in zones.items()}
    return Run(
        shown.job,
        batch,
        Span(start, frames[-1].at_s),
        [
            Life(pod, zones.get(pod, _NO_ZONE), "", moved(span))
            for (_, pod), span in lives(frames, record.hits, start).items()
        ],
        _gone(known, places),
        [moved(pause) for pause in shown.pauses],
        [(at + start, step) for at, step in shown.progress],
        shown.loss,
    )


def clock(at: float) -> str:
    """Date and time of day, UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _time(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None


def _has_first_plan(known: Iterable[JobEvent]) -> bool:
    return any(e.reason == EventReason.PLANNED and e.epoch <= 1 for e in known)


def _places(
    job: str, pods: Sequence[Manifest], nodes: Sequence[Manifest], scheduled: Iterable[Manifest]
) -> dict[str, tuple[str, str]]:
    """Agent -> zone and pool. Of a pod that is gone, the event says on which node it was."""
    labels = {n["metadata"]["name"]: n["metadata"].get("labels") or {} for n in nodes}
    pools = {node: pool_of(found) for node, found in labels.items()}
    zones = agent_zones(pods, nodes)
    found = {
        name: (zones.get(name, ""), pools.get(pod["spec"].get("nodeName", ""), ""))
        for pod in pods
        if parse_pod_name(job, name := pod["metadata"]["name"]) is not None
    }
    for event in scheduled:
        name = (event.get("involvedObject") or {}).get("name", "")
        node = event.get("message", "").rpartition(" to ")[2]
        if name in found or parse_pod_name(job, name) is None or node not in labels:
            continue
        stand_in = {"metadata": {"name": name}, "spec": {"nodeName": node}}
        found[name] = (agent_zones([stand_in], nodes).get(name, ""), pools[node])
    return {name: (zone, pool) for name, (zone, pool) in found.items() if zone or pool}


def _lives(
    job: str,
    known: Sequence[JobEvent],
    pods: Iterable[Manifest],
    places: Mapping[str, tuple[str, str]],
    whole: Span,
) -> list[Life]:
    """Of pods that exist as they say; of others from the first plan with them until they are gone.

    An agent without a seat may run on and come back, so a pod that runs ends only with its loss.
    """
    spans, gone = _planned(known, whole), _last_words(known)
    for pod in pods:
        name, status = pod["metadata"]["name"], pod.get("status") or {}
        begin = _time(status.get("startTime"))
        if parse_pod_name(job, name) is None or begin is None:
            continue
        said = gone.get(name)
        runs_on = said is not None and said.reason == EventReason.AGENT_LEFT and _is_alive(status)
        ended = whole.end if said is None or runs_on else said.at
        spans[name] = Span(begin, min(_finished(status) or ended, whole.end))
    found = []
    for name, span in spans.items():
        zone, pool = places.get(name, ("", ""))
        begin, end = max(span.begin, whole.begin), min(span.end, whole.end)
        if end > begin:
            found.append(Life(name, zone or _NO_ZONE, pool, Span(begin, end)))
    return sorted(found, key=lambda life: (life.span.begin, life.agent))


def _planned(known: Sequence[JobEvent], whole: Span) -> dict[str, Span]:
    """Agent -> from the first plan with it until an event tells its end, or a plan is without it
    and no later one has it.

    Plans after the loss of an event may be missing; then the agent lives until the next plan.
    """
    begins: dict[str, float] = {}
    ends: dict[str, float] = {}
    for event in known:
        if event.reason == EventReason.PLANNED:
            for agent in event.agents:
                begins.setdefault(agent, event.at)
                ends.pop(agent, None)
            for agent in begins.keys() - event.agents:
                ends.setdefault(agent, event.at)
        elif event.reason in GONE:
            ends |= dict.fromkeys(event.agents & begins.keys(), event.at)
    return {agent: Span(begin, ends.get(agent, whole.end)) for agent, begin in begins.items()}


def _last_words(known: Iterable[JobEvent]) -> dict[str, JobEvent]:
    """Agent -> the event that tells that it has left or is lost, unless a later plan has it."""
    found: dict[str, JobEvent] = {}
    for event in known:
        if event.reason == EventReason.PLANNED:
            found = {agent: said for agent, said in found.items() if agent not in event.agents}
        elif event.reason in GONE:
            found |= dict.fromkeys(event.agents, event)
    return found


def _is_alive(status: Manifest) -> bool:
    """Whether a pod has not ended."""
    return status.get("phase") not in ("Succeeded", "Failed")


def _finished(status: Manifest) -> float | None:
    """When the agent's container ended; None: it has not."""
    for container in status.get("containerStatuses") or []:
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("finishedAt"):
            return _time(ended["finishedAt"])
    return None


def _gone(known: Sequence[JobEvent], places: Mapping[str, tuple[str, str]]) -> list[Gone]:
    """Agents that are lost, and those that left after a notice and did not come back; not those
    that were let go."""
    noticed: set[str] = set()
    left: dict[str, Gone] = {}
    lost: dict[str, Gone] = {}
    for event in known:
        if event.reason == EventReason.AGENT_LEAVING:
            noticed |= event.agents
        elif event.reason == EventReason.PLANNED:
            left = {agent: gone for agent, gone in left.items() if agent not in event.agents}
        elif event.reason in GONE:
            is_loss = event.reason == EventReason.AGENT_LOST
            for agent in sorted(event.agents if is_loss else event.agents & noticed):
                zone = places.get(agent, ("", ""))[0] or _NO_ZONE
                gone = Gone(event.at, agent, zone, agent in noticed)
                (lost if is_loss else left).setdefault(agent, gone)
    return sorted((left | lost).values(), key=lambda gone: gone.at)


def _pauses(known: Sequence[JobEvent], whole: Span) -> list[Span]:
    """From the operator's STOP to the next commit. The start of the job is no pause."""
    resumed = [event for event in known if event.reason == EventReason.RESUMED]
    found = [
        Span(event.at - float(event.facts.get(EventFact.PAUSE_S, 0.0)), event.at)
        for n, event in enumerate(resumed)
        if n or event.epoch != 1
    ]
    kept = [s for s in found if s.seconds > 0 and s.begin >= whole.begin and s.end <= whole.end]
    return merged(sorted(kept, key=lambda s: s.begin))


def _progress(
    known: Sequence[JobEvent], job: Job, status: Manifest, whole: Span
) -> list[tuple[float, int]]:
    """Exact before and after each pause, at least so many at a checkpoint, and the newest. What a
    restore undoes is taken back when the first such step is computed again, or by the status."""
    points: list[tuple[float, int, bool]] = []  # the last: whether it may be fewer than before
    for event in known:
        step = event.number(EventFact.STEP)
        if event.reason == EventReason.RESUMED:
            begin = event.at - float(event.facts.get(EventFact.PAUSE_S, 0.0))
            before = step + event.number(EventFact.UNDONE_STEPS)
            points += [(begin, before, True), (event.at, before, True), (event.at, step + 1, True)]
        elif event.reason == EventReason.CHECKPOINT_SEALED:
            points.append((event.at, step, False))
        elif event.reason == EventReason.RESTORING:
            points.append((event.at, step + event.number(EventFact.REPEATED_STEPS), False))
    reported = _time((status.get("progress") or {}).get("reportTime")) or whole.end
    if not any(e.at > reported for e in known if e.reason == EventReason.RESUMED):
        points.append((min(reported, whole.end), job.step, True))
        if job.phase != "Running":  # it stands still, and its pause counts
            points.append((whole.end, job.step, True))
    found: list[tuple[float, int]] = []
    for at, step, is_exact in sorted(points, key=lambda point: point[0]):
        is_inside = whole.begin <= at <= whole.end
        if is_inside and (is_exact or not found or step >= found[-1][1]):
            found.append((at, step))
    return found
