"""BambooJobs for tests against the API server."""

from __future__ import annotations

import copy
from typing import Any


def job(namespace: str, name: str = "job", **spec: Any) -> dict[str, Any]:
    """A BambooJob that is accepted; ``spec`` is merged into its spec, None removes a field."""
    body: dict[str, Any] = {
        "apiVersion": "bamboo.dev/v1alpha1",
        "kind": "BambooJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": {"factory": "pkg.models:build"},
            "data": {"factory": "pkg.data:build"},
            "training": {
                "steps": 10,
                "globalBatchSize": 32,
                "microBatchSize": 2,
                "optimizer": {"factory": "torch.optim:AdamW"},
            },
            "pipelines": {"count": 2, "stages": 2},
            "worker": {"image": "agent:1"},
        },
    }
    merge(body["spec"], spec)
    return body


def merge(into: dict[str, Any], changes: dict[str, Any]) -> None:
    """As a JSON merge patch does."""
    for key, value in changes.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = copy.deepcopy(value)
