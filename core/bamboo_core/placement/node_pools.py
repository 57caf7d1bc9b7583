"""Labels that clouds give nodes: to which pool a node belongs, and whether it is a spot node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

POOL_LABELS: Final = (
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "karpenter.sh/nodepool",
    "kubernetes.azure.com/agentpool",
)
"""Labels of nodes that name their pool."""

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


def pool_of(labels: Mapping[str, str]) -> str:
    """Name of the pool; empty: the labels name none."""
    return next((labels[key] for key in POOL_LABELS if key in labels), "")


def is_spot(labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels is a spot node."""
    return any(labels.get(key) == value for key, value in SPOT_LABELS)
