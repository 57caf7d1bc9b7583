"""Recording rules and alerts. Each alert has a page in docs/runbooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

RUNBOOKS = "docs/runbooks"
"""Where the pages are; the chart puts its value monitoring.rules.runbooks in its place."""

_BY_JOB = "by (job_namespace, training_job)"
_WHO = "{{ $labels.job_namespace }}/{{ $labels.training_job }}"
_IS_RUNNING = 'bamboo_job_condition{type="Running"} == 1'


@dataclass(frozen=True)
class Alert:
    """expr: true for each job or operator that has the problem; after ``wait`` it fires."""

    name: str
    expr: str
    wait: str
    severity: str  # critical: training stands still or is lost; warning: it may be; info
    summary: str
    text: str


RECORDED = {
    "bamboo:job_samples:rate5m": f"sum {_BY_JOB} (rate(bamboo_job_samples_total[5m]))",
    "bamboo:job_training_share:ratio1h": (
        f'sum {_BY_JOB} (increase(bamboo_job_time_seconds_total{{state="Training"}}[1h]))'
        f" / (sum {_BY_JOB} (increase(bamboo_job_time_seconds_total[1h])) > 0)"
    ),
    "bamboo:job_pause_share:ratio1h": (f"sum {_BY_JOB} (rate(bamboo_job_pause_seconds_total[1h]))"),
    "bamboo:job_samples_per_dollar:rate5m": (
        f"3600 * sum {_BY_JOB} (rate(bamboo_job_samples_total[5m]))"
        f" / (sum {_BY_JOB} (bamboo_job_cost_dollars_per_hour) > 0)"
    ),
}
"""Name -> query."""

ALERTS = (
    Alert(
        "BambooJobStandsStill",
        f"increase(bamboo_job_steps_total[15m]) == 0 and ignoring (type) ({_IS_RUNNING})"
        ' or ignoring (type) (bamboo_job_condition{type="Stalled"} == 1)',
        "5m",
        "critical",
        f"{_WHO} does not make progress",
        "A plan is in force, but no step was committed for 15 minutes, or the condition Stalled is"
        " true.",
    ),
    Alert(
        "BambooJobWaitsForCapacity",
        'bamboo_job_condition{type="CapacityAvailable"} == 0',
        "30m",
        "warning",
        f"{_WHO} has waited for nodes for 30 minutes",
        "Some agents have no node. The condition CapacityAvailable names the zones.",
    ),
    Alert(
        "BambooCheckpointTooOld",
        "time() - bamboo_checkpoint_last_timestamp_seconds > 3600"
        f" and ignoring (type) ({_IS_RUNNING})",
        "10m",
        "warning",
        f"{_WHO} has had no new checkpoint for an hour",
        "The job trains. If a layer loses its last copy, it repeats the work since then.",
    ),
    Alert(
        "BambooOneLossFromRestore",
        "bamboo_job_least_copies == 1"
        ' and ignoring (type) (bamboo_job_condition{type="Degraded"} == 1)',
        "10m",
        "warning",
        f"{_WHO}: the loss of one agent would cost a restore",
        "The job asks for redundancy, but some layer has only one live copy.",
    ),
    Alert(
        "BambooWorkRepeated",
        "increase(bamboo_job_repeated_steps_total[1h]) > 0",
        "0m",
        "warning",
        f"{_WHO} repeats steps that were committed",
        "Losses were more than the redundancy bears, so a new attempt began from a checkpoint.",
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
        f'sum {_BY_JOB} (increase(bamboo_preemptions_total{{noticed="false"}}[6h])) > 4'
        f' and sum {_BY_JOB} (increase(bamboo_preemptions_total{{noticed="true"}}[6h])) == 0',
        "0m",
        "info",
        f"{_WHO} loses agents without notice",
        "Of five or more losses in six hours none was announced: perhaps the cloud's notices do"
        " not reach the agents.",
    ),
    Alert(
        "BambooAgentsFail",
        f"sum {_BY_JOB} (increase(bamboo_job_failures_total[30m])) > 3",
        "0m",
        "warning",
        f"{_WHO}: agents fail by themselves",
        "More than three agents failed in half an hour. Too many failures end the job.",
    ),
    Alert(
        "BambooCorruptionFound",
        "increase(bamboo_job_corruptions_total[1h]) > 0"
        ' or increase(bamboo_job_failures_total{cause="Corruption"}[1h]) > 0',
        "0m",
        "critical",
        f"{_WHO}: two agents computed different bits",
        "A device or its memory is probably faulty.",
    ),
    Alert(
        "BambooJobFailed",
        'bamboo_job_condition{type="Failed"} == 1',
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
            "rules": [{"record": name, "expr": expr} for name, expr in RECORDED.items()],
        },
        {"name": "bamboo-alerts", "rules": [_rule(alert) for alert in ALERTS]},
    ]
    return yaml.safe_dump({"groups": groups}, sort_keys=False, width=100)


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.wait,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.text,
            "runbook_url": f"{RUNBOOKS}/{alert.name}.md",
        },
    }
