"""An alert as data: a query, texts, and settings that the chart's values can change.

Query and texts contain marks: ``${window}`` is the setting ``window``, and ``${window.s}`` the same
duration in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Value = str | float
"""A duration of one unit, such as ``15m``, or a number."""

RELEASE = {"release.namespace": "bamboo-system", "release.name": "bamboo-operator"}
"""Marks for the operator's namespace and the name of its Deployment. The chart puts those of the
release in their place."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

JOB = "job_namespace, training_job"
BY_JOB = f"by ({JOB})"
WHO = "{{ $labels.job_namespace }}/{{ $labels.training_job }}"
DESCRIBE = "kubectl -n {{ $labels.job_namespace }} describe bj {{ $labels.training_job }}"


@dataclass(frozen=True)
class Alert:
    """expr: true for each job or operator that has the problem; after ``wait`` it fires."""

    name: str
    expr: str
    wait: str
    severity: str  # critical: training stands still or is lost; warning: it may be; info
    summary: str
    text: str
    action: str  # the first thing to do
    settings: Mapping[str, Value] = field(default_factory=dict)

    @property
    def defaults(self) -> dict[str, Any]:
        """All that the chart's values can change, by its name there."""
        fixed = {"enabled": True, "for": self.wait, "severity": self.severity, "labels": {}}
        return fixed | dict(self.settings)


def condition(kind: str, value: int) -> str:
    """Jobs whose condition is true (1) or is not (0)."""
    return f'max {BY_JOB} (bamboo_job_condition{{type="{kind}"}}) == {value}'


def seconds(duration: str) -> int:
    """The seconds of a duration of one unit."""
    return int(duration[:-1]) * _UNITS[duration[-1]]


def filled(text: str, values: Mapping[str, Any]) -> str:
    """The text with values for its marks. KeyError names a mark without a value."""

    def value(mark: re.Match[str]) -> str:
        name, is_seconds = mark.groups()
        return str(seconds(values[name]) if is_seconds else values[name])

    return re.sub(r"\$\{([\w.]+?)(\.s)?\}", value, text)
