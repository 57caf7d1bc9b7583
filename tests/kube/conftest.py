"""A real control plane with our resource definition, and the operator's client of it."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from bamboo_devcluster.cluster import Cluster
from bamboo_devcluster.kube.client import ApiError, KubeApi
from bamboo_devcluster.testing import wait_for
from bamboo_operator.kube.client import Kube, connect

from .operators import Account, Running, account, at_work, render

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
    devcluster: Cluster, kube: Kube, devcluster_namespace: str
) -> AsyncIterator[Account]:
    """The chart's service account for the operator."""
    rights = render(devcluster_namespace, ("rbac", "serviceaccount"))
    async with account(devcluster, devcluster_namespace, "op-operator", rights) as found:
        yield found


@pytest_asyncio.fixture
async def operator(
    restricted: Account, kube: Kube, devcluster_namespace: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Running]:
    monkeypatch.setenv("KUBECONFIG", str(restricted.kubeconfig))
    env = {
        "POD_NAME": "op-1",
        "POD_UID": "uid-1",
        "POD_NAMESPACE": devcluster_namespace,
        "POD_SERVICE_ACCOUNT": "op-operator",
        "BAMBOO_NAMESPACES": devcluster_namespace,
        "BAMBOO_RESYNC_SECONDS": "1",
    }
    async with at_work(kube, devcluster_namespace, env) as running:
        yield running
