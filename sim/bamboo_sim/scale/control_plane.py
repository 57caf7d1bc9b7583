"""A real etcd and kube-apiserver without kubelets, scheduler and controllers.

The load generator does their part. Namespaces get their service account here, since nothing else
makes it.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bamboo_devcluster.controlplane import components
from bamboo_devcluster.controlplane.components import Component
from bamboo_devcluster.kube import pki
from bamboo_devcluster.kube.client import ApiError, KubeApi, Object, UnreachableError
from bamboo_devcluster.layout import Layout
from bamboo_devcluster.programs import binaries
from bamboo_sim.programs.results_file import ROOT

OPERATOR_NAMESPACE = "bamboo-system"
ZONES = ("zone-a", "zone-b", "zone-c")
GPUS_OF_A_NODE = 8

_READY_S = 120.0
_POLL_S = 0.2
_TOKEN_S = 7200
_AT_ONCE = 32
_CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class ControlPlaneError(Exception):
    """The API server did not become ready."""


@dataclass(frozen=True)
class ControlPlane:
    """A running API server. ``api``: the administrator's client. ``pids``: by program."""

    api: KubeApi
    server: str
    folder: Path
    kubeconfig: Path  # of the operator's service account
    pids: dict[str, int]


async def each(work: Iterable[Awaitable[Any]], at_once: int = _AT_ONCE) -> None:
    """Await all, so many at once. The first error ends it."""
    gate = asyncio.Semaphore(at_once)

    async def one(item: Awaitable[Any]) -> None:
        async with gate:
            await item

    await asyncio.gather(*(one(item) for item in work))


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[ControlPlane]:
    """Start it in an empty folder, with the resource definition and the chart's rights."""
    paths = await asyncio.to_thread(binaries.ensure, print, ["etcd", "kube-apiserver", "helm"])
    layout = Layout(folder)
    layout.logs.mkdir(parents=True)
    ports = components.pick_ports()
    server = f"https://127.0.0.1:{ports.api}"
    components.write_credentials(layout, pki.Authority(layout.pki), ports)
    known = dict.fromkeys(binaries.CONTROL_PLANE, Path("unused")) | paths
    argvs = components.command_lines(known, layout, ports)
    programs = [Component(name, argvs[name], layout) for name in ("etcd", "kube-apiserver")]
    try:
        for program in programs:
            await program.start()
        async with KubeApi.from_directory(folder, server) as api:
            await _until_ready(api)
            kubeconfig = await _install(api, layout, paths["helm"])
            pids = {program.name: program.pid or 0 for program in programs}
            yield ControlPlane(api, server, folder, kubeconfig, pids)
    finally:
        for program in reversed(programs):
            await program.stop()


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    try:
        async with asyncio.timeout(_READY_S):
            while True:
                try:
                    if await condition():
                        return
                except (ApiError, UnreachableError):
                    pass
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise ControlPlaneError(f"the API server is not ready after {_READY_S:g} s") from None


async def _until_ready(api: KubeApi) -> None:
    async def is_ready() -> bool:
        await api.get("/readyz")
        return bool(await api.get("/api/v1/namespaces/kube-system"))

    await _until(is_ready)


async def _install(api: KubeApi, layout: Layout, helm: Path) -> Path:
    """The resource definition and the chart's rights. Returns the operator's kubeconfig."""
    definition = yaml.safe_load((ROOT / "crds/bamboojobs.yaml").read_text())
    await api.post(_CRD, definition)
    await add_namespace(api, OPERATOR_NAMESPACE)
    shown = ("rbac", "serviceaccount")
    command = [str(helm), "template", "op", str(ROOT / "charts/bamboo")]
    command += ["--namespace", OPERATOR_NAMESPACE]
    command += [x for name in shown for x in ("--show-only", f"templates/{name}.yaml")]
    done = await asyncio.to_thread(
        subprocess.run, command, check=True, capture_output=True, text=True
    )
    for body in yaml.safe_load_all(done.stdout):
        if body:
            await api.post(_collection(body), body)
    await _until(lambda: _is_served(api, definition["metadata"]["name"]))
    account = f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/serviceaccounts/op-operator/token"
    request = {"spec": {"expirationSeconds": _TOKEN_S}}
    token = (await api.post(account, request))["status"]["token"]
    config = yaml.safe_load(layout.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    path = layout.client_config("bamboo-operator")
    path.write_text(yaml.safe_dump(config))
    return path


def _collection(body: Object) -> str:
    version, kind = body["apiVersion"], body["kind"]
    base = f"/api/{version}" if version == "v1" else f"/apis/{version}"
    namespace = body["metadata"].get("namespace")
    if namespace is None and kind in ("Role", "RoleBinding", "ServiceAccount"):
        namespace = OPERATOR_NAMESPACE
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"{base}{within}/{kind.lower()}s"


async def _is_served(api: KubeApi, name: str) -> bool:
    conditions = (await api.get(f"{_CRD}/{name}")).get("status", {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


async def add_namespace(api: KubeApi, name: str) -> None:
    """A namespace whose pods may be made."""
    await api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    account = {"metadata": {"name": "default"}}
    await api.post(f"/api/v1/namespaces/{name}/serviceaccounts", account)


async def add_nodes(api: KubeApi, count: int) -> None:
    """Ready nodes with eight devices each, as a kubelet describes them; in three zones in turn."""

    async def one(index: int) -> None:
        name, zone = f"node-{index}", ZONES[index % len(ZONES)]
        labels = {"topology.kubernetes.io/zone": zone, "cloud.google.com/gke-spot": "true"}
        await api.post("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
        room = {"nvidia.com/gpu": str(GPUS_OF_A_NODE), "cpu": "96", "memory": "1Ti", "pods": "110"}
        status = {
            "allocatable": room,
            "capacity": room,
            "conditions": [ready_condition(0)],
            "nodeInfo": {"bootID": f"boot-{index}"},
        }
        await api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
        # The API server taints new nodes; the node controller would remove the taint.
        await api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})

    await each(one(index) for index in range(count))


def ready_condition(beat: int) -> Object:
    """A node's condition. beat: number of the kubelet's report, five minutes apart."""
    hour, minute = divmod(5 * beat, 60)
    at = f"2026-01-01T{hour % 24:02}:{minute:02}:00Z"
    return {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "lastHeartbeatTime": at,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
