"""What the metrics show of a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from bamboo_core.api.reasons import JobPhase
from bamboo_core.controller.lifecycle import JobStatus
from bamboo_core.controller.view import JobView
from bamboo_operator.money.prices import Rate

JOB_LABELS = ("job_namespace", "training_job")


@dataclass(frozen=True)
class JobFigures:
    """A job's status. Its counters are those that are written, so that no operator goes back."""

    job: JobView
    status: JobStatus
    global_batch: int | None  # None: the spec cannot be used
    checkpoint_at: float | None = None  # when the newest checkpoint was seen; None: there is none
    rate: Rate | None = None  # None: there are no prices
    has_checkpoints: bool = False  # spec.checkpoint is set
    checkpoint_every: int = 0  # steps; 0: checkpoints are written at the end and on suspend only
    plan_from: int = -1  # newest committed step when the plan in force was first seen; -1: none

    def after(self, before: JobFigures | None) -> JobFigures:
        """These figures, shown after those. A plan begins when its number is seen first."""
        newest, now = self.status.progress.committed, (self.status.epoch, self.status.attempt)
        is_same = before is not None and now == (before.status.epoch, before.status.attempt)
        begun = min(before.plan_from, newest) if before is not None and is_same else newest
        return replace(self, plan_from=begun)

    @property
    def plan_steps(self) -> int:
        """Number of steps committed since the plan in force was first seen."""
        return self.status.progress.committed - self.plan_from

    @property
    def steps_behind(self) -> int | None:
        """Committed steps that no complete checkpoint holds; None: there are no checkpoints."""
        if not self.has_checkpoints:
            return None
        return self.status.progress.committed + 1 - max(0, self.status.checkpoint_step)

    @property
    def labels(self) -> list[str]:
        """Values of JOB_LABELS."""
        return [self.job.namespace, self.job.name]

    @property
    def has_ended(self) -> bool:
        """Whether the job is complete or has failed."""
        return self.status.phase in (JobPhase.COMPLETE, JobPhase.FAILED)


Value = Callable[[JobFigures], float | None]
Row = tuple[str, str, Value]  # name, help text, value of a job; None: no series


def gauges(rows: list[Row], figures: list[JobFigures]) -> list[Metric]:
    """A gauge for each row."""
    return [_filled(GaugeMetricFamily(n, t, labels=JOB_LABELS), v, figures) for n, t, v in rows]


def counters(rows: list[Row], figures: list[JobFigures]) -> list[Metric]:
    """A counter for each row."""
    return [_filled(CounterMetricFamily(n, t, labels=JOB_LABELS), v, figures) for n, t, v in rows]


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, value: Value, figures: list[JobFigures]
) -> Metric:
    for f in figures:
        if (found := value(f)) is not None:
            family.add_metric(f.labels, found)
    return family
