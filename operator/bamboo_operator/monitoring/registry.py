"""Prometheus metrics: the operator's own series, and the collector of those of jobs.

Series about jobs are made at scrape time and end with the job. No scraper overwrites the labels
job_namespace and training_job. No label has unbounded values.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from bamboo_core.api.events import EventFact, EventReason
from bamboo_core.api.spec import NoticeSource
from bamboo_core.arbiter_state.events import Record
from bamboo_core.job.leadership import NODE
from bamboo_operator.monitoring import counters, gauges
from bamboo_operator.monitoring.job_figures import JobFigures

_NOTICE_SOURCES = {x for x in NoticeSource if not x.stands_alone} | {NODE, "Signal"}


class Metrics:
    """The operator's own series, and a collector for those of jobs."""

    def __init__(
        self, jobs: Callable[[], Iterable[JobFigures]], clock: Callable[[], float] = time.time
    ) -> None:
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
        self.started = Gauge(
            "bamboo_operator_start_timestamp_seconds",
            "When this operator's process began, in seconds since 1970", registry=registry,
        )  # fmt: skip
        self.started.set(clock())
        self._build_info()
        registry.register(_JobCollector(jobs, clock))

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
    def __init__(
        self, jobs: Callable[[], Iterable[JobFigures]], clock: Callable[[], float]
    ) -> None:
        self._jobs, self._clock = jobs, clock
        self._times: counters.Shown = {}

    def describe(self) -> list[Metric]:
        """Nothing: otherwise the registry would call collect at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        figures = list(self._jobs())
        yield from gauges.collect(figures)
        yield from counters.collect(figures, self._clock(), self._times)
