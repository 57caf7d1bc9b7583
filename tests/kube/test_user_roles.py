"""Users with the cluster's roles view, edit and admin, by the API server's own authorization."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

from bamboo_devcluster.cluster import Cluster
from bamboo_devcluster.kube.client import KubeApi
from bamboo_devcluster.programs import binaries

CHART = Path(__file__).resolve().parents[2] / "charts/bamboo"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
RBAC = "rbac.authorization.k8s.io"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings"


def apply_roles(kubeconfig: Path) -> None:
    programs = binaries.ensure(print, ["helm", "kubectl"])
    rendered = subprocess.run(
        [str(programs["helm"]), "template", "op", str(CHART),
         "--show-only", "templates/user-roles.yaml"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    kubectl = [str(programs["kubectl"]), "--kubeconfig", str(kubeconfig)]
    subprocess.run([*kubectl, "apply", "-f", "-"], input=rendered.stdout, text=True, check=True)


async def test_roles_of_the_cluster_include_jobs(
    devcluster: Cluster, devcluster_api: KubeApi, devcluster_namespace: str
) -> None:
    namespace = devcluster_namespace
    await asyncio.to_thread(apply_roles, devcluster.kubeconfig)
    for role in ("view", "edit"):
        body = {
            "metadata": {"name": role},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": role}],
        }
        await devcluster_api.post(BINDINGS.format(namespace), body)

    async def may(user: str, verb: str, part: str = "") -> bool:
        attributes: dict[str, Any] = {
            "namespace": namespace, "verb": verb, "group": "bamboo.dev",
            "resource": "bamboojobs", "subresource": part,
        }  # fmt: skip
        review = {"spec": {"user": user, "resourceAttributes": attributes}}
        answer = await devcluster_api.post(REVIEWS, review)
        return bool(answer["status"]["allowed"])

    async with asyncio.timeout(30):  # a controller adds the rules, to one role after the other
        while not (await may("edit", "create") and await may("view", "get")):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert not await may("view", "create")
    assert await may("edit", "patch", "scale")
    assert not await may("edit", "patch", "status")
    assert not await may("nobody", "get")
