"""The chart's value files before a real API server: installed by helm, applied as GitOps does."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bamboo_devcluster.cluster import Cluster
from bamboo_devcluster.kube.client import KubeApi
from bamboo_devcluster.programs import binaries

CHART = Path(__file__).resolve().parents[2] / "charts/bamboo"
FILES = sorted((CHART / "values").glob("*.yaml"))
EVERYTHING = [
    "notices.daemonSet.enabled=true", "kueue.enabled=true", "networkPolicy.enabled=true",
    "commonLabels.team=a", "commonAnnotations.team=a", "podLabels.team=b", "fullnameOverride=all",
    "monitoring.boards.enabled=true",
]  # fmt: skip
FURTHER = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}"}}


class Installer:
    """Runs helm and kubectl for a release in a namespace of its own."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.namespace = namespace
        self._programs = binaries.ensure(print)
        self._config = ["--kubeconfig", str(cluster.kubeconfig)]

    async def run(self, program: str, *arguments: str, stdin: str = "") -> tuple[int, str]:
        """Its exit code and what it said."""
        done = await asyncio.to_thread(
            subprocess.run, [str(self._programs[program]), *arguments, *self._config],
            input=stdin, text=True, check=False, capture_output=True,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    async def rendered(self, *arguments: str) -> str:
        code, text = await self.run(
            "helm", "template", "bamboo", str(CHART), "--namespace", self.namespace, *arguments
        )
        assert code == 0, text
        return text

    async def applied(self, text: str) -> tuple[int, str]:
        """Server-side apply: the server judges everything and stores nothing."""
        return await self.run(
            "kubectl", "apply", "--server-side", "--dry-run=server", "--validate=strict",
            "--namespace", self.namespace, "--filename", "-", stdin=text,
        )  # fmt: skip


@pytest.fixture
def installer(devcluster: Cluster, devcluster_namespace: str) -> Installer:
    return Installer(devcluster, devcluster_namespace)


def with_agents(installer: Installer) -> list[str]:
    """Policies for agents, too, which the files leave to a name."""
    agents = "networkPolicy.agents"
    return ["--set", f"{agents}.enabled=true,{agents}.namespaces={{{installer.namespace}}}"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_the_server_takes_a_clouds_objects_by_server_side_apply(
    installer: Installer, file: Path
) -> None:
    text = await installer.rendered("--values", str(file), *with_agents(installer))
    code, said = await installer.applied(text)
    assert code == 0, said
    assert "deployment.apps/bamboo-operator serverside-applied (server dry run)" in said
    is_policed = "networkpolicy.networking.k8s.io/bamboo-operator-agents" in said
    assert is_policed == (file.stem != "kind")


async def test_the_server_takes_everything_that_the_chart_can_make(installer: Installer) -> None:
    settings = [word for setting in EVERYTHING for word in ("--set", setting)]
    further = f"extraObjects={json.dumps([FURTHER])}"
    text = await installer.rendered(*settings, *with_agents(installer), "--set-json", further)
    code, said = await installer.applied(text)
    assert code == 0, said
    for name in ("daemonset.apps/all-node-watcher", "deployment.apps/all", "configmap/bamboo "):
        assert name in said


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_a_clouds_values_are_installed_and_uninstalled(
    installer: Installer, devcluster_api: KubeApi, definition: dict[str, Any], file: Path
) -> None:
    """The guard looks at the cluster meanwhile. The release is not waited for: the cluster has no
    node of that cloud."""
    release = f"at-{file.stem}"
    code, said = await installer.run(
        "helm", "install", release, str(CHART), "--namespace", installer.namespace,
        "--values", str(file), *with_agents(installer),
        "--set", "userRoles.create=false", "--set", f"namespaces={{{installer.namespace}}}",
    )  # fmt: skip
    assert code == 0, said
    path = f"/apis/apps/v1/namespaces/{installer.namespace}/deployments/{release}-operator"
    try:
        assert (await devcluster_api.get(path))["metadata"]["name"] == f"{release}-operator"
    finally:
        code, said = await installer.run(
            "helm", "uninstall", release, "--namespace", installer.namespace
        )
    assert code == 0, said


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('tolerations=[{"operator": "Exist"}]', "tolerations"),
        ('serviceAccount.name="X_Y"', "X_Y"),
        ('commonLabels={"team": "a b"}', "a b"),
        ('resources.limits={"memory": "1Gb"}', "quantities must match"),
        ('resources.limits={"gpu": 1}', "must be a standard resource"),
        ('podSecurityContext={"runAsUser": -1}', "runAsUser"),
        ('extraVolumes=[{"name": "X_Y", "emptyDir": {}}]', "X_Y"),
        ('image.repository=" a"', "leading or trailing whitespace"),
    ],
)
async def test_the_schema_refuses_what_the_server_refuses(
    installer: Installer, setting: str, words: str
) -> None:
    """tests/contract/test_chart_refusals.py has the longer list."""
    given = ["--set-json", setting]
    code, said = await installer.run("helm", "template", "bamboo", str(CHART), *given)
    assert (code != 0, "don't meet the specifications of the schema" in said) == (True, True)
    text = await installer.rendered("--skip-schema-validation", *given)
    code, said = await installer.applied(text)
    assert code != 0
    assert words in said
