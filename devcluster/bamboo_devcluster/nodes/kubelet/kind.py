"""The node kind `kubelet`: registers machines, and makes them fail."""

import asyncio
import uuid
from pathlib import Path
from typing import Any

from bamboo_devcluster.errors import NodeError
from bamboo_devcluster.kube.client import STRATEGIC_PATCH, ApiError, KubeApi, UnreachableError
from bamboo_devcluster.nodes.interface import no_such
from bamboo_devcluster.nodes.kubelet.cgroups import kill
from bamboo_devcluster.nodes.kubelet.machine import Machine, Site
from bamboo_devcluster.nodes.notice import Notices
from bamboo_devcluster.spec import NodeSpec

Object = dict[str, Any]

_READY_S = 120.0
_POLL_S = 0.1
_NO_PLUGIN = (
    "kubelet nodes have no device plugin that could break; start the cluster with"
    " `--node-kind process`"
)
_NOT_READY = "node.kubernetes.io/not-ready"


class KubeletNodes:
    """Implements NodeKind."""

    def __init__(self, api: KubeApi, site: Site) -> None:
        self._api, self._site = api, site
        self._machines: dict[str, Machine] = {}
        self._notices = Notices(api)

    async def add(self, spec: NodeSpec) -> None:
        old = self._machines.get(spec.name)
        if old and old.state != "dead":
            raise NodeError(f"node {spec.name} already exists; kill or remove it first")
        machine = Machine(spec, self._site.network.take(), str(uuid.uuid4()), self._site)
        self._machines[spec.name] = machine
        try:
            await self._register(spec)
            await machine.start()
            await self._until_ready(machine)
        except BaseException:
            del self._machines[spec.name]
            await machine.vanish()
            raise
        await asyncio.gather(
            *(
                self._site.network.add_route(other.pid, machine.place)
                for other in self._living()
                if other is not machine
            )
        )

    async def kill(self, name: str) -> None:
        await self._get(name).vanish()
        for other in self._living():
            if name in other.cuts:
                await self._set_cuts(other, [cut for cut in other.cuts if cut != name])

    async def freeze(self, name: str) -> None:
        machine = self._get(name)
        if machine.state != "running":
            raise NodeError(f"node {name} is {machine.state} and cannot be frozen")
        await machine.freeze()

    async def thaw(self, name: str) -> None:
        machine = self._get(name)
        if machine.state != "frozen":
            raise NodeError(f"node {name} is {machine.state}; only a frozen node can thaw")
        machine.thaw()

    async def remove(self, name: str) -> None:
        machine = self._machines.get(name)
        if machine is None:
            raise NodeError(no_such(name, self._machines))
        if machine.state != "dead":
            await self.kill(name)
        del self._machines[name]
        try:
            await self._api.delete(f"/api/v1/nodes/{name}", {"gracePeriodSeconds": 0})
        except ApiError as error:
            if error.code != 404:
                raise NodeError(f"node {name} could not be deleted: {error}") from error

    async def notice(self, name: str, lead_s: float) -> None:
        machine = self._get(name)
        if machine.state != "running":
            raise NodeError(f"node {name} is {machine.state} and cannot get a notice")
        pods = await self._api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={name}")
        await self._notices.give(
            name, pods.get("items") or [], lead_s, lambda: self._kill_again(machine)
        )

    async def kill_pod(self, namespace: str, name: str) -> None:
        machine, pod = await self._find_pod(namespace, name)
        statuses = pod["status"].get("containerStatuses") or []
        names = {(status.get("containerID") or "").rpartition("/")[2] for status in statuses}
        for folder in machine.group.folders():
            if folder.name in names:
                kill(_processes(folder))

    async def break_devices(self, name: str) -> None:
        raise NodeError(_NO_PLUGIN)

    async def repair_devices(self, name: str) -> None:
        raise NodeError(_NO_PLUGIN)

    async def cut(self, name: str, other: str) -> None:
        machine = self._get(name)
        self._get(other)
        if name == other:
            raise NodeError(f"node {name} cannot be cut off from itself; name two nodes")
        await self._set_cuts(machine, [*machine.cuts, other])

    async def heal(self, name: str, other: str) -> None:
        machine = self._get(name)
        if other not in machine.cuts:
            cuts = ", ".join(machine.cuts) or "none"
            raise NodeError(f"node {name} is not cut off from {other}; its cuts: {cuts}")
        await self._set_cuts(machine, [cut for cut in machine.cuts if cut != other])

    def states(self) -> dict[str, str]:
        return {name: machine.state for name, machine in sorted(self._machines.items())}

    async def close(self) -> None:
        self._notices.cancel()
        await asyncio.gather(*(machine.vanish() for machine in self._machines.values()))

    def _get(self, name: str) -> Machine:
        machine = self._machines.get(name)
        if machine is None or machine.state == "dead":
            raise NodeError(no_such(name, {m.spec.name: m for m in self._living()}))
        return machine

    def _living(self) -> list[Machine]:
        return [m for m in self._machines.values() if m.state != "dead" and m.is_started]

    async def _register(self, spec: NodeSpec) -> None:
        """Create the Node object, so that the kubelet finds its labels and taints there."""
        taints = [{"key": t.key, "value": t.value, "effect": t.effect} for t in spec.taints]
        node: Object = {
            "metadata": {"name": spec.name, "labels": spec.all_labels()},
            "spec": {"taints": taints},
        }
        for last in (False, True):
            try:
                await self._api.post("/api/v1/nodes", node)
                return
            except ApiError as error:
                if error.code != 409 or last:
                    raise NodeError(f"node {spec.name} was refused: {error}") from error
                await self._api.delete(f"/api/v1/nodes/{spec.name}", {"gracePeriodSeconds": 0})

    async def _until_ready(self, machine: Machine) -> None:
        limit_s = _READY_S + self._site.import_s
        ready = asyncio.create_task(self._poll(machine.spec))
        end = asyncio.create_task(machine.fail_at_end())
        try:
            done, _ = await asyncio.wait(
                {ready, end}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
            if not done:
                raise NodeError(
                    f"node {machine.spec.name} was not ready within {limit_s:.0f} s; see"
                    f" {self._site.logs / machine.spec.name}"
                )
        finally:
            ready.cancel()
            end.cancel()

    async def _poll(self, spec: NodeSpec) -> None:
        path = f"/api/v1/nodes/{spec.name}"
        gpus = {"nvidia.com/gpu": str(spec.gpus)} if spec.gpus else {}
        amounts = {"status": {"capacity": gpus, "allocatable": gpus}}
        while True:
            try:
                node = await self._api.get(path)
                if _is_ready(node):
                    found = node["status"]["allocatable"]
                    if all(found.get(name) == amount for name, amount in gpus.items()):
                        return
                    # A new kubelet sets devices that it does not manage to 0, so: now.
                    await self._api.patch(f"{path}/status", amounts, STRATEGIC_PATCH)
            except (ApiError, UnreachableError):
                pass  # retried
            await asyncio.sleep(_POLL_S)

    async def _find_pod(self, namespace: str, name: str) -> tuple[Machine, Object]:
        try:
            pod = await self._api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
        except ApiError:
            pod = {}
        machine = self._machines.get(pod.get("spec", {}).get("nodeName", ""))
        if machine is None or machine.state == "dead":
            raise NodeError(f"no pod {namespace}/{name} runs on a living node of this cluster")
        return machine, pod

    async def _set_cuts(self, machine: Machine, names: list[str]) -> None:
        targets = [self._machines[name].place for name in names]
        await self._site.network.cut(machine.pid, targets)
        machine.cuts = names

    async def _kill_again(self, machine: Machine) -> None:
        # A newer machine may have the same name.
        if self._machines.get(machine.spec.name) is machine and machine.state != "dead":
            await self.kill(machine.spec.name)


def _is_ready(node: Object) -> bool:
    conditions = node["status"].get("conditions") or []
    taints = [taint["key"] for taint in node["spec"].get("taints") or []]
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and _NOT_READY not in taints


def _processes(folder: Path) -> set[int]:
    try:
        return {int(line) for line in (folder / "cgroup.procs").read_text().split()}
    except OSError:
        return set()  # it has ended
