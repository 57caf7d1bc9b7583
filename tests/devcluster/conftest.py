"""Fixtures of the development cluster, and a small client for the tests."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from bamboo_devcluster.cluster import Cluster, Options
from bamboo_devcluster.kube.client import KubeApi
from bamboo_devcluster.nodes.kubelet.images import MACHINE_IMAGE
from bamboo_devcluster.spec import spread_nodes
from bamboo_devcluster.testing import need_kubelets, wait_for

Object = dict[str, Any]


@dataclass(frozen=True)
class Workbench:
    """A namespace of a running cluster, and operations on it."""

    cluster: Cluster
    api: KubeApi
    namespace: str

    def path(self, kind: str, name: str = "") -> str:
        group = {"jobs": "/apis/batch/v1", "deployments": "/apis/apps/v1"}.get(kind, "/api/v1")
        return f"{group}/namespaces/{self.namespace}/{kind}/{name}".rstrip("/")

    async def create(self, kind: str, name: str, **fields: Any) -> Object:
        return await self.api.post(self.path(kind), {"metadata": {"name": name}, **fields})

    async def run_pod(self, script: str, *, name: str = "pod", **spec: Any) -> Object:
        """Create a pod whose container `main` runs a Python script."""
        container = {**python(script), **spec.pop("container", {})}
        labels = spec.pop("labels", {})
        body = {
            "metadata": {"name": name, "labels": labels},
            "spec": {"restartPolicy": "Never", "containers": [container], **spec},
        }
        return await self.api.post(self.path("pods"), body)

    async def wait_pod(self, condition: Any, *, name: str = "pod", timeout_s: float = 30) -> Object:
        path = self.path("pods", name)
        return await wait_for(self.api, path, condition, timeout_s=timeout_s)

    async def wait_phase(self, phase: str, *, name: str = "pod") -> Object:
        return await self.wait_pod(lambda p: p["status"].get("phase") == phase, name=name)

    async def wait_ready(self, *, name: str = "pod", timeout_s: float = 30) -> Object:
        return await self.wait_pod(is_ready, name=name, timeout_s=timeout_s)

    async def wait_gone(self, *, name: str = "pod", timeout_s: float = 30) -> None:
        await self.wait_pod(lambda p: p is None, name=name, timeout_s=timeout_s)

    async def wait_log(self, text: str, *, name: str = "pod", **params: str) -> str:
        """Wait until the log of a pod contains a text; return the log."""
        seen = await wait_for(
            self.api,
            self.path("pods", name) + "/log",
            lambda a: a and text in a["text"],
            absent_codes=frozenset({400, 404}),
            **params,
        )
        return str(seen["text"])

    async def log(self, *, name: str = "pod", **params: str) -> str:
        answer = await self.api.get(self.path("pods", name) + "/log", **params)
        return str(answer["text"])

    async def output(self, script: str, **spec: Any) -> str:
        """Run a script that must succeed; return its output."""
        await self.run_pod(script, **spec)
        pod = await self.wait_pod(lambda p: p["status"].get("phase") in ("Succeeded", "Failed"))
        log = await self.log()
        assert pod["status"]["phase"] == "Succeeded", log
        return log


def python(script: str, name: str = "main") -> Object:
    return {"name": name, "image": MACHINE_IMAGE, "command": ["python", "-u", "-c", script]}


def is_ready(pod: Object | None) -> bool:
    conditions = (pod or {}).get("status", {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


@pytest.fixture(scope="session")
def kubelet_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of three kubelet nodes in three zones; skips where it cannot be had."""
    directory = tmp_path_factory.mktemp("kubelets")
    need_kubelets(directory)
    shout = {
        "image": "example.org/shout:v1",
        "command": ["python", "-c", "import os,sys; print(os.environ['WORD'], *sys.argv[1:])"],
        "args": ["quietly"],
        "env": {"WORD": "hello"},
    }
    with Cluster.up(
        directory,
        nodes=spread_nodes(3, ("zone-a", "zone-b", "zone-c"), gpus=4),
        images={"images": [shout]},
        options=Options(node_kind="kubelet", audit=True),
    ) as cluster:
        yield cluster


@pytest.fixture(scope="session", params=["process", "kubelet"])
def devcluster(request: pytest.FixtureRequest) -> Cluster:
    """The session's cluster of either kind."""
    name = "devcluster" if request.param == "process" else "kubelet_cluster"
    found: Cluster = request.getfixturevalue(name)
    return found


@pytest.fixture
def bench(devcluster: Cluster, devcluster_api: KubeApi, devcluster_namespace: str) -> Workbench:
    return Workbench(devcluster, devcluster_api, devcluster_namespace)


@pytest.fixture
def node_name() -> str:
    """A name for a node of this test."""
    return f"own-{uuid.uuid4().hex[:6]}"
