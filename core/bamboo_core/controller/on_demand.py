"""When agents may use on-demand nodes, and how many. Only for jobs with ``placement.onDemand``."""

from __future__ import annotations

from collections.abc import Iterable

from bamboo_core.api.spec import JobSpec
from bamboo_core.controller.view import PodView


def settle(
    spec: JobSpec, staying: Iterable[PodView], since: float | None, *, is_resting: bool, now: float
) -> float | None:
    """Since when some agent has had no node; None: all have one, none is wanted, or the job has no
    such rule."""
    if spec.placement.on_demand is None:
        return None
    placed = sum(bool(pod.node) for pod in staying)
    if is_resting or placed >= spec.pipelines.count * spec.pipelines.stages:
        return None
    return now if since is None else since


def begins_at(spec: JobSpec, since: float | None) -> float | None:
    """When agents may use on-demand nodes; None: not as things are."""
    rule = spec.placement.on_demand
    return None if rule is None or since is None else since + rule.after_s


def budget(spec: JobSpec, staying: Iterable[PodView], since: float | None, *, now: float) -> int:
    """Number of further agents that may use on-demand nodes now."""
    at = begins_at(spec, since)
    if at is None or now < at:
        return 0
    return max(0, most(spec) - sum(pod.is_on_demand for pod in staying))


def most(spec: JobSpec) -> int:
    """Most agents that may be on on-demand nodes at once."""
    rule, seats = spec.placement.on_demand, spec.pipelines.count * spec.pipelines.stages
    return 0 if rule is None else int(rule.max_share * seats)
