"""Which nodes are spot nodes, and what contradicts ``spec.placement.onDemand``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bamboo_core.api.records import Problem

SPOT_LABELS: Final = (
    ("cloud.google.com/gke-spot", "true"),
    ("cloud.google.com/gke-preemptible", "true"),
    ("eks.amazonaws.com/capacityType", "SPOT"),
    ("karpenter.sh/capacity-type", "spot"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
    ("node.kubernetes.io/lifecycle", "spot"),
    ("bamboo.dev/spot", "true"),
)
"""Labels of spot nodes in GKE, EKS, Karpenter and AKS, and some that people set themselves."""

_SELECTOR = "spec.placement.onDemand.nodeSelector"
_TEMPLATE = "spec.worker.podTemplate.spec"


def is_spot(labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels is a spot node."""
    return any(labels.get(key) == value for key, value in SPOT_LABELS)


def problems(
    template: Mapping[str, Any], on_demand: Mapping[str, Any], *, has_pool_labels: bool
) -> list[Problem]:
    """What keeps all agents away from on-demand nodes although the job may use some.

    template: of the pods, as the user gives it; on_demand: labels that these nodes must have.
    """
    found = [
        Problem(f"{_SELECTOR}.{name}", f"is {value!r}; it must be a string")
        for name, value in on_demand.items()
        if not isinstance(value, str)
    ]
    if has_pool_labels and not on_demand:
        text = "is empty, but spec.placement.pools has labels: name those of on-demand nodes, which"
        found.append(Problem(_SELECTOR, f"{text} take the place of the pool's"))
    own = _part(template, "spec", "nodeSelector")
    for key, value in SPOT_LABELS:
        if own.get(key) == value and on_demand.get(key, value) == value:
            text = f"{value!r} keeps agents off on-demand nodes: remove it, since"
            text += f" spec.placement.onDemand asks for spot nodes by itself, or set {key} in"
            found.append(Problem(f"{_TEMPLATE}.nodeSelector.{key}", f"{text} {_SELECTOR}"))
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = _part(template, "spec", "affinity", "nodeAffinity", required).get("nodeSelectorTerms")
    if isinstance(terms, list) and terms and all(map(_asks_for_spot, terms)):
        text = "asks for spot nodes, so no agent gets an on-demand node: remove that rule, since"
        text += " spec.placement.onDemand asks for spot nodes by itself"
        found.append(Problem(f"{_TEMPLATE}.affinity.nodeAffinity.{required}", text))
    return found


def _asks_for_spot(term: Any) -> bool:
    rules = term.get("matchExpressions") if isinstance(term, dict) else None
    wanted = [{"key": key, "operator": "In", "values": [value]} for key, value in SPOT_LABELS]
    return isinstance(rules, list) and any(rule in wanted for rule in rules)


def _part(given: Any, *keys: str) -> dict[str, Any]:
    """The object there; empty: there is none."""
    for key in keys:
        given = given.get(key) if isinstance(given, dict) else None
    return given if isinstance(given, dict) else {}
