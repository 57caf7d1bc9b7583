"""Kubernetes objects as the API server sends them."""

from __future__ import annotations

from typing import Any

from bamboo_operator.kube import api
from bamboo_operator.trust import seals

Object = dict[str, Any]

SEALS = seals.Seals(b"0123456789abcdef" * 2)
"""Of the operator under test."""


def pod_object(
    name: str = "job-p0-s0-i0",
    *,
    owner_uid: str = "uid-1",
    node: str = "node-a",
    phase: str = "Running",
    state: Object | None = None,
) -> Object:
    """A pod that the operator has made for the job ``job`` in namespace ``ns``."""
    seal = SEALS.seal(namespace="ns", job="job", job_uid=owner_uid, pod=name)
    return {
        "metadata": {
            "name": name,
            "annotations": {seals.ANNOTATION: seal},
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


def placed(
    uid: str, node: str = "node-a", *, gpus: int = 1, owner: str = "", phase: str = "Running"
) -> Object:
    """A pod on a node. owner: UID of the job for which the operator has made it."""
    container = {"resources": {"requests": {"nvidia.com/gpu": str(gpus)}}}
    meta = {"uid": uid, "name": uid, "namespace": "theirs"}
    if owner:
        seal = SEALS.seal(namespace="theirs", job="job", job_uid=owner, pod=uid)
        reference = {
            "apiVersion": api.API_VERSION, "kind": "BambooJob", "name": "job", "uid": owner,
            "controller": True,
        }  # fmt: skip
        meta |= {"annotations": {seals.ANNOTATION: seal}, "ownerReferences": [reference]}
    return {
        "metadata": meta,
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": phase},
    }
