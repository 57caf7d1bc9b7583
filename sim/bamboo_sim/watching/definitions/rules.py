"""Recording rules and alerts. Each alert has a page in docs/runbooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from bamboo_sim.watching.definitions import source

RUNBOOKS = "docs/runbooks"
"""Where the pages are; the chart puts its value monitoring.rules.runbooks in its place."""

_JOB = "job_namespace, training_job"
_BY_JOB = f"by ({_JOB})"
_WHO = "{{ $labels.job_namespace }}/{{ $labels.training_job }}"


@dataclass(frozen=True)
class Alert:
    """expr: true for each job or operator that has the problem; after ``wait`` it fires."""

    name: str
    expr: str
    wait: str
    severity: str  # critical: training stands still or is lost; warning: it may be; info
    summary: str
    text: str


def _newest(counter: str, *labels: str) -> str:
    """A counter of a job, whichever operator exports it: the next one goes on from its value."""
    return f"max by ({', '.join((_JOB, *labels))}) ({counter})"


def _condition(kind: str, value: int) -> str:
    """Jobs whose condition is true (1) or is not (0)."""
    return f'max {_BY_JOB} (bamboo_job_condition{{type="{kind}"}}) == {value}'


RECORDED = {
    "bamboo:job_steps:max": _newest("bamboo_job_steps_total"),
    "bamboo:job_samples:max": _newest("bamboo_job_samples_total"),
    "bamboo:job_repeated_steps:max": _newest("bamboo_job_repeated_steps_total"),
    "bamboo:job_corruptions:max": _newest("bamboo_job_corruptions_total"),
    "bamboo:job_losses:max": _newest("bamboo_preemptions_total", "noticed"),
    "bamboo:job_failures:max": _newest("bamboo_job_failures_total", "cause"),
    "bamboo:job_pause_seconds:max": _newest("bamboo_job_pause_seconds_total", "cause", "phase"),
    "bamboo:job_time_seconds:max": _newest("bamboo_job_time_seconds_total", "state"),
    "bamboo:job_samples:rate5m": "rate(bamboo:job_samples:max[5m])",
    "bamboo:job_training_share:ratio1h": (
        f'sum {_BY_JOB} (increase(bamboo:job_time_seconds:max{{state="Training"}}[1h]))'
        f" / (sum {_BY_JOB} (increase(bamboo:job_time_seconds:max[1h])) > 0)"
    ),
    "bamboo:job_pause_share:ratio1h": f"sum {_BY_JOB} (rate(bamboo:job_pause_seconds:max[1h]))",
    "bamboo:job_samples_per_dollar:rate5m": (
        "3600 * rate(bamboo:job_samples:max[5m])"
        f" / (max {_BY_JOB} (bamboo_job_cost_dollars_per_hour) > 0)"
    ),
}
"""Name -> query. One operator after the other exports a job's counters, each as a series of its
own. Those named ``max`` are one series, so that a loss or a restore which is counted while the
operator changes is an increase."""

ALERTS = (
    Alert(
        "BambooJobStandsStill",
        f"increase(bamboo:job_steps:max[15m]) == 0 and {_condition('Running', 1)}"
        f" or {_condition('Stalled', 1)}",
        "5m",
        "critical",
        f"{_WHO} does not make progress",
        "A plan is in force, but no step was committed for 15 minutes, or the condition Stalled is"
        " true.",
    ),
    Alert(
        "BambooJobNotAccepted",
        _condition("Accepted", 0),
        "10m",
        "warning",
        f"{_WHO} is not accepted",
        "Its spec cannot be used, the API server rejects its pods, or the operator has no room for"
        " its plans. The condition Accepted says why.",
    ),
    Alert(
        "BambooJobWaitsForCapacity",
        _condition("CapacityAvailable", 0),
        "30m",
        "warning",
        f"{_WHO} has waited for nodes for 30 minutes",
        "Some agents have no node. The condition CapacityAvailable says why.",
    ),
    Alert(
        "BambooCheckpointTooOld",
        f"(time() - max {_BY_JOB} (bamboo_checkpoint_last_timestamp_seconds) > 3600"
        f' or max {_BY_JOB} (bamboo_job_time_seconds_total{{state="Training"}}) > 3600'
        f" and max {_BY_JOB} (bamboo_checkpoint_configured) == 1"
        f" unless max {_BY_JOB} (bamboo_checkpoint_last_timestamp_seconds))"
        f" and {_condition('Running', 1)}",
        "10m",
        "warning",
        f"{_WHO} has had no new checkpoint for an hour",
        "The job trains. If a layer loses its last copy, it repeats the work since then. Perhaps"
        " it has never written one.",
    ),
    Alert(
        "BambooOneLossFromRestore",
        f"max {_BY_JOB} (bamboo_job_least_copies) == 1 and {_condition('Degraded', 1)}",
        "10m",
        "warning",
        f"{_WHO}: the loss of one agent would cost a restore",
        "The job asks for redundancy, but some layer has only one live copy.",
    ),
    Alert(
        "BambooWorkRepeated",
        "increase(bamboo:job_repeated_steps:max[1h]) > 0",
        "0m",
        "warning",
        f"{_WHO} repeats steps that were committed",
        "Losses were more than the redundancy bears, so a new attempt began from a checkpoint, or"
        " from the start.",
    ),
    Alert(
        "BambooPausesTooLong",
        "bamboo:job_pause_share:ratio1h > 0.2",
        "30m",
        "warning",
        f"{_WHO} has spent more than a fifth of the last hour in pauses",
        "Training was stopped for new plans for too long.",
    ),
    Alert(
        "BambooUnannouncedLosses",
        f'sum {_BY_JOB} (increase(bamboo:job_losses:max{{noticed="false"}}[6h])) > 4'
        f' and sum {_BY_JOB} (increase(bamboo:job_losses:max{{noticed="true"}}[6h])) == 0',
        "0m",
        "info",
        f"{_WHO} loses agents without notice",
        "Of five or more losses in six hours none was announced: perhaps the cloud's notices do"
        " not reach the agents.",
    ),
    Alert(
        "BambooAgentsFail",
        f"sum {_BY_JOB} (increase(bamboo:job_failures:max[30m])) > 3",
        "0m",
        "warning",
        f"{_WHO}: agents fail by themselves",
        "More than three agents failed in half an hour. Too many failures end the job.",
    ),
    Alert(
        "BambooCorruptionFound",
        "increase(bamboo:job_corruptions:max[1h]) > 0"
        f' or sum {_BY_JOB} (increase(bamboo:job_failures:max{{cause="Corruption"}}[1h])) > 0',
        "0m",
        "critical",
        f"{_WHO}: two agents computed different bits",
        "A device or its memory is probably faulty.",
    ),
    Alert(
        "BambooJobFailed",
        _condition("Failed", 1),
        "0m",
        "warning",
        f"{_WHO} has failed",
        "The job has failed and stays failed.",
    ),
    Alert(
        "BambooNoLeader",
        "absent(bamboo_operator_leader == 1)",
        "2m",
        "critical",
        "No operator leads",
        "Training goes on, but after a loss agents wait for a plan, and no job starts.",
    ),
    Alert(
        "BambooOperatorFails",
        'sum(rate(bamboo_operator_reconcile_total{outcome="error"}[10m])) > 0.05',
        "10m",
        "warning",
        "Reconciles fail",
        "The operator gets errors for some job again and again.",
    ),
)


def text() -> str:
    """The rules as Prometheus and the PrometheusRule resource read them."""
    groups: list[dict[str, Any]] = [
        {
            "name": "bamboo-recorded",
            "rules": [
                {"record": name, "expr": source.bound(expr)} for name, expr in RECORDED.items()
            ],
        },
        {"name": "bamboo-alerts", "rules": [_rule(alert) for alert in ALERTS]},
    ]
    return yaml.safe_dump({"groups": groups}, sort_keys=False, width=100)


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": source.bound(alert.expr),
        "for": alert.wait,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.text,
            "runbook_url": f"{RUNBOOKS}/{alert.name}.md",
        },
    }
