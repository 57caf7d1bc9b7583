"""What has happened to jobs since they began."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from bamboo_core.api.events import StallCause
from bamboo_core.api.reasons import FailureCause
from bamboo_core.api.totals import PauseCause, PausePhase, Pauses, TimeState
from bamboo_operator.monitoring.job_figures import JOB_LABELS, JobFigures, Row
from bamboo_operator.monitoring.job_figures import counters as counters_of

Shown = dict[tuple[str, TimeState], float]
"""UID of a job and state -> the time that was shown last."""


def collect(figures: list[JobFigures], now: float, shown: Shown) -> Iterator[Metric]:
    """Every counter of these jobs. now: seconds since 1970; shown: is brought up to date."""
    yield from counters_of(_ROWS, figures)
    yield _lost(figures)
    yield _failed(figures)
    yield _stalls(figures)
    yield from _pauses(figures)
    yield _sent(figures)
    yield _times(figures, now, shown)


def _family(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, labels=[*JOB_LABELS, *labels])


def _lost(figures: list[JobFigures]) -> Metric:
    family = _family(
        "bamboo_preemptions",
        "Agents preempted or lost with their node while they took part in training; noticed says"
        " whether they announced it",
        "noticed",
    )
    for f in figures:
        losses = f.status.losses
        family.add_metric([*f.labels, "true"], losses.noticed)
        family.add_metric([*f.labels, "false"], losses.total - losses.noticed)
    return family


def _failed(figures: list[JobFigures]) -> Metric:
    family = _family("bamboo_job_failures", "Agents that failed by themselves, by cause", "cause")
    for f in figures:
        counts = dict(f.status.failures.counts)
        for cause in FailureCause:
            family.add_metric([*f.labels, cause], counts.get(cause, 0))
    return family


def _stalls(figures: list[JobFigures]) -> Metric:
    text = "Times that training stood still although all agents lived, by cause"
    family = _family("bamboo_stalls", text, "cause")
    for f in figures:
        for cause in StallCause:
            family.add_metric([*f.labels, cause], f.status.totals.stalls.get(cause, 0))
    return family


def _pauses(figures: list[JobFigures]) -> Iterator[Metric]:
    count = _family("bamboo_job_pauses", "Stops of training for a new plan, by cause", "cause")
    text = "Time from a stop to the next committed step, by the cause and the phase of the pause"
    seconds = _family("bamboo_job_pause_seconds", text, "cause", "phase")
    for f in figures:
        for cause in PauseCause:
            found = f.status.totals.pauses.get(cause, Pauses())
            count.add_metric([*f.labels, cause], found.count)
            for phase in PausePhase:
                seconds.add_metric([*f.labels, cause, phase], found.seconds.get(phase, 0.0))
    yield from (count, seconds)


def _sent(figures: list[JobFigures]) -> Metric:
    text = (
        "Bytes of tensors that agents have sent to each other, by lane (Boundary, Sums or Copies)"
        " and by the zones of both ends"
    )
    family = _family("bamboo_job_sent_bytes", text, "lane", "from_zone", "to_zone")
    for f in figures:
        for way, count in f.status.totals.sent.items():
            family.add_metric([*f.labels, *way], count)
    return family


def _times(figures: list[JobFigures], now: float, shown: Shown) -> Metric:
    """The present state counts until now, but it ends at the time of a reconcile, which may be
    earlier. No counter falls: Prometheus would take that for a restart and add all of it again."""
    text = (
        "Time by state. Pauses that are shorter than a reconcile count as Training;"
        " bamboo_job_pause_seconds_total has them all"
    )
    family = _family("bamboo_job_time_seconds", text, "state")
    before = dict(shown)
    shown.clear()
    for f in figures:
        found = f.status.times.until(now)
        for state in TimeState:
            if state is not TimeState.ENDED:
                key = f.job.uid, state
                shown[key] = max(found.get(state, 0.0), before.get(key, 0.0))
                family.add_metric([*f.labels, state], shown[key])
    return family


_ROWS: list[Row] = [
    (
        "bamboo_job_steps",
        "Committed steps, repeated ones included",
        lambda f: f.status.totals.steps,
    ),
    (
        "bamboo_job_samples",
        "Samples in committed steps; absent while the spec cannot be used",
        lambda f: f.status.totals.steps * f.global_batch if f.global_batch else None,
    ),
    (
        "bamboo_job_repeated_steps",
        "Committed steps that are computed again because a new attempt has begun",
        lambda f: f.status.totals.repeated_steps,
    ),
    (
        "bamboo_job_tasks_redone",
        "Least number of forwards and backwards computed again within a step, after a loss",
        lambda f: f.status.totals.redone_tasks,
    ),
    (
        "bamboo_job_busy_seconds",
        "Computing time of all agents in committed steps",
        lambda f: f.status.totals.busy_s,
    ),
    (
        "bamboo_job_group_sent_bytes",
        "Bytes of tensors between agents that process groups carried; the rest went over TCP",
        lambda f: f.status.totals.group_bytes,
    ),
    (
        "bamboo_job_corruptions",
        "Times that two agents got different bits from the same forward",
        lambda f: f.status.totals.corruptions,
    ),
    (
        "bamboo_job_skipped_steps",
        "Steps that changed no layer because a gradient was not finite or the batch had no targets",
        lambda f: f.status.progress.skipped,
    ),
    (
        "bamboo_job_slices_ahead",
        "Layers of a micro-batch's forward that agents computed ahead, in mode Eager",
        lambda f: f.status.totals.ahead.slices,
    ),
    (
        "bamboo_job_ahead_dropped",
        "Forwards computed ahead that were dropped for want of room",
        lambda f: f.status.totals.ahead.dropped,
    ),
    (
        "bamboo_job_ahead_failed",
        "Layers of a micro-batch's forward that failed while agents computed ahead, in mode Eager",
        lambda f: f.status.totals.ahead.failed,
    ),
    (
        "bamboo_job_host_copied_bytes",
        "Bytes copied to host memory and back for what is computed ahead",
        lambda f: f.status.totals.ahead.copied_bytes,
    ),
    (
        "bamboo_job_host_copy_seconds",
        "Time that these copies took",
        lambda f: f.status.totals.ahead.copied_s,
    ),
    (
        "bamboo_job_ahead_left_bytes",
        "Bytes of what is computed ahead that stayed on the device for want of host memory",
        lambda f: f.status.totals.ahead.left_bytes,
    ),
    (
        "bamboo_job_replica_copied_bytes",
        "Bytes of replicas copied to host memory and back",
        lambda f: f.status.totals.hosted.copied_bytes,
    ),
    (
        "bamboo_job_replica_copy_seconds",
        "Time that these copies took",
        lambda f: f.status.totals.hosted.copied_s,
    ),
]
