"""Server-side apply of a BambooJob: whose fields are whose, in the pod template, too."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from bamboo_devcluster.cluster import Cluster
from bamboo_devcluster.programs import binaries
from bamboo_operator.kube import api
from bamboo_operator.kube.client import Kube

from .jobs import job

Apply = Callable[..., Coroutine[Any, Any, tuple[int, str]]]
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


@pytest.fixture
def apply(devcluster: Cluster, kube: Kube) -> Apply:
    """Applies a body as a manager; returns kubectl's exit code and words."""
    kubectl = str(binaries.ensure(print)["kubectl"])

    async def applied(manager: str, body: dict[str, Any]) -> tuple[int, str]:
        done = await asyncio.to_thread(
            subprocess.run,
            [kubectl, "apply", "--server-side", "--field-manager", manager, "--filename", "-",
             "--kubeconfig", str(devcluster.kubeconfig)],
            input=json.dumps(body), text=True, check=False, capture_output=True,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    return applied


def part(namespace: str, **template: Any) -> dict[str, Any]:
    """Only a part of the pod template, as another manager applies it."""
    return {
        "apiVersion": "bamboo.dev/v1alpha1",
        "kind": "BambooJob",
        "metadata": {"name": "job", "namespace": namespace},
        "spec": {"worker": {"podTemplate": {"spec": template}}},
    }


async def test_two_managers_share_a_pod_template(
    apply: Apply, kube: Kube, devcluster_namespace: str
) -> None:
    """Its maps are merged, key by key, though no schema describes them."""
    own = {"spec": {"nodeSelector": {"pool": "a"}, "tolerations": [TOLERATION]}}
    body = job(devcluster_namespace, suspend=True, worker={"podTemplate": own})
    assert (await apply("gitops", body))[0] == 0
    other = part(devcluster_namespace, nodeSelector={"team": "b"}, schedulerName="mine")
    code, said = await apply("team", other)
    assert code == 0, said
    del body["spec"]["worker"]["podTemplate"]["spec"]["nodeSelector"]["pool"]
    body["spec"]["worker"]["podTemplate"]["spec"]["nodeSelector"]["zone"] = "c"
    assert (await apply("gitops", body))[0] == 0
    stored = await kube.get(api.job(devcluster_namespace, "job"))
    assert stored is not None
    template = stored["spec"]["worker"]["podTemplate"]["spec"]
    assert template["nodeSelector"] == {"team": "b", "zone": "c"}
    assert template["schedulerName"] == "mine"
    assert template["tolerations"] == [TOLERATION]


async def test_a_list_of_the_pod_template_has_one_manager(
    apply: Apply, devcluster_namespace: str
) -> None:
    """The refusal names the field and the other manager."""
    own = {"spec": {"tolerations": [TOLERATION]}}
    assert (await apply("gitops", job(devcluster_namespace, worker={"podTemplate": own})))[0] == 0
    other = {"key": "spot", "operator": "Exists"}
    code, said = await apply("team", part(devcluster_namespace, tolerations=[other]))
    assert code != 0
    assert 'conflict with "gitops"' in said
    assert ".spec.worker.podTemplate.spec.tolerations" in said


async def test_applying_a_job_again_changes_nothing(
    apply: Apply, kube: Kube, devcluster_namespace: str
) -> None:
    """Defaults that the API server fills in do not look like a change."""
    body = job(devcluster_namespace)
    assert (await apply("gitops", body))[0] == 0
    first = await kube.get(api.job(devcluster_namespace, "job"))
    assert (await apply("gitops", body))[0] == 0
    again = await kube.get(api.job(devcluster_namespace, "job"))
    assert first is not None
    assert again is not None
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert again["metadata"]["generation"] == 1
