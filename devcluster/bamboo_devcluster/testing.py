"""Fixtures for tests against a real control plane; load this module through `pytest_plugins`.

The session shares one cluster: two nodes in each of three zones. Tests that break nodes add their
own. Every test gets its own namespace.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from bamboo_devcluster.cluster import Cluster, Options
from bamboo_devcluster.errors import DevclusterError
from bamboo_devcluster.kube.client import ApiError, KubeApi, Object, UnreachableError
from bamboo_devcluster.nodes.kubelet.prerequisites import find_tools
from bamboo_devcluster.programs import binaries
from bamboo_devcluster.spec import spread_nodes

ZONES = ("zone-a", "zone-b", "zone-c")
_POLL_S = 0.05


@pytest.fixture(scope="session")
def devcluster_images() -> Mapping[str, Any]:
    """The image map of the session's cluster; override it in a conftest to add programs."""
    return {"images": []}


@pytest.fixture(scope="session")
def devcluster(
    tmp_path_factory: pytest.TempPathFactory, devcluster_images: Mapping[str, Any]
) -> Iterator[Cluster]:
    """A running cluster: node-1 to node-6, two in each of zone-a, zone-b and zone-c."""
    binaries.ensure(print, binaries.CONTROL_PLANE)
    nodes = spread_nodes(2 * len(ZONES), ZONES, gpus=4)
    directory = tmp_path_factory.mktemp("devcluster")
    options = Options(images=devcluster_images, audit=True)
    with Cluster.up(directory, nodes=nodes, options=options) as cluster:
        yield cluster


@pytest_asyncio.fixture
async def devcluster_api(devcluster: Cluster) -> AsyncIterator[KubeApi]:
    """The administrator's client of the cluster."""
    async with KubeApi.from_directory(devcluster.directory, devcluster.server) as api:
        yield api


@pytest_asyncio.fixture
async def devcluster_namespace(devcluster_api: KubeApi) -> AsyncIterator[str]:
    """A namespace that is deleted after the test."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    await devcluster_api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    await wait_for(devcluster_api, account, lambda account: account is not None)
    yield name
    await devcluster_api.delete(f"/api/v1/namespaces/{name}")
    # Do not wait for the grace periods of leftover pods.
    now = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
    await devcluster_api.request("DELETE", f"/api/v1/namespaces/{name}/pods", now)


def need_kubelets(directory: Path) -> None:
    """Skip the test, with the reason, where kubelet nodes cannot be had. Builds no program.

    directory: of the cluster.
    """
    try:
        find_tools(directory)
    except DevclusterError as error:
        pytest.skip(str(error))
    if missing := binaries.missing(binaries.KUBELET):
        names = " and ".join(missing)
        pytest.skip(f"without {names}; `bamboo-devcluster binaries --kubelet` gets them")


async def wait_for(
    api: KubeApi,
    path: str,
    condition: Callable[[Any], bool],
    *,
    timeout_s: float = 30.0,
    absent_codes: frozenset[int] = frozenset({404}),
    **params: str,
) -> Object:
    """Poll `path` until `condition` holds for it (None while it does not exist); return it.

    absent_codes: status codes that mean "does not exist yet".
    Raises AssertionError with the last object after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    seen: Any = None
    while time.monotonic() < deadline:
        try:
            seen = await api.get(path, **params)
        except ApiError as error:
            if error.code not in absent_codes:
                raise
            seen = None
        except UnreachableError:
            await asyncio.sleep(_POLL_S)
            continue
        if condition(seen):
            return seen or {}
        await asyncio.sleep(_POLL_S)
    raise AssertionError(f"{path} did not become as expected within {timeout_s:g} s: {seen}")
