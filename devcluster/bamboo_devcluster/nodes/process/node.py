"""One process node: its Node object, its Lease, its pods.

Behaves like a kubelet towards the API. `PodWorker` runs the pods.
"""

import asyncio
import os
import platform
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bamboo_devcluster.errors import NodeError
from bamboo_devcluster.kube import clock
from bamboo_devcluster.kube.client import STRATEGIC_PATCH, ApiError, UnreachableError
from bamboo_devcluster.nodes.process.pods.pod import PodWorker
from bamboo_devcluster.nodes.process.pods.preparation import NodePorts
from bamboo_devcluster.programs.binaries import KUBERNETES_VERSION
from bamboo_devcluster.spec import NodeSpec, machine_architecture

Object = dict[str, Any]

LEASE_DURATION_S = 8
LEASE_RENEW_S = 2.0
STATUS_PERIOD_S = 10.0
MAX_PODS = 250
_RETRY_S = 0.5
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


@dataclass(frozen=True)
class NodeAddress:
    """Where a node's kubelet endpoint listens."""

    ip: str
    port: int


class ProcessNode:
    """A machine; it exists until `vanish`."""

    def __init__(
        self,
        spec: NodeSpec,
        address: NodeAddress,
        ports: NodePorts,
        *,
        take_address: Callable[[], str],
        give_back: Callable[[str], None],
    ) -> None:
        self.spec = spec
        self.address = address
        self.boot_id = str(uuid.uuid4())
        self.uid = ""
        self.workers: dict[str, PodWorker] = {}
        self.state = "running"
        self.has_broken_devices = False  # it refuses new pods that ask for one
        self._awake = asyncio.Event()
        self._awake.set()
        self._ports = replace(ports, awake=self.awake, allocatable=capacity(spec))
        self._take_address, self._give_back = take_address, give_back
        self._tasks: list[asyncio.Task[None]] = []
        self._pending: dict[str, tuple[str, Object]] = {}
        self._ready_since = clock.to_time(clock.now())

    async def awake(self) -> None:
        """Return at once unless the machine is frozen."""
        await self._awake.wait()

    async def register(self) -> None:
        """Create the Node object; replace that of a dead machine with the same name."""
        api, path = self._ports.api, f"/api/v1/nodes/{self.spec.name}"
        for _ in range(2):
            try:
                created = await api.post("/api/v1/nodes", self._node_object())
            except ApiError as error:
                if error.code != 409:
                    raise NodeError(f"node {self.spec.name} was refused: {error}") from error
                await api.delete(path, {"gracePeriodSeconds": 0})
                continue
            self.uid = created["metadata"]["uid"]
            break
        await self._renew_lease()
        # Admission taints every new node as not ready, and the node controller removes the taint
        # a moment later. Ours is ready now.
        taints = self._taints()
        await api.patch(path, {"spec": {"taints": taints or None}})
        self._tasks = [
            asyncio.create_task(self._keep_lease()),
            asyncio.create_task(self._keep_status()),
        ]

    def see(self, kind: str, pod: Object) -> None:
        """Handle a watch event of a pod that is bound to this node."""
        if self.state == "dead":
            return
        if not self._awake.is_set():
            self._pending[pod["metadata"]["uid"]] = (kind, pod)
            return
        self._handle(kind, pod)

    def freeze(self) -> None:
        """Stop all processes and heartbeats."""
        self._must_run("frozen")
        self._awake.clear()
        self.state = "frozen"
        for worker in self.workers.values():
            worker.freeze()

    def thaw(self) -> None:
        """Resume after a freeze."""
        if self.state != "frozen":
            raise NodeError(f"node {self.spec.name} is {self.state}; only a frozen node can thaw")
        for worker in self.workers.values():
            worker.thaw()
        self.state = "running"
        self._awake.set()
        pending, self._pending = self._pending, {}
        for kind, pod in pending.values():
            self._handle(kind, pod)
        self._tasks.append(asyncio.create_task(self._report_ready()))

    async def vanish(self) -> None:
        """SIGKILL all processes at once; report nothing to the API."""
        if self.state == "dead":
            return
        self.state = "dead"
        for task in self._tasks:
            task.cancel()
        workers = list(self.workers.values())
        for worker in workers:
            worker.vanish()
        self._awake.set()
        await asyncio.gather(*(worker.task for worker in workers), return_exceptions=True)

    def find_pod(self, namespace: str, name: str) -> PodWorker | None:
        """Return the worker of a pod on this node."""
        key = f"{namespace}/{name}"
        found = [worker for worker in self.workers.values() if worker.key == key]
        return found[-1] if found else None

    def _must_run(self, wish: str) -> None:
        if self.state != "running":
            raise NodeError(f"node {self.spec.name} is {self.state} and cannot be {wish}")

    def _handle(self, kind: str, pod: Object) -> None:
        worker = self.workers.get(pod["metadata"]["uid"])
        if kind == "DELETED":
            if worker:
                worker.forget(pod)
            return
        if worker:
            worker.update(pod)
            return
        is_broken = self.has_broken_devices
        worker = PodWorker(pod, self._take_address(), self._ports, has_broken_devices=is_broken)
        self.workers[pod["metadata"]["uid"]] = worker
        worker.task.add_done_callback(lambda task: self._drop(worker, task))
        worker.update(pod)

    def _drop(self, worker: PodWorker, task: "asyncio.Task[None]") -> None:
        self.workers.pop(worker.pod["metadata"]["uid"], None)
        self._give_back(worker.pod_ip)
        if not task.cancelled() and (error := task.exception()):
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"pod {worker.key} failed", "exception": error}
            )

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(LEASE_RENEW_S)
            await self.awake()
            try:
                await self._renew_lease()
            except (ApiError, UnreachableError):
                await asyncio.sleep(_RETRY_S)

    async def _renew_lease(self) -> None:
        spec: Object = {
            "holderIdentity": self.spec.name,
            "leaseDurationSeconds": LEASE_DURATION_S,
            "renewTime": clock.to_micro_time(clock.now()),
        }
        owner = {"apiVersion": "v1", "kind": "Node", "name": self.spec.name, "uid": self.uid}
        metadata: Object = {"name": self.spec.name, "ownerReferences": [owner]}
        lease = {"metadata": metadata, "spec": spec}
        api = self._ports.api
        try:
            await api.patch(f"{_LEASES}/{self.spec.name}", lease)
        except ApiError as error:
            if error.code != 404:
                raise
            await api.post(_LEASES, lease)

    async def _keep_status(self) -> None:
        while True:
            await asyncio.sleep(STATUS_PERIOD_S)
            await self.awake()
            await self._report_ready()

    async def _report_ready(self) -> None:
        body = {"metadata": {"uid": self.uid}, "status": {"conditions": self._conditions()}}
        path = f"/api/v1/nodes/{self.spec.name}/status"
        try:
            await self._ports.api.patch(path, body, STRATEGIC_PATCH)
        except (ApiError, UnreachableError):
            return  # the node was deleted, or the API is unreachable; retried in the next round

    def _node_object(self) -> Object:
        amounts = capacity(self.spec)
        return {
            "metadata": {
                "name": self.spec.name,
                "labels": self.spec.all_labels(),
                "annotations": {"node.alpha.kubernetes.io/ttl": "0"},
            },
            "spec": {"taints": self._taints(), "providerID": f"process://{self.boot_id}"},
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": self._conditions(),
                "addresses": [
                    {"type": "InternalIP", "address": self.address.ip},
                    {"type": "Hostname", "address": self.spec.name},
                ],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": self.address.port}},
                "nodeInfo": _node_info(self.boot_id),
            },
        }

    def _taints(self) -> list[Object]:
        return [{"key": t.key, "value": t.value, "effect": t.effect} for t in self.spec.taints]

    def _conditions(self) -> list[Object]:
        now = clock.to_time(clock.now())
        pressures = ("MemoryPressure", "DiskPressure", "PIDPressure")
        rows = [(kind, "False", "KubeletHasSufficientResources") for kind in pressures]
        rows.append(("Ready", "True", "KubeletReady"))
        return [
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": "process node",
                "lastHeartbeatTime": now,
                "lastTransitionTime": self._ready_since,
            }
            for kind, status, reason in rows
        ]


def capacity(spec: NodeSpec) -> dict[str, str]:
    """Return the node's resources."""
    amounts = {"cpu": spec.cpu, "memory": spec.memory, "pods": str(MAX_PODS)}
    amounts["ephemeral-storage"] = "100Gi"
    if spec.gpus:
        amounts["nvidia.com/gpu"] = str(spec.gpus)
    return amounts


def _node_info(boot_id: str) -> Object:
    kernel = os.uname()
    return {
        "bootID": boot_id,
        "machineID": boot_id.replace("-", ""),
        "systemUUID": boot_id,
        "kernelVersion": kernel.release,
        "osImage": platform.platform(),
        "operatingSystem": "linux",
        "architecture": machine_architecture(),
        "containerRuntimeVersion": "process://1",
        "kubeletVersion": f"v{KUBERNETES_VERSION}",
        "kubeProxyVersion": "",
    }
