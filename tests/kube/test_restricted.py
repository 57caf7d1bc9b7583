"""Pods of jobs against the API server's own pod security, at its strictest level."""

from __future__ import annotations

from typing import Any

import pytest

from bamboo_core.api.spec import JobSpec
from bamboo_core.controller.reconcile import CreatePod
from bamboo_core.controller.view import JobView, Slot
from bamboo_core.validation.reading import from_manifest
from bamboo_devcluster.kube.client import ApiError, KubeApi
from bamboo_operator.kube import api
from bamboo_operator.pods import manifests

from .jobs import job

ENFORCE = "pod-security.kubernetes.io/enforce"
FULL = {
    "metadata": {"labels": {"team": "a"}},
    "spec": {
        "securityContext": {"fsGroup": 65532, "runAsUser": 1000},
        "initContainers": [{"name": "fetch", "image": "fetch:1"}],
        "containers": [
            {"name": "agent", "securityContext": {"readOnlyRootFilesystem": True}},
            {"name": "beside", "image": "beside:1", "ports": [{"containerPort": 9000}]},
        ],
        "volumes": [
            {"name": "a", "emptyDir": {}},
            {"name": "b", "persistentVolumeClaim": {"claimName": "training"}},
            {"name": "c", "projected": {"sources": [{"secret": {"name": "bamboo-job-s3"}}]}},
        ],
    },
}


def pod_of(namespace: str, **worker: Any) -> dict[str, Any]:
    """The pod that the operator makes. AssertionError if it refuses the template."""
    spec = from_manifest(job(namespace, worker=worker))
    assert isinstance(spec, JobSpec), spec
    action = CreatePod("job-p0-s0-i0", Slot(0, 0), 0, "zone-a")
    view = JobView(namespace, "job", "uid-1", 1, 0.0)
    return manifests.pod(spec, view, action, operator_address="op:1")


async def test_restricted_namespaces_take_our_pods(
    devcluster_api: KubeApi, devcluster_namespace: str
) -> None:
    namespace = devcluster_namespace
    labels = {"metadata": {"labels": {ENFORCE: "restricted"}}}
    await devcluster_api.patch(f"/api/v1/namespaces/{namespace}", labels)
    dry = {"dryRun": "All", "fieldValidation": "Strict"}

    async def create(pod: dict[str, Any]) -> Any:
        return await devcluster_api.request("POST", api.pods(namespace), pod, params=dry)

    for template in ({}, FULL):
        await create(pod_of(namespace, podTemplate=template))
    bad = pod_of(namespace)
    del bad["spec"]["securityContext"]["runAsNonRoot"]
    with pytest.raises(ApiError, match="violates PodSecurity"):  # so the level is in force
        await create(bad)
