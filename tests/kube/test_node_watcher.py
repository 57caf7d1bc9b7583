"""The chart's DaemonSet on a node of a real API server, with its own account's rights."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from tests.agent.notices.metadata_server import Ec2

from bamboo_agent import node_watcher
from bamboo_agent.node_watcher import BOOT_ANNOTATION
from bamboo_core.evidence.node_notices import AT_RISK_TAINT, LEAVING_TAINT, left_by
from bamboo_devcluster.cluster import Cluster
from bamboo_devcluster.kube.client import KubeApi
from bamboo_devcluster.testing import wait_for

from .grants import CLEAN, audited
from .operators import Account, Object, account, render

NODES = "/api/v1/nodes"
OTHER = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
ENABLED = "notices.daemonSet.enabled=true"


@pytest_asyncio.fixture
async def cloud() -> AsyncIterator[Ec2]:
    server = Ec2()
    await server.start()
    yield server
    await server.stop()


@pytest_asyncio.fixture
async def node(devcluster_api: KubeApi, devcluster_namespace: str) -> AsyncIterator[str]:
    """A node without a kubelet; the control plane may taint it, too."""
    name = f"machine-{devcluster_namespace}"
    await devcluster_api.post(NODES, {"metadata": {"name": name}, "spec": {"taints": [OTHER]}})
    yield name
    await devcluster_api.delete(f"{NODES}/{name}")


@dataclass
class Watcher:
    """The DaemonSet's pod on a node. account: as the kubelet mounts it."""

    env: dict[str, str]
    account: Path
    cluster: KubeApi
    name: str

    @asynccontextmanager
    async def runs(self, boot: str) -> AsyncIterator[None]:
        """It runs meanwhile. boot: ID of the machine's boot."""
        task = asyncio.create_task(node_watcher.serve(self.env, boot, self.account))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def until(self, boot: str | None, *keys: str) -> list[Object]:
        """Wait until the node has this annotation and, of ours, the taints with these keys.
        Returns them. Taints of others stay."""

        def own(found: Any) -> list[Object]:
            taints = found["spec"]["taints"]
            return [t for t in taints if t["key"] in (LEAVING_TAINT, AT_RISK_TAINT)]

        def is_right(found: Any) -> bool:
            marked = (found["metadata"].get("annotations") or {}).get(BOOT_ANNOTATION)
            return marked == boot and {t["key"] for t in own(found)} == set(keys)

        found = await wait_for(self.cluster, f"{NODES}/{self.name}", is_right)
        assert OTHER in found["spec"]["taints"]
        return own(found)


@pytest_asyncio.fixture
async def rights(devcluster: Cluster, devcluster_namespace: str) -> AsyncIterator[Account]:
    """The account of the chart's DaemonSet."""
    objects = render(devcluster_namespace, ("node-watcher",), ENABLED)
    found = [body for body in objects if body["kind"] != "DaemonSet"]
    async with account(devcluster, devcluster_namespace, "op-node-watcher", found) as made:
        yield made


@pytest.fixture
def watcher(
    devcluster: Cluster, devcluster_api: KubeApi, rights: Account, node: str, cloud: Ec2,
    tmp_path: Path,
) -> Watcher:  # fmt: skip
    (tmp_path / "token").write_text(rights.token)
    shutil.copy(devcluster.directory / "pki/ca.crt", tmp_path)
    (daemon,) = (b for b in render("x", ("node-watcher",), ENABLED) if b["kind"] == "DaemonSet")
    (container,) = daemon["spec"]["template"]["spec"]["containers"]
    server = urlsplit(devcluster.server)
    env = {each["name"]: each.get("value", "") for each in container["env"]} | {
        "BAMBOO_NODE": node,
        "BAMBOO_METADATA_ADDRESS": cloud.address,
        "KUBERNETES_SERVICE_HOST": str(server.hostname),
        "KUBERNETES_SERVICE_PORT": str(server.port),
    }
    return Watcher(env, tmp_path, devcluster_api, node)


def interrupt(cloud: Ec2, lead_s: float) -> datetime:
    """EC2 announces an interruption. Returns its time."""
    at = datetime.now(UTC) + timedelta(seconds=lead_s)
    text = f"{at:%Y-%m-%dT%H:%M:%SZ}"
    cloud.documents["spot/instance-action"] = f'{{"action": "terminate", "time": "{text}"}}'
    return at.replace(microsecond=0)


async def test_a_node_carries_the_notice_until_it_has_left_or_outlived_it(
    watcher: Watcher,
    cloud: Ec2,
    rights: Account,
    devcluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = interrupt(cloud, 120)
    cloud.documents["events/recommendations/rebalance"] = '{"noticeTime": "2026-01-01T00:00:00Z"}'
    async with watcher.runs("boot-1"):
        taints = await watcher.until("boot-1", LEAVING_TAINT, AT_RISK_TAINT)
    own = {taint["key"]: (taint.get("value", ""), taint["effect"]) for taint in taints}
    value, effect = own[LEAVING_TAINT]
    end = left_by(value)
    assert end is not None
    assert abs(end[0] - at.timestamp()) <= 2  # it goes by way of the seconds that are left
    assert 110 < end[1] <= 120
    assert effect == "NoSchedule"
    assert own[AT_RISK_TAINT] == ("", "PreferNoSchedule")

    cloud.documents.clear()
    async with watcher.runs("boot-1"):
        await watcher.until("boot-1", LEAVING_TAINT)  # the node may still go at that time
    async with watcher.runs("boot-2"):
        await watcher.until(None)  # it has left, and is back

    monkeypatch.setattr(node_watcher, "ASK_AGAIN_S", 0.2)
    monkeypatch.setattr(node_watcher, "STAYS_S", 0.4)
    interrupt(cloud, 1)
    async with watcher.runs("boot-2"):
        await watcher.until("boot-2", LEAVING_TAINT)
        cloud.documents.clear()
        await watcher.until(None)  # the cloud says nothing any more
    assert await audited(devcluster, rights) == CLEAN
