"""Manifests as the API server returns them."""

from __future__ import annotations

from typing import Any

import pytest

Object = dict[str, Any]


@pytest.fixture
def manifest() -> Object:
    """A running job of 2 x 3 agents that has lost two."""
    return {
        "metadata": {"namespace": "team", "name": "gpt", "uid": "u1"},
        "spec": {"pipelines": {"count": 2, "stages": 3}, "training": {"steps": 80}},
        "status": {
            "phase": "Running",
            "activePipelines": 2,
            "planEpoch": 3,
            "progress": {
                "step": 20, "steps": 80, "loss": "2.5", "validationLoss": "3.25",
                "samplesPerSecond": "64.5",
            },
            "losses": {"total": 2, "noticed": 1},
            "lastCheckpoint": {"step": 10, "path": "file:///tmp/x/10"},
            "conditions": [
                {"type": "Running", "status": "True", "reason": "TrainingStep", "message": ""},
                {"type": "Complete", "status": "False", "reason": "Idle"},
            ],
        },
    }  # fmt: skip


def make_node(name: str, zone: str, *, ready: bool = True) -> Object:
    return {
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
        "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}]},
    }


def make_pod(name: str, node: str = "", phase: str = "Running", **metadata: Any) -> Object:
    return {
        "metadata": {"name": name, "ownerReferences": [{"uid": "u1"}], **metadata},
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase},
    }
