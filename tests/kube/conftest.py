"""A real control plane with our resource definition, and the operator's client of it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from bamboo_core.protocol.clock import Hearing
from bamboo_devcluster import binaries
from bamboo_devcluster.cluster import Cluster
from bamboo_devcluster.kubeapi import ApiError, KubeApi
from bamboo_devcluster.testing import wait_for
from bamboo_operator import config
from bamboo_operator.app import App
from bamboo_operator.config import Config
from bamboo_operator.kube import Kube, connect

from .operators import Running, rights

CHECKOUT = Path(__file__).resolve().parents[2]
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


_served: set[str] = set()  # clusters that have our resource definition


@pytest.fixture(scope="session")
def read_definition() -> dict[str, Any]:
    """Our resource definition, as it stands in its file."""
    found: dict[str, Any] = yaml.safe_load((CHECKOUT / "crds/bamboojobs.yaml").read_text())
    return found


@pytest_asyncio.fixture
async def definition(
    devcluster: Cluster, devcluster_api: KubeApi, read_definition: dict[str, Any]
) -> dict[str, Any]:
    """Our resource definition, served by the API server."""
    body = copy.deepcopy(read_definition)
    if str(devcluster.kubeconfig) in _served:
        return body
    try:
        await devcluster_api.post(CRD, body)
    except ApiError as error:
        if error.code != 409:
            raise

    def is_served(found: Any) -> bool:
        conditions = ((found or {}).get("status") or {}).get("conditions") or []
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    await wait_for(devcluster_api, f"{CRD}/{body['metadata']['name']}", is_served)
    _served.add(str(devcluster.kubeconfig))
    return body


@pytest_asyncio.fixture
async def kube(
    devcluster: Cluster, definition: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Kube]:
    """The operator's own client, as administrator."""
    monkeypatch.setenv("KUBECONFIG", str(devcluster.kubeconfig))
    client = await connect()
    yield client
    await client.close()


@pytest_asyncio.fixture
async def restricted(
    devcluster: Cluster, kube: Kube, devcluster_namespace: str, tmp_path: Path
) -> AsyncIterator[Path]:
    """A kubeconfig of the chart's service account."""
    kubectl = binaries.ensure(print)["kubectl"]
    base = [str(kubectl), "--kubeconfig", str(devcluster.kubeconfig)]
    text = rights(devcluster_namespace)
    await asyncio.to_thread(
        subprocess.run, [*base, "apply", "-f", "-"], input=text, text=True, check=True
    )
    done = await asyncio.to_thread(
        subprocess.run,
        [*base, "-n", devcluster_namespace, "create", "token", "op-operator"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    body = yaml.safe_load(await asyncio.to_thread(Path(devcluster.kubeconfig).read_text))
    for user in body["users"]:
        user["user"] = {"token": done.stdout.strip()}
    path = tmp_path / "kubeconfig"
    await asyncio.to_thread(path.write_text, yaml.safe_dump(body))
    yield path
    await asyncio.to_thread(
        subprocess.run, [*base, "delete", "-f", "-", "--wait=false"], input=text, text=True,
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip


@pytest_asyncio.fixture
async def operator(
    restricted: Path, kube: Kube, devcluster_namespace: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Running]:
    monkeypatch.setenv("KUBECONFIG", str(restricted))
    env = {
        "POD_NAMESPACE": devcluster_namespace,
        "POD_IP": "127.0.0.1",
        "POD_SERVICE_ACCOUNT": "op-operator",
        "BAMBOO_NAMESPACES": devcluster_namespace,
        "BAMBOO_RESYNC_SECONDS": "1",
    }
    found = config.from_env(env)
    free = Config(**{**vars(found), "listen": "127.0.0.1:0", "health_port": 0, "metrics_port": 0})
    client = await connect()
    app = App(free, client, Hearing())
    client.observe_with(app.metrics.observe_request)
    calls = set[tuple[str, str]]()
    send = client._send

    async def recorded(verb: str, path: str, *rest: Any) -> tuple[int, str]:
        calls.add((verb, path))
        return await send(verb, path, *rest)

    monkeypatch.setattr(client, "_send", recorded)
    running = Running(app, asyncio.create_task(app.run()), kube, devcluster_namespace, calls)
    try:
        async with asyncio.timeout(60):
            while not app.pulse.is_ready:
                assert not running.task.done(), running.task
                await asyncio.sleep(0.05)
        yield running
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await running.stop()
        await client.close()
