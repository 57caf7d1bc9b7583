"""Kubernetes objects as the API server sends them."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]


def pod_object(
    name: str = "job-p0-s0-i0",
    *,
    owner_uid: str = "uid-1",
    node: str = "node-a",
    phase: str = "Running",
    state: Object | None = None,
) -> Object:
    """A pod of the job ``job`` in namespace ``ns``."""
    return {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"bamboo.dev/job": "job"},
            "ownerReferences": [
                {
                    "apiVersion": "bamboo.dev/v1alpha1",
                    "kind": "BambooJob",
                    "name": "job",
                    "uid": owner_uid,
                    "controller": True,
                }
            ],
        },
        "spec": {"nodeName": node, "nodeSelector": {"topology.kubernetes.io/zone": "a"}},
        "status": {
            "phase": phase,
            "containerStatuses": [{"name": "agent", "state": state or {"running": {}}}],
        },
    }


def node_object(name: str = "node-a", zone: str = "a", **labels: str) -> Object:
    """A ready node with one GPU."""
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "labels": {"topology.kubernetes.io/zone": zone, **labels},
        },
        "spec": {},
        "status": {
            "allocatable": {"nvidia.com/gpu": "1", "cpu": "8", "memory": "32Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"bootID": "boot-1"},
        },
    }
