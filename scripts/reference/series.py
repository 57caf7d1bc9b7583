"""docs/reference/metrics.md: every series of operator and agent, from their help texts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from scripts.reference.text import NOTE, sentence

from bamboo_agent.supervisor import health
from bamboo_operator.monitoring.registry import Metrics


def metrics_page() -> str:
    """Every series of operator and agent."""
    agent = health.Metrics(job="namespace/job", agent="agent")
    lines = [
        "# Metrics",
        "",
        NOTE,
        "Series about a job carry the labels `job_namespace` and `training_job`. They end with the",
        "job.",
        "",
        "## Operator",
        "",
        *_metric_table(Metrics(list).registry),
        "",
        "## Agent",
        "",
        "These help to diagnose one agent. They end with its pod; the operator exports what lasts.",
        "",
        *_metric_table(agent.registry),
    ]
    return "\n".join(lines) + "\n"


def _metric_table(registry: CollectorRegistry) -> list[str]:
    families = sorted(
        (f for f in registry.collect() if f.name.startswith("bamboo_")), key=lambda f: f.name
    )
    rows = [
        f"| `{_exported(f)}` | {f.type} | {_labels(f, registry)} | {sentence(f.documentation)} |"
        for f in families
    ]
    return ["| metric | type | labels | meaning |", "|---|---|---|---|", *rows]


def _exported(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _labels(family: Metric, registry: CollectorRegistry) -> str:
    """Families made at scrape time carry their labels; the others' collectors do."""
    names = getattr(family, "_labelnames", None)
    if names is None:
        collectors = registry._names_to_collectors
        collector = collectors.get(_exported(family)) or collectors.get(family.name)
        names = getattr(collector, "_labelnames", ())
    return ", ".join(f"`{name}`" for name in names)
