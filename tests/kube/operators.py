"""An operator at work in the test's process, and the chart's accounts with their rights."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bamboo_devcluster.cluster import Cluster
from bamboo_devcluster.programs import binaries
from bamboo_operator import config
from bamboo_operator.app import LEASE, App
from bamboo_operator.config import Config
from bamboo_operator.election.other_releases import Releases
from bamboo_operator.kube import api
from bamboo_operator.kube.client import Kube, connect
from bamboo_operator.process.event_loop import LoopHearing

from .jobs import job

CHART = Path(__file__).resolve().parents[2] / "charts/bamboo"
Object = dict[str, Any]


@dataclass
class Running:
    """An operator at work. ``admin``: a client that may do everything. ``namespace``: of jobs."""

    app: App
    task: asyncio.Task[int]
    admin: Kube
    namespace: str

    async def stop(self) -> int:
        self.app.stop.set()
        return await asyncio.wait_for(self.task, 30)

    async def job(self, name: str = "job") -> dict[str, Any]:
        found = await self.admin.get(api.job(self.namespace, name))
        assert found is not None
        return found

    async def apply(self, **spec: Any) -> dict[str, Any]:
        return await self.admin.create(api.jobs(self.namespace), job(self.namespace, **spec))

    async def condition(self, kind: str) -> dict[str, Any]:
        conditions = ((await self.job()).get("status") or {}).get("conditions") or []
        return next((c for c in conditions if c["type"] == kind), {})

    async def pods(self) -> list[dict[str, Any]]:
        return await self.admin.list(api.pods(self.namespace))


async def until(condition: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    async with asyncio.timeout(timeout_s):
        while not (found := await condition()):  # noqa: ASYNC110 - the API is asked
            await asyncio.sleep(0.05)
    return found


async def bound_token(operator: Running, pod: dict[str, Any]) -> str:
    path = f"/api/v1/namespaces/{operator.namespace}/serviceaccounts/default/token"
    meta = pod["metadata"]
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "audiences": ["bamboo-operator"],
            "boundObjectRef": {
                "kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"],
            },
        },
    }  # fmt: skip
    answer = await operator.admin._request("POST", path, body=request)
    return str(answer["status"]["token"])


async def conflict(client: Kube, home: str, serves: str) -> str:
    """The reason why a release in the namespace ``home`` must not lead; empty: there is none."""
    return await Releases(client, namespace=home, name=LEASE, namespaces=[serves])._conflict(None)


@asynccontextmanager
async def at_work(admin: Kube, namespace: str, env: Mapping[str, str]) -> AsyncIterator[Running]:
    """An operator with KUBECONFIG's rights, from when it leads. namespace: of its jobs."""
    found = config.from_env({"POD_IP": "127.0.0.1", **env})
    free = Config(**{**vars(found), "listen": "127.0.0.1:0", "health_port": 0, "metrics_port": 0})
    client = await connect()
    app = App(free, client, LoopHearing())
    client.observe_with(app.metrics.observe_request)
    running = Running(app, asyncio.create_task(app.run()), admin, namespace)
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


def render(home: str, templates: Iterable[str], *settings: str) -> list[Object]:
    """Objects of the release ``op`` in the namespace ``home``. settings: as for ``--set``."""
    helm = binaries.ensure(print, ["helm"])["helm"]
    command = [str(helm), "template", "op", str(CHART), "--namespace", home]
    for name in templates:
        command += ["--show-only", f"templates/{name}.yaml"]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [body for body in yaml.safe_load_all(done.stdout) if body]


@dataclass(frozen=True)
class Account:
    """A service account of the chart in the cluster, with its roles and their bindings."""

    user: str
    rights: list[Object]
    kubeconfig: Path
    token: str


@asynccontextmanager
async def account(
    cluster: Cluster, home: str, name: str, rights: list[Object]
) -> AsyncIterator[Account]:
    """The account has these rights meanwhile. home: its namespace."""
    kubectl = binaries.ensure(print)["kubectl"]
    base = [str(kubectl), "--kubeconfig", str(cluster.kubeconfig)]
    text = yaml.safe_dump_all(rights)

    async def run(*arguments: str, stdin: str = "") -> str:
        done = await asyncio.to_thread(
            subprocess.run, [*base, *arguments], input=stdin, text=True, check=True,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        return str(done.stdout)

    await run("apply", "-f", "-", stdin=text)
    try:
        token = (await run("-n", home, "create", "token", name)).strip()
        body = yaml.safe_load(await asyncio.to_thread(cluster.kubeconfig.read_text))
        for user in body["users"]:
            user["user"] = {"token": token}
        path = cluster.directory / f"{home}-{name}.kubeconfig"
        await asyncio.to_thread(path.write_text, yaml.safe_dump(body))
        yield Account(f"system:serviceaccount:{home}:{name}", rights, path, token)
    finally:
        await run("delete", "-f", "-", "--wait=false", stdin=text)
