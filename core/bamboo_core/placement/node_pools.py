"""To which pool a node belongs, by the labels that clouds give it."""

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


def pool_of(labels: Mapping[str, str]) -> str:
    """Name of the pool; empty: the labels name none."""
    return next((labels[key] for key in POOL_LABELS if key in labels), "")
