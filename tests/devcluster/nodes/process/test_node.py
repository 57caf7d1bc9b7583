"""What a process node makes of pods before and while they run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bamboo_devcluster.children import launch
from bamboo_devcluster.nodes.process.node import NodeAddress, ProcessNode
from bamboo_devcluster.nodes.process.pods import pod as pods
from bamboo_devcluster.nodes.process.pods.preparation import NodePorts
from bamboo_devcluster.spec import ImageMap, NodeSpec

Object = dict[str, Any]


class FakeApi:
    """Remembers the last status of each pod."""

    def __init__(self) -> None:
        self.statuses: dict[str, Object] = {}
        self.reported = asyncio.Condition()

    async def patch(self, path: str, body: Object, kind: str = "") -> Object:
        async with self.reported:
            self.statuses[path.split("/")[-2]] = body["status"]
            self.reported.notify_all()
        return {}

    async def until(self, name: str, phase: str) -> Object:
        """The pod's status, once it has this phase."""
        async with self.reported, asyncio.timeout(20):
            await self.reported.wait_for(lambda: self.statuses.get(name, {}).get("phase") == phase)
        return self.statuses[name]


class FakeEvents:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def record(self, pod: Object, *, kind: str, reason: str, message: str) -> None:
        self.reasons.append(reason)


async def awake() -> None:
    return None


@pytest.fixture
async def node(tmp_path: Path) -> Any:
    """A node with a GPU, whose API and events are fakes."""
    spec = NodeSpec("a")
    ports = NodePorts(
        FakeApi(), FakeEvents(), ImageMap(), launch.Isolation.NONE, tmp_path, "127.0.0.2", {}, {},  # type: ignore[arg-type]
        "/bin:/usr/bin", awake, asyncio.Semaphore(1),
    )  # fmt: skip
    made = ProcessNode(
        spec,
        NodeAddress("127.0.0.2", 10250),
        ports,
        take_address=lambda: "127.0.0.9",
        give_back=lambda ip: None,
    )
    yield made
    await made.vanish()


def pod(name: str, *command: str, gpus: int = 1, **spec: Any) -> Object:
    container: Object = {"name": "agent", "command": list(command)}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    body: Object = {"containers": [container], "restartPolicy": "Never", "nodeName": "a"}
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}"},
        "spec": body | spec,
        "status": {},
    }


async def test_a_node_with_broken_devices_refuses_pods_that_ask_for_one(node: ProcessNode) -> None:
    api: Any = node._ports.api
    node.has_broken_devices = True
    node.see("ADDED", pod("refused", "true"))
    node.see("ADDED", pod("plain", "true", gpus=0))
    found = await api.until("refused", "Failed")
    assert found["reason"] == "UnexpectedAdmissionError"
    assert "no healthy devices present" in found["message"]
    assert "containerStatuses" not in found
    assert (await api.until("plain", "Succeeded"))["containerStatuses"]
    node.has_broken_devices = False
    node.see("ADDED", pod("taken", "true"))
    await api.until("taken", "Succeeded")


async def test_a_pod_that_fills_a_small_volume_is_evicted(
    node: ProcessNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods, "OBJECT_REFRESH_S", 0.05)
    api: Any = node._ports.api
    events: Any = node._ports.events
    volumes = [{"name": "scratch", "emptyDir": {"sizeLimit": "1Ki"}}]
    folder = node._ports.directory / "pods" / "uid-full" / "volumes" / "scratch"
    write = f"head -c 4096 /dev/zero > {folder}/x; exec sleep 3600"
    node.see("ADDED", pod("full", "sh", "-c", write, volumes=volumes))
    found = await api.until("full", "Failed")
    assert found["reason"] == "Evicted"
    assert found["message"] == 'Usage of EmptyDir volume "scratch" exceeds the limit "1Ki". '
    assert found["containerStatuses"][0]["state"]["terminated"]["exitCode"] in (137, 143)
    assert "Evicted" in events.reasons
