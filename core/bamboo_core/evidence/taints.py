"""Which taints say what a node is for, and which how it is at present. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bamboo_core.evidence import node_notices
from bamboo_core.evidence.node_notices import Taint

_PRESENT = (
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "ignore-taint.cluster-autoscaler.kubernetes.io/",
    "karpenter.sh/unregistered",
)
_STARTING = ("/agent-not-ready", "/not-ready")
"""Ends of the keys of taints by which Cilium, CSI drivers and Istio keep pods off a new node."""


def lasting(taints: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Those that say what the node is for. Others say how it is at present."""
    return tuple(
        taint
        for taint in taints
        if not (key := str(taint.get("key"))).startswith(_PRESENT)
        and not key.endswith(_STARTING)
        and not node_notices.is_notice(Taint(key, str(taint.get("value") or "")))
    )
