"""Prometheus metrics. Series about jobs are made at scrape time and end with the job.

No scraper overwrites the labels job_namespace and training_job. No label has unbounded values.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bamboo_core.api.events import EventFact, EventReason
from bamboo_core.api.progress import TrainingProgress
from bamboo_core.api.reasons import FailureCause, JobPhase
from bamboo_core.api.spec import NoticeSource
from bamboo_core.arbiter.events import Record
from bamboo_core.controller.lifecycle import JobStatus
from bamboo_core.controller.view import JobView
from bamboo_core.evidence.stalls import StallCause
from bamboo_core.job.leadership import NODE

_JOB = ["job_namespace", "training_job"]
_NOTICE_SOURCES = {x for x in NoticeSource if not x.stands_alone} | {NODE, "Signal"}


@dataclass(frozen=True)
class JobFigures:
    """What the metrics show of a job."""

    job: JobView
    status: JobStatus
    global_batch: int


class Metrics:
    """The operator's own series, and a collector for those of jobs."""

    def __init__(self, jobs: Callable[[], Iterable[JobFigures]]) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.reconciles = Counter(
            "bamboo_operator_reconcile", "Reconciles by outcome: ok, retry or error", ["outcome"],
            registry=registry,
        )  # fmt: skip
        self.reconcile_s = Histogram(
            "bamboo_operator_reconcile_duration_seconds", "Duration of a reconcile",
            registry=registry, buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
        )  # fmt: skip
        self.queue_depth = Gauge(
            "bamboo_operator_queue_depth", "Jobs that wait for a reconcile", registry=registry
        )
        self.leader = Gauge(
            "bamboo_operator_leader", "1 if this operator is the leader, else 0", registry=registry
        )
        self.streams = Gauge(
            "bamboo_agent_connections", "Open streams of agents", registry=registry
        )
        self.refused = Counter(
            "bamboo_operator_refused_streams", "Streams of agents or strangers that were refused",
            ["code"], registry=registry,
        )  # fmt: skip
        self.loop_lag_s = Gauge(
            "bamboo_operator_loop_lag_seconds", "Delay of the event loop", registry=registry
        )
        self.last_event = Gauge(
            "bamboo_operator_watch_last_event_timestamp_seconds", "Time of the newest watch event",
            ["resource"], registry=registry,
        )  # fmt: skip
        self.api_requests = Counter(
            "bamboo_operator_kube_api_requests", "Requests to the API server",
            ["verb", "resource", "code"], registry=registry,
        )  # fmt: skip
        self.forced = Counter(
            "bamboo_stuck_terminating_forced",
            "Pods force-deleted because their node did not confirm", registry=registry,
        )  # fmt: skip
        self.notices = Counter(
            "bamboo_notices", "Notices and hints that an agent may lose its node, by source",
            ["source"], registry=registry,
        )  # fmt: skip
        self._build_info()
        registry.register(_JobCollector(jobs))

    def _build_info(self) -> None:
        info = Gauge(
            "bamboo_operator_build_info",
            "Always 1; the labels have the versions",
            ["version", "python"],
            registry=self.registry,
        )
        info.labels(metadata.version("bamboo-train"), platform.python_version()).set(1)

    def notice(self, record: Record) -> None:
        """Count the event if it is a notice."""
        if record.reason in (EventReason.AGENT_LEAVING, EventReason.AGENT_AT_RISK):
            source = str(record.facts.get(EventFact.SOURCE, "")) or "Signal"
            self.notices.labels(source if source in _NOTICE_SOURCES else "Other").inc()

    def observe_request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """Count a request to the API server."""
        del seconds
        self.api_requests.labels(verb, resource, str(code)).inc()


class _JobCollector(Collector):
    def __init__(self, jobs: Callable[[], Iterable[JobFigures]]) -> None:
        self._jobs = jobs

    def describe(self) -> list[Metric]:
        """Nothing: otherwise the registry would call collect at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        figures = list(self._jobs())
        total = GaugeMetricFamily("bamboo_jobs", "BambooJobs by phase", labels=["phase"])
        for phase in JobPhase:
            total.add_metric([phase], sum(f.status.phase is phase for f in figures))
        yield total
        yield from _per_job(figures)
        yield _workers(figures)
        yield _conditions(figures)


def _per_job(figures: list[JobFigures]) -> Iterator[Metric]:
    gauges: list[tuple[str, str, Callable[[JobFigures], float | None]]] = [
        ("bamboo_job_workers_wanted", "Number of agents wanted", lambda f: f.status.agents_wanted),
        ("bamboo_job_plan_epoch", "Number of the plan in force", lambda f: f.status.epoch),
        (
            "bamboo_job_attempt",
            "Number of the attempt; each restore begins a new one",
            lambda f: f.status.attempt,
        ),
        (
            "bamboo_job_training_loss",
            "Training loss of the last committed step; absent while unknown",
            _loss,
        ),
        (
            "bamboo_checkpoint_last_step",
            "Step of the newest complete checkpoint; -1 if there is none",
            _checkpoint,
        ),
        (
            "bamboo_job_least_copies",
            "Live copies of the layers with the fewest; 0 while not training",
            _copies,
        ),
        (
            "bamboo_job_unforgiven_failures",
            "Failures of agents that count towards spec.runPolicy.backoffLimit",
            lambda f: f.status.failures.unforgiven,
        ),
        (
            "bamboo_job_avoided_nodes",
            "Nodes that get no new agents because agents have failed there too often",
            lambda f: len(f.status.failures.avoided),
        ),
        (
            "bamboo_job_samples_per_second",
            "Samples trained per second",
            lambda f: f.status.samples_per_s,
        ),
        (
            "bamboo_job_host_memory_bytes",
            "Most that one agent has had in host memory of what it computed ahead",
            lambda f: f.status.progress.ahead.host_bytes,
        ),
        (
            "bamboo_job_replica_host_bytes",
            "Most of its replicas that one agent has had in host memory",
            lambda f: f.status.progress.hosted.host_bytes,
        ),
        (
            "bamboo_job_replica_left_bytes",
            "Most of its replicas that one agent has left on its device although this is short,"
            " because spec.redundancy.hostMemory was full",
            lambda f: f.status.progress.hosted.left_bytes,
        ),
    ]
    for name, text, value in gauges:
        family = GaugeMetricFamily(name, text, labels=_JOB)
        for f in figures:
            if (found := value(f)) is not None:
                family.add_metric(_labels(f), found)
        yield family
    pipelines = GaugeMetricFamily(
        "bamboo_job_pipelines",
        "Pipelines by state: active, wanted or feasible",
        labels=[*_JOB, "state"],
    )
    for f in figures:
        pipelines.add_metric([*_labels(f), "active"], f.status.pipelines)
        pipelines.add_metric([*_labels(f), "wanted"], f.status.pipelines_wanted)
        pipelines.add_metric([*_labels(f), "feasible"], f.status.feasible_pipelines)
    yield pipelines
    yield from _counters(figures)


def _counters(figures: list[JobFigures]) -> Iterator[Metric]:
    steps = CounterMetricFamily("bamboo_job_steps", "Committed steps", labels=_JOB)
    samples = CounterMetricFamily("bamboo_job_samples", "Samples in committed steps", labels=_JOB)
    lost = CounterMetricFamily(
        "bamboo_preemptions",
        "Agents preempted or lost with their node; noticed says whether they announced it",
        labels=[*_JOB, "noticed"],
    )
    failed = CounterMetricFamily(
        "bamboo_job_failures", "Agents that failed by themselves, by cause", labels=[*_JOB, "cause"]
    )
    skipped = CounterMetricFamily(
        "bamboo_job_skipped_steps",
        "Steps that changed no layer because a gradient was not finite",
        labels=_JOB,
    )
    stalls = CounterMetricFamily(
        "bamboo_stalls",
        "Times that training stood still although all agents lived, by cause",
        labels=[*_JOB, "cause"],
    )
    yield from _host_memory(figures)
    for f in figures:
        skipped.add_metric(_labels(f), f.status.progress.skipped)
        found = dict(f.status.stalls)
        for stall in StallCause:
            stalls.add_metric([*_labels(f), stall], found.get(stall, 0))
        done = f.status.progress.committed + 1
        steps.add_metric(_labels(f), done)
        samples.add_metric(_labels(f), done * f.global_batch)
        losses = f.status.losses
        lost.add_metric([*_labels(f), "true"], losses.noticed)
        lost.add_metric([*_labels(f), "false"], losses.total - losses.noticed)
        counts = dict(f.status.failures.counts)
        for cause in FailureCause:
            failed.add_metric([*_labels(f), cause], counts.get(cause, 0))
    yield from (steps, samples, lost, failed, skipped, stalls)


def _host_memory(figures: list[JobFigures]) -> Iterator[Metric]:
    """What is computed ahead, and what waits in host memory."""
    counters: list[tuple[str, str, Callable[[TrainingProgress], float]]] = [
        (
            "bamboo_job_slices_ahead",
            "Layers of a micro-batch's forward that agents computed ahead, in mode Eager",
            lambda x: x.ahead.slices,
        ),
        (
            "bamboo_job_ahead_dropped",
            "Forwards computed ahead that were dropped because spec.redundancy.hostMemory was full",
            lambda x: x.ahead.dropped,
        ),
        (
            "bamboo_job_host_copied_bytes",
            "Bytes copied to host memory and back for what is computed ahead",
            lambda x: x.ahead.copied_bytes,
        ),
        (
            "bamboo_job_host_copy_seconds",
            "Time that these copies took",
            lambda x: x.ahead.copied_s,
        ),
        (
            "bamboo_job_replica_copied_bytes",
            "Bytes of replicas copied to host memory and back",
            lambda x: x.hosted.copied_bytes,
        ),
        (
            "bamboo_job_replica_copy_seconds",
            "Time that these copies took",
            lambda x: x.hosted.copied_s,
        ),
    ]
    for name, text, value in counters:
        family = CounterMetricFamily(name, text, labels=_JOB)
        for f in figures:
            family.add_metric(_labels(f), value(f.status.progress))
        yield family


def _workers(figures: list[JobFigures]) -> Metric:
    labels = [*_JOB, "zone", "state"]
    family = GaugeMetricFamily(
        "bamboo_job_workers", "Agents by zone and state: running or connected", labels=labels
    )
    for f in figures:
        for zone in f.status.zones:
            family.add_metric([*_labels(f), zone.zone, "running"], zone.running)
            family.add_metric([*_labels(f), zone.zone, "connected"], zone.connected)
    return family


def _conditions(figures: list[JobFigures]) -> Metric:
    labels = [*_JOB, "type"]
    family = GaugeMetricFamily(
        "bamboo_job_condition", "1 if the condition is true, else 0", labels=labels
    )
    for f in figures:
        for condition in f.status.conditions:
            family.add_metric([*_labels(f), condition.type], float(condition.status is True))
    return family


def _labels(figures: JobFigures) -> list[str]:
    return [figures.job.namespace, figures.job.name]


def _copies(figures: JobFigures) -> float:
    return float(next((count for count, _ in figures.status.copies), 0))


def _loss(figures: JobFigures) -> float | None:
    return figures.status.progress.loss


def _checkpoint(figures: JobFigures) -> float:
    return float(figures.status.checkpoint_step)
