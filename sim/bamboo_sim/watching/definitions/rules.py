"""Recording rules and alerts, as Prometheus and the chart read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from bamboo_sim.watching.definitions import source
from bamboo_sim.watching.definitions.alert import BY_JOB, JOB, RELEASE, Alert, filled
from bamboo_sim.watching.definitions.job_alerts import PROGRESS, PROTECTION
from bamboo_sim.watching.definitions.operator_alerts import OPERATOR

RUNBOOKS = "docs/runbooks"
"""Where the pages are; the chart puts its value monitoring.rules.runbooks in its place."""


def _newest(counter: str, *labels: str) -> str:
    """A counter of a job, whichever operator exports it: the next one goes on from its value."""
    return f"max by ({', '.join((JOB, *labels))}) ({counter})"


_WANTED = f"max {BY_JOB} (bamboo_job_workers_wanted)"
_CONNECTED = f'max by ({JOB}, zone) (bamboo_job_workers{{state="connected"}})'

RECORDED = {
    "bamboo:job_steps:max": _newest("bamboo_job_steps_total"),
    "bamboo:job_samples:max": _newest("bamboo_job_samples_total"),
    "bamboo:job_repeated_steps:max": _newest("bamboo_job_repeated_steps_total"),
    "bamboo:job_corruptions:max": _newest("bamboo_job_corruptions_total"),
    "bamboo:job_losses:max": _newest("bamboo_preemptions_total", "noticed"),
    "bamboo:job_failures:max": _newest("bamboo_job_failures_total", "cause"),
    "bamboo:job_pause_seconds:max": _newest("bamboo_job_pause_seconds_total", "cause", "phase"),
    "bamboo:job_time_seconds:max": _newest("bamboo_job_time_seconds_total", "state"),
    "bamboo:job_step_seconds:max": _newest("bamboo_job_step_seconds"),
    "bamboo:job_agents_wanted:max": _WANTED,
    # A job without any pod has no agents by zone.
    "bamboo:job_missing_agents:max": f"{_WANTED} - sum {BY_JOB} ({_CONNECTED}) or {_WANTED}",
    "bamboo:job_samples:rate5m": "rate(bamboo:job_samples:max[5m])",
    "bamboo:job_training_share:ratio1h": (
        f'sum {BY_JOB} (increase(bamboo:job_time_seconds:max{{state="Training"}}[1h]))'
        f" / (sum {BY_JOB} (increase(bamboo:job_time_seconds:max[1h])) > 0)"
    ),
    "bamboo:job_pause_share:ratio1h": f"sum {BY_JOB} (rate(bamboo:job_pause_seconds:max[1h]))",
    "bamboo:job_samples_per_dollar:rate5m": (
        "3600 * rate(bamboo:job_samples:max[5m])"
        f" / (max {BY_JOB} (bamboo_job_cost_dollars_per_hour) > 0)"
    ),
}
"""Name -> query. One operator after the other exports a job's counters, each as a series of its
own. Those named ``max`` are one series, so that a loss or a restore which is counted while the
operator changes is an increase."""

ALERTS = (*PROGRESS, *PROTECTION, *OPERATOR)


def text() -> str:
    """The rules as Prometheus reads them, with the defaults of all settings."""
    groups: list[dict[str, Any]] = [
        {"name": "bamboo-recorded", "rules": _recorded()},
        {"name": "bamboo-alerts", "rules": [with_values(a, a.defaults | RELEASE) for a in ALERTS]},
    ]
    return _dumped({"groups": groups})


def marked() -> str:
    """The same with marks in place of settings, for the chart's template."""
    return _dumped({"recorded": _recorded(), "alerts": [_rule(alert) for alert in ALERTS]})


def _dumped(found: dict[str, Any]) -> str:
    return yaml.safe_dump(found, sort_keys=False, width=100)


def _recorded() -> list[dict[str, str]]:
    return [{"record": name, "expr": source.bound(expr)} for name, expr in RECORDED.items()]


def with_values(alert: Alert, values: Mapping[str, Any]) -> dict[str, Any]:
    """The rule with these values in place of its marks. KeyError names a mark without a value."""

    def fill(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: fill(value) for key, value in part.items()}
        return filled(part, values)

    found: dict[str, Any] = fill(_rule(alert))
    return found


def _rule(alert: Alert) -> dict[str, Any]:
    """The rule with marks."""
    return {
        "alert": alert.name,
        "expr": source.bound(alert.expr),
        "for": "${for}",
        "labels": {"severity": "${severity}"},
        "annotations": {
            "summary": alert.summary,
            "description": alert.text,
            "action": alert.action,
            "runbook_url": f"{RUNBOOKS}/{alert.name}.md",
        },
    }
