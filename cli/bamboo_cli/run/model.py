"""The model of a run: its agents, losses, pauses, steps, training loss and cost over time. Pure.

It is built from the looks of somebody who watched the run, or from the cluster's objects and
events, to which a Prometheus may add. All views of a run draw or print this model. Times are Unix
times in seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import accumulate, pairwise

from bamboo_cli.job.state import Job
from bamboo_core.controller.view import Slot, parse_pod_name

NO_ZONE = "zone not known"
_LEAST_SHOWN = 0.01  # of USD with two decimals
_LEAST_HOURS = 0.0001  # with four decimals: a third of a second
SOON_S = 60.0
"""What begins so soon after another thing begins with it."""


@dataclass(frozen=True)
class Span:
    """An interval of time."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True)
class Pause(Span):
    """Training stood still because of a change."""

    cause: str = ""  # a PauseCause; empty: an earlier version of the operator has not told it
    why: str = ""  # in words, with the agents
    is_over: bool = True


@dataclass(frozen=True)
class Tally:
    """How many there were since the job began, by kind: those that the run lists, and those of
    which only the status knows."""

    listed: Mapping[str, int]
    rest: Mapping[str, int]

    @property
    def by_kind(self) -> dict[str, int]:
        """Kind -> how many, sorted."""
        kinds = sorted({**self.listed, **self.rest})
        return {kind: self.listed.get(kind, 0) + self.rest.get(kind, 0) for kind in kinds}

    @property
    def total(self) -> int:
        return sum(self.by_kind.values())

    @property
    def unlisted(self) -> int:
        """Those that are not listed, since their events are gone or the operator has decided on
        them later."""
        return sum(self.rest.values())


def tally(counted: Mapping[str, int], listed: Iterable[str]) -> Tally:
    """counted: kind -> how many by the status; listed: the kinds of those that are listed.

    The list may name what the status counts only later, or as another kind. So what is listed
    counts as it is listed, and of the rest as many as the status has more.
    """
    found = Counter(listed)
    missing = max(0, sum(counted.values()) - found.total())
    rest: dict[str, int] = {}
    for kind, count in sorted(counted.items()):
        taken = min(missing, max(0, count - found[kind]))
        missing -= taken
        if taken:
            rest[kind] = taken
    return Tally(dict(found), rest)


NOTICED, SILENT = "with notice", "without notice"
"""Kinds of losses."""


@dataclass(frozen=True)
class Life:
    """An agent, from its start to its end."""

    agent: str
    zone: str
    pool: str  # of its node; "" if not known
    span: Span


@dataclass(frozen=True)
class Gone:
    """An agent that was preempted or lost, as the operator's events tell it."""

    at: float
    agent: str
    zone: str
    is_noticed: bool


@dataclass(frozen=True)
class Hazard:
    """The losses of a zone."""

    zone: str
    hours: float  # that agents ran there, added up
    lost: int

    @property
    def per_agent_hour(self) -> float | None:
        """None: not known, since no agent is known to have run there."""
        return self.lost / self.hours if self.hours else None


@dataclass(frozen=True)
class InjectedLoss:
    """An agent that an injected fault took away. The operator knows of it later (see Gone)."""

    at: float
    step: int
    slot: Slot
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
    span: Span  # what the views show
    lives: Sequence[Life] = ()
    gone: Sequence[Gone] = ()
    pauses: Sequence[Pause] = ()  # by their begin
    progress: Sequence[tuple[float, int]] = ()  # (time, committed steps), times ascending
    loss: Sequence[tuple[int, float]] = ()  # (committed steps, training loss)
    notes: Sequence[str] = ()  # what is not known, one sentence each
    # Zone -> (time, agents that run from then on), by a Prometheus; empty: ``lives`` say it.
    counts: Mapping[str, Sequence[tuple[float, int]]] = field(default_factory=dict)

    account: Account | None = None  # None: the operator knows no prices

    # Known only to who has watched the run and injected its faults.
    injected: Sequence[InjectedLoss] = ()
    validation: Sequence[tuple[int, float]] = ()  # (committed steps, validation loss)
    undisturbed_loss: Sequence[tuple[int, float]] = ()  # of the run to compare with

    @property
    def losses(self) -> Tally:
        """All losses since the job began, by whether there was a notice."""
        job = self.job
        counted = {NOTICED: job.lost_noticed, SILENT: max(0, job.lost - job.lost_noticed)}
        return tally(counted, (NOTICED if gone.is_noticed else SILENT for gone in self.gone))

    @property
    def halts(self) -> Tally:
        """All pauses since the job began, by cause."""
        counted = {each.cause: each.count for each in self.job.paused}
        return tally(counted, (pause.cause for pause in self.pauses))

    @property
    def paused_s(self) -> float:
        """Seconds of all pauses since the job began: those that the status counts, as `bamboo top`
        shows them, unless the list knows more. An injected fault begins before the operator's stop.
        """
        is_counted = self.job.pauses >= len(self.pauses) and not self.injected
        if is_counted and all(pause.is_over for pause in self.pauses):
            return self.job.paused_s
        listed = sum(pause.seconds for pause in self.pauses)
        return max(listed, self.job.paused_s) if self.halts.unlisted else listed

    @property
    def unlisted_s(self) -> float:
        """Seconds of the pauses that are not listed."""
        return max(0.0, self.paused_s - sum(pause.seconds for pause in self.pauses))

    def hazards(self) -> list[Hazard]:
        """The measured hazard of each zone: losses that are listed, by the hours of its agents."""
        hours, lost = self.agent_hours(), Counter(gone.zone for gone in self.gone)
        return [Hazard(zone, hours.get(zone, 0.0), lost[zone]) for zone in sorted({*hours, *lost})]

    @property
    def zones(self) -> list[str]:
        """Those where agents have run, sorted."""
        lived = {life.zone for life in self.lives}
        if self.counts:
            counted = {z for z, points in self.counts.items() if any(n for _, n in points)}
            return sorted(counted | lived - {NO_ZONE})
        return sorted(lived)

    @property
    def seats(self) -> dict[Slot, list[Span]]:
        """Slot -> when an agent of it ran."""
        found: dict[Slot, list[Span]] = {}
        for life in self.lives:
            parsed = parse_pod_name(self.job.name, life.agent)
            if parsed is not None:
                found.setdefault(parsed[0], []).append(life.span)
        return found

    def fleet(self, zone: str) -> list[tuple[float, int]]:
        """(time, agents that run from then on) in a zone; begins with the run.

        An agent may live for less than a Prometheus waits between two looks.
        """
        if any(count for _, count in self.counts.get(zone, ())):
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

    def fleets(self) -> tuple[list[float], dict[str, list[int]]]:
        """Times, and for each zone the agents that run there from each of these times on."""
        fleets = {zone: dict(self.fleet(zone)) for zone in self.zones}
        times = sorted({at for changes in fleets.values() for at in changes})
        counts: dict[str, list[int]] = {}
        for zone, changes in fleets.items():
            count = 0
            counts[zone] = [count := changes.get(at, count) for at in times]
        return times, counts

    def agent_hours(self) -> dict[str, float]:
        """Zone -> hours that agents ran there, added up."""
        return {
            zone: sum(n * (b - a) for (a, n), (b, _) in pairwise(self.fleet(zone))) / 3600
            for zone in self.zones
        }

    @property
    def reached(self) -> tuple[int, int]:
        """The fewest and the most committed steps that are shown; they differ."""
        steps = [step for _, step in self.progress] or [self.job.step]
        return min(steps), max(*steps, min(steps) + 1)

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


def merged(spans: Iterable[Span]) -> list[Span]:
    """Overlapping spans as one; the spans come sorted by their begin."""
    found: list[Span] = []
    for span in spans:
        if found and span.begin <= found[-1].end:
            found[-1] = Span(found[-1].begin, max(found[-1].end, span.end))
        else:
            found.append(span)
    return found


def hours_text(hours: float) -> str:
    """Agent-hours, everywhere with so many decimals that a job of seconds has some. 0 is not known,
    since agents are shown that ran."""
    if not hours:
        return "not known"
    return f"{hours:.4f}" if hours >= _LEAST_HOURS else f"<{_LEAST_HOURS}"


def amount_text(amount: float) -> str:
    """USD with two decimals, and less than that with two digits."""
    return f"{amount:.2g}" if 0 < amount < _LEAST_SHOWN else f"{amount:.2f}"


def clock(at: float) -> str:
    """Date and time of day, UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
