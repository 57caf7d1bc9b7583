"""What jobs are at this moment."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from bamboo_core.api.reasons import JobPhase, Reason
from bamboo_operator.monitoring.job_figures import JOB_LABELS, JobFigures, Row
from bamboo_operator.monitoring.job_figures import gauges as gauges_of


def collect(figures: list[JobFigures]) -> Iterator[Metric]:
    """Every gauge of these jobs."""
    total = GaugeMetricFamily("bamboo_jobs", "BambooJobs by phase", labels=["phase"])
    for phase in JobPhase:
        total.add_metric([phase], sum(f.status.phase is phase for f in figures))
    yield total
    yield from gauges_of(_ROWS, figures)
    yield _pipelines(figures)
    yield _workers(figures)
    yield _conditions(figures)
    yield _reasons(figures)
    yield _metrics(figures)


def _pipelines(figures: list[JobFigures]) -> Metric:
    pipelines = GaugeMetricFamily(
        "bamboo_job_pipelines",
        "Pipelines by state: active, wanted or feasible",
        labels=[*JOB_LABELS, "state"],
    )
    for f in figures:
        pipelines.add_metric([*f.labels, "active"], f.status.pipelines)
        pipelines.add_metric([*f.labels, "wanted"], f.status.pipelines_wanted)
        pipelines.add_metric([*f.labels, "feasible"], f.status.feasible_pipelines)
    return pipelines


def _workers(figures: list[JobFigures]) -> Metric:
    labels = [*JOB_LABELS, "zone", "state"]
    family = GaugeMetricFamily(
        "bamboo_job_workers", "Agents by zone and state: running or connected", labels=labels
    )
    for f in figures:
        for zone in f.status.zones:
            family.add_metric([*f.labels, zone.zone, "running"], zone.running)
            family.add_metric([*f.labels, zone.zone, "connected"], zone.connected)
    return family


def _conditions(figures: list[JobFigures]) -> Metric:
    labels = [*JOB_LABELS, "type"]
    family = GaugeMetricFamily(
        "bamboo_job_condition", "1 if the condition is true, else 0", labels=labels
    )
    for f in figures:
        for condition in f.status.conditions:
            family.add_metric([*f.labels, condition.type], float(condition.status is True))
    return family


def _reasons(figures: list[JobFigures]) -> Metric:
    family = GaugeMetricFamily(
        "bamboo_job_condition_reason",
        "Always 1; the labels have the status (True, False or Unknown) and the reason of each"
        " condition, as kubectl describe shows them",
        labels=[*JOB_LABELS, "type", "status", "reason"],
    )
    for f in figures:
        for condition in f.status.conditions:
            status = "Unknown" if condition.status is None else str(condition.status)
            reason = condition.reason if condition.reason in _REASONS else "Other"
            family.add_metric([*f.labels, condition.type, status, reason], 1.0)
    return family


def _metrics(figures: list[JobFigures]) -> Metric:
    family = GaugeMetricFamily(
        "bamboo_job_metric",
        "What the loss returns beside what is minimized, by name, at most 16 of them: of the last"
        " committed step (set training) and of the newest validation (set validation)",
        labels=[*JOB_LABELS, "set", "name"],
    )
    for f in figures:
        for name, value in sorted(f.status.progress.metrics.items()):
            family.add_metric([*f.labels, "training", name], value)
        for name, value in sorted(f.status.progress.validation_metrics.items()):
            family.add_metric([*f.labels, "validation", name], value)
    return family


def _copies(figures: JobFigures) -> float:
    return float(next((count for count, _ in figures.status.copies), 0))


def _interval(figures: JobFigures) -> float | None:
    return float(figures.checkpoint_every) or None


def _loss(figures: JobFigures) -> float | None:
    return figures.status.progress.loss


def _checkpoint(figures: JobFigures) -> float:
    return float(figures.status.checkpoint_step)


_REASONS = frozenset(map(str, Reason))

_ROWS: list[Row] = [
    ("bamboo_job_workers_wanted", "Number of agents wanted", lambda f: f.status.agents_wanted),
    ("bamboo_job_plan_epoch", "Number of the plan in force", lambda f: f.status.epoch),
    (
        "bamboo_job_plan_steps",
        "Steps committed since this operator has first seen the plan in force; 0 while the first"
        " step of a plan is under way",
        lambda f: f.plan_steps,
    ),
    (
        "bamboo_job_attempt",
        "Number of the attempt; each restore and each resume begins a new one",
        lambda f: f.status.attempt,
    ),
    (
        "bamboo_job_training_loss",
        "Training loss of the last committed step; absent while unknown",
        _loss,
    ),
    (
        "bamboo_checkpoint_configured",
        "1 if spec.checkpoint is set, else 0",
        lambda f: float(f.has_checkpoints),
    ),
    (
        "bamboo_checkpoint_interval_steps",
        "Steps between two checkpoints; absent if they are written at the end and on suspend only,"
        " or not at all",
        _interval,
    ),
    (
        "bamboo_checkpoint_behind_steps",
        "Committed steps that no complete checkpoint holds; absent unless spec.checkpoint is set",
        lambda f: f.steps_behind,
    ),
    (
        "bamboo_checkpoint_last_step",
        "Step of the newest complete checkpoint; -1 if there is none",
        _checkpoint,
    ),
    (
        "bamboo_checkpoint_best_step",
        "Step of the best complete checkpoint; absent unless spec.checkpoint.best is set and there"
        " is one",
        lambda f: f.status.best and float(f.status.best.step),
    ),
    (
        "bamboo_checkpoint_best_value",
        "Value of the metric of spec.checkpoint.best in the validation of that step",
        lambda f: f.status.best and f.status.best.value,
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
        lambda f: f.status.totals.ahead.host_bytes,
    ),
    (
        "bamboo_job_replica_host_bytes",
        "Most of its replicas that one agent has had in host memory",
        lambda f: f.status.totals.hosted.host_bytes,
    ),
    (
        "bamboo_job_replica_left_bytes",
        "Most of its replicas that one agent has left on its device although this is short,"
        " because spec.redundancy.hostMemory was full",
        lambda f: f.status.totals.hosted.left_bytes,
    ),
    (
        "bamboo_job_network_bytes_per_second",
        "What agents measure of the network between them, from large transfers; absent until this"
        " operator knows it",
        lambda f: f.status.network.measured or None,
    ),
    (
        "bamboo_job_planned_network_bytes_per_second",
        "Network between two agents with which plans count: the lower of"
        " spec.transport.bandwidthGbps and of what agents have measured for a while",
        lambda f: f.status.network.planned or None,
    ),
    (
        "bamboo_job_slowest_pair_bytes_per_second",
        "The same between the two agents where it is least; absent unless both have measured it",
        lambda f: f.status.network.slowest.rate if f.status.network.slowest is not None else None,
    ),
    (
        "bamboo_job_step_seconds",
        "Duration of the last committed step; absent while unknown",
        lambda f: f.status.progress.step_s or None,
    ),
    (
        "bamboo_checkpoint_last_timestamp_seconds",
        "When the newest checkpoint became complete, in seconds since 1970; absent without one",
        lambda f: f.checkpoint_at,
    ),
    (
        "bamboo_job_cost_dollars_per_hour",
        "Price of the nodes with agents of the job; absent unless the chart's values give prices",
        lambda f: f.rate.dollars_per_hour if f.rate is not None else None,
    ),
    (
        "bamboo_job_on_demand_dollars_per_hour",
        "Price of the same nodes on demand; absent unless the chart's values give prices",
        lambda f: f.rate.on_demand_dollars_per_hour if f.rate is not None else None,
    ),
    (
        "bamboo_job_unpriced_nodes",
        "Nodes with agents of the job that belong to no pool of the prices",
        lambda f: f.rate.unpriced if f.rate is not None else None,
    ),
]
