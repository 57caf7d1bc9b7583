"""Server-side apply of a BambooJob: whose fields are whose, in the pod template, too."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import yaml

from bamboo_devcluster.cluster import Cluster
from bamboo_devcluster.programs import binaries
from bamboo_operator.kube import api
from bamboo_operator.kube.client import Kube

from .jobs import job

Apply = Callable[..., Coroutine[Any, Any, tuple[int, str]]]
ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = sorted([*ROOT.glob("examples/*.yaml"), ROOT / "docs/reference/every-field.yaml"])
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


@pytest.fixture
def apply(devcluster: Cluster, kube: Kube) -> Apply:
    """Applies a body as a manager, or compares it; returns kubectl's exit code and words."""
    kubectl = str(binaries.ensure(print)["kubectl"])

    async def applied(manager: str, body: dict[str, Any], verb: str = "apply") -> tuple[int, str]:
        done = await asyncio.to_thread(
            subprocess.run,
            [kubectl, verb, "--server-side", "--field-manager", manager, "--filename", "-",
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


def jobs_of(path: Path) -> list[dict[str, Any]]:
    """The BambooJobs of a file."""
    bodies = [body for body in yaml.safe_load_all(path.read_text()) if body]
    return [body for body in bodies if body["kind"] == "BambooJob"]


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.stem)
async def test_a_job_that_the_operator_leads_shows_no_difference(
    apply: Apply, kube: Kube, devcluster_namespace: str, file: Path
) -> None:
    """The operator writes its status as a manager of its own. Every field of the spec is set in one
    of the files."""
    (body,) = jobs_of(file)
    body["metadata"] |= {"namespace": devcluster_namespace}
    assert (await apply("gitops", body))[0] == 0
    place = api.job(devcluster_namespace, body["metadata"]["name"])
    word = {"type": "Running", "status": "True", "reason": "TrainingStep", "message": "step 5"}
    word |= {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"observedGeneration": 1, "phase": "Running", "conditions": [word]}
    told = {key: body[key] for key in ("apiVersion", "kind", "metadata")} | {"status": status}
    path = api.job_status(devcluster_namespace, body["metadata"]["name"])
    await kube.apply(path, told, manager=api.STATUS_MANAGER)
    before = await kube.get(place)
    code, said = await apply("gitops", body, "diff")
    assert (code, said) == (0, "")
    assert (await apply("gitops", body))[0] == 0
    assert await kube.get(place) == before
    body["metadata"]["labels"] = {"team": "other"}
    code, said = await apply("gitops", body, "diff")
    assert (code, "+    team: other" in said) == (1, True), said
