"""The chart's guard against a second release for the same namespaces, before a real API server."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

from bamboo_devcluster.cluster import Cluster
from bamboo_devcluster.kube.client import KubeApi
from bamboo_devcluster.programs import binaries

CHART = Path(__file__).resolve().parents[2] / "charts/bamboo"
DEPLOYMENTS = "/apis/apps/v1/namespaces/{}/deployments"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


def render(kubeconfig: Path, name: str, namespace: str, **values: str) -> str:
    """The guard's words to a release with these values; empty: it lets the release pass."""
    helm = binaries.ensure(print, ["helm"])["helm"]
    given = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    done = subprocess.run(
        [str(helm), "template", name, str(CHART), "--namespace", namespace, "--dry-run=server",
         "--kubeconfig", str(kubeconfig), *given],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    return done.stderr if done.returncode else ""


def deployment(name: str, serves: str, **of: str) -> dict[str, Any]:
    """As a release has it, or somebody who likes to be taken for one."""
    labels = {"app": name}
    container = {"name": "operator", "image": "none:1"}
    return {
        "metadata": {
            "name": name,
            "labels": of,
            "annotations": {"bamboo.dev/namespaces": serves},
        },
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def binding(namespace: str) -> dict[str, Any]:
    """The binding of the release ``one``."""
    return {
        "metadata": {
            "name": f"{namespace}-one-operator",
            "labels": {"app.kubernetes.io/part-of": "bamboo"},
        },
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view",
        },
        "subjects": [],
    }  # fmt: skip


async def test_only_a_release_with_rights_holds_another_one_back(
    devcluster: Cluster, devcluster_api: KubeApi, devcluster_namespace: str
) -> None:
    """Anybody may annotate a Deployment; only administrators make a ClusterRoleBinding."""
    home = devcluster_namespace

    async def said(name: str, namespace: str, **values: str) -> str:
        return await asyncio.to_thread(render, devcluster.kubeconfig, name, namespace, **values)

    await devcluster_api.post(DEPLOYMENTS.format(home), deployment("one-operator", "team-a"))
    assert await said("two", "elsewhere") == ""
    await devcluster_api.post(BINDINGS, binding(home))
    try:
        for namespace in ("elsewhere", home):  # also beside it in its own namespace
            text = await said("two", namespace)
            assert f"release one-operator in namespace {home} serves BambooJobs already" in text
            assert "give them different namespaces by the value `namespaces`" in text
        assert "both would serve team-a" in await said("two", home, namespaces="{team-a,team-b}")
        assert await said("two", home, namespaces="{team-b}") == ""
        assert "already" not in await said("one", home)  # the same release
    finally:
        await devcluster_api.delete(f"{BINDINGS}/{home}-one-operator")


async def test_a_release_may_change_its_name_override(
    devcluster: Cluster, devcluster_api: KubeApi, devcluster_namespace: str
) -> None:
    home = devcluster_namespace

    async def said(name: str, **values: str) -> str:
        return await asyncio.to_thread(render, devcluster.kubeconfig, name, home, **values)

    ours = {"app.kubernetes.io/instance": "mine"}
    await devcluster_api.post(
        DEPLOYMENTS.format(home), deployment("one-operator", "team-a", **ours)
    )
    await devcluster_api.post(BINDINGS, binding(home))
    try:
        assert await said("mine", nameOverride="new") == ""
        assert "release mine in namespace" in await said("other", nameOverride="new")
    finally:
        await devcluster_api.delete(f"{BINDINGS}/{home}-one-operator")
