"""The node kind `process`: all process nodes of a cluster in one process.

One watch serves the pods of all nodes. Each node has its own address, heartbeats and kubelet
endpoint. The protocol NodeKind is the contract.
"""

import asyncio
from dataclasses import replace
from typing import Any

from bamboo_devcluster.errors import NodeError
from bamboo_devcluster.kube.client import ApiError, KubeApi, UnreachableError
from bamboo_devcluster.nodes.interface import no_such
from bamboo_devcluster.nodes.notice import Notices
from bamboo_devcluster.nodes.process.addresses import AddressBlock
from bamboo_devcluster.nodes.process.endpoint import KubeletServers
from bamboo_devcluster.nodes.process.node import ProcessNode
from bamboo_devcluster.nodes.process.pods.pod import PodWorker
from bamboo_devcluster.nodes.process.pods.preparation import NodePorts
from bamboo_devcluster.spec import NodeSpec

Object = dict[str, Any]

_ONE_NETWORK = (
    "process nodes share the machine's network, so that nothing can be cut; start the cluster with"
    " `--node-kind kubelet`"
)


class ProcessNodes:
    """Implements NodeKind."""

    def __init__(
        self, api: KubeApi, ports: NodePorts, addresses: AddressBlock, servers: KubeletServers
    ) -> None:
        self._api, self._ports = api, ports
        self._addresses, self._servers = addresses, servers
        self._nodes: dict[str, ProcessNode] = {}
        self._pods: dict[str, Object] = {}
        self._notices = Notices(api)
        self._watch = asyncio.create_task(self._watch_pods())

    async def add(self, spec: NodeSpec) -> None:
        old = self._nodes.get(spec.name)
        if old and old.state != "dead":
            raise NodeError(f"node {spec.name} already exists; kill or remove it first")
        ip = self._addresses.take_node()
        port = await self._servers.open(spec.name, ip, self._find_worker)
        node = ProcessNode(
            spec,
            port,
            _in_folder(self._ports, spec.name, ip),
            take_address=self._addresses.take_pod,
            give_back=self._addresses.give_back,
        )
        self._nodes[spec.name] = node
        try:
            await node.register()
        except (NodeError, UnreachableError):
            del self._nodes[spec.name]
            await self._servers.close(spec.name)
            raise
        for pod in list(self._pods.values()):
            if pod["spec"].get("nodeName") == spec.name:
                node.see("ADDED", pod)

    async def kill(self, name: str) -> None:
        node = self._get(name)
        await self._servers.close(name)
        await node.vanish()
        self._addresses.give_back(node.address.ip)

    async def freeze(self, name: str) -> None:
        self._get(name).freeze()

    async def thaw(self, name: str) -> None:
        self._get(name).thaw()

    async def remove(self, name: str) -> None:
        node = self._nodes.get(name)
        if node is None:
            raise NodeError(no_such(name, self._nodes))
        if node.state != "dead":
            await self.kill(name)
        del self._nodes[name]
        try:
            await self._api.delete(f"/api/v1/nodes/{name}", {"gracePeriodSeconds": 0})
        except ApiError as error:
            if error.code != 404:
                raise NodeError(f"node {name} could not be deleted: {error}") from error

    async def notice(self, name: str, lead_s: float) -> None:
        node = self._get(name)
        if node.state != "running":
            raise NodeError(f"node {name} is {node.state} and cannot get a notice")
        pods = [worker.pod for worker in node.workers.values()]
        await self._notices.give(name, pods, lead_s, lambda: self._kill_again(node))

    async def kill_pod(self, namespace: str, name: str) -> None:
        worker = self._find_worker(namespace, name)
        if worker is None:
            raise NodeError(f"no pod {namespace}/{name} runs on a living node of this cluster")
        worker.kill()

    async def break_devices(self, name: str) -> None:
        self._get(name).has_broken_devices = True

    async def repair_devices(self, name: str) -> None:
        self._get(name).has_broken_devices = False

    async def cut(self, name: str, other: str) -> None:
        raise NodeError(_ONE_NETWORK)

    async def heal(self, name: str, other: str) -> None:
        raise NodeError(_ONE_NETWORK)

    def states(self) -> dict[str, str]:
        return {name: node.state for name, node in sorted(self._nodes.items())}

    def specs(self) -> dict[str, NodeSpec]:
        """Node name -> spec."""
        return {name: node.spec for name, node in sorted(self._nodes.items())}

    async def close(self) -> None:
        self._watch.cancel()
        self._notices.cancel()
        await asyncio.gather(*(node.vanish() for node in self._nodes.values()))
        await self._servers.close_all()

    def _get(self, name: str) -> ProcessNode:
        node = self._nodes.get(name)
        if node is None or node.state == "dead":
            living = {n: node for n, node in self._nodes.items() if node.state != "dead"}
            raise NodeError(no_such(name, living))
        return node

    def _find_worker(self, namespace: str, name: str) -> PodWorker | None:
        for node in self._nodes.values():
            if worker := node.find_pod(namespace, name):
                return worker
        return None

    async def _watch_pods(self) -> None:
        async for kind, item in self._api.watch("/api/v1/pods", fieldSelector="spec.nodeName!="):
            if kind == "SYNC":
                self._sync(item)
            else:
                self._dispatch(kind, item)

    def _sync(self, pods: list[Object]) -> None:
        listed = {pod["metadata"]["uid"]: pod for pod in pods}
        for uid in set(self._pods) - set(listed):
            self._dispatch("DELETED", self._pods[uid])
        for pod in listed.values():
            self._dispatch("MODIFIED", pod)

    def _dispatch(self, kind: str, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        if kind == "DELETED":
            self._pods.pop(uid, None)
        else:
            self._pods[uid] = pod
        node = self._nodes.get(pod["spec"].get("nodeName", ""))
        if node and node.uid:
            node.see(kind, pod)

    async def _kill_again(self, node: ProcessNode) -> None:
        # A newer machine may have the same name.
        if self._nodes.get(node.spec.name) is node and node.state != "dead":
            await self.kill(node.spec.name)


def _in_folder(ports: NodePorts, name: str, ip: str) -> NodePorts:
    return replace(ports, directory=ports.directory / name, host_ip=ip)
