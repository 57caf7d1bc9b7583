"""The API server's audit log, of a cluster that writes one."""

import asyncio
import ssl

import aiohttp

from bamboo_devcluster.cluster import Cluster
from bamboo_devcluster.controlplane import audit
from bamboo_devcluster.controlplane.audit import Request
from bamboo_devcluster.kube.client import KubeApi


async def test_it_holds_what_service_accounts_ask(
    devcluster: Cluster, devcluster_api: KubeApi, devcluster_namespace: str
) -> None:
    """Also what is refused. What administrators ask is left out."""
    core = f"/api/v1/namespaces/{devcluster_namespace}"
    path = f"{core}/serviceaccounts/default/token"
    token = (await devcluster_api.post(path, {"spec": {}}))["status"]["token"]
    trust = ssl.create_default_context(cafile=str(devcluster.directory / "pki/ca.crt"))
    user = f"system:serviceaccount:{devcluster_namespace}:default"
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as http:
        for path in (f"{core}/pods/x/status", "/version"):
            async with http.get(devcluster.server + path, ssl=trust) as answer:
                await answer.read()
    async with asyncio.timeout(10):  # a request is written down a moment after its answer
        while len(found := list(audit.requests(devcluster.audit_log, user))) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    pod, version = found
    message = pod.message
    assert "cannot get resource" in message
    assert pod == Request(
        user, "get", resource="pods/status", namespace=devcluster_namespace, name="x", code=403,
        message=message,
    )  # fmt: skip
    assert version == Request(user, "get", path="/version", code=200)
    assert "devcluster-admin" not in devcluster.audit_log.read_text()
