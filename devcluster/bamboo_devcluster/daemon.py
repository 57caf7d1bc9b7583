"""The daemon of a cluster: parent of the control plane, host of the nodes.

`cluster.Cluster` runs it as `python -m bamboo_devcluster.daemon DIRECTORY STATUS_FD`. It holds the
directory's lock while it runs. When it dies, the kernel kills all other processes of the cluster.
It reads its configuration from `config.json` in the directory.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bamboo_devcluster.children import launch
from bamboo_devcluster.children.environment import container_path
from bamboo_devcluster.control import ControlServer
from bamboo_devcluster.controlplane.components import LOOPBACK, Ports
from bamboo_devcluster.controlplane.startup import ControlPlane
from bamboo_devcluster.directory import lock_directory, remove_files, sign_lock
from bamboo_devcluster.errors import DevclusterError, disk_full_message, is_disk_full
from bamboo_devcluster.kube import pki
from bamboo_devcluster.kube.client import KubeApi
from bamboo_devcluster.layout import Layout
from bamboo_devcluster.nodes.interface import NodeKind
from bamboo_devcluster.nodes.kubelet.preparation import Kubelets
from bamboo_devcluster.nodes.process.addresses import AddressBlock
from bamboo_devcluster.nodes.process.endpoint import KubeletServers
from bamboo_devcluster.nodes.process.kind import ProcessNodes
from bamboo_devcluster.nodes.process.pods.container import Backoff
from bamboo_devcluster.nodes.process.pods.events import EventRecorder
from bamboo_devcluster.nodes.process.pods.preparation import NodePorts
from bamboo_devcluster.programs import binaries
from bamboo_devcluster.spec import ImageMap, NodeSpec

_ANSWER_S = 150.0  # longer than a node without archives takes


@dataclass(frozen=True)
class Config:
    """The configuration of a cluster."""

    nodes: tuple[NodeSpec, ...] = ()
    images: ImageMap = field(default_factory=ImageMap)
    api_port: int = 0
    backoff: Backoff = field(default_factory=Backoff)
    node_kind: str = "process"
    image_archives: tuple[Path, ...] = ()
    audit: bool = False
    dies_with: int = 0  # PID of the process with which the cluster ends; 0: none

    @classmethod
    def load(cls, path: Path) -> "Config":
        """Read config.json, written by `cluster.Cluster`."""
        data = json.loads(path.read_text())
        return cls(
            nodes=tuple(NodeSpec.from_json(node) for node in data["nodes"]),
            images=ImageMap.parse(data["images"]),
            api_port=data["api_port"],
            backoff=Backoff(base_s=data["crash_loop_backoff_s"]),
            node_kind=data["node_kind"],
            image_archives=tuple(Path(path) for path in data["image_archives"]),
            audit=data["audit"],
            dies_with=data["dies_with"],
        )


class Daemon:
    """Starts one cluster and runs it until it is stopped."""

    def __init__(self, layout: Layout, config: Config, report: Callable[[str], None]) -> None:
        self._layout, self._config, self._report = layout, config, report
        self._control_plane = ControlPlane(
            layout, api_port=config.api_port, is_audited=config.audit
        )
        self._kubelets: Kubelets | None = None
        self._stop = asyncio.Event()
        self.owner_died = False

    async def run(self, on_ready: Callable[[dict[str, Any]], None]) -> None:
        """Start everything, serve, and stop on SIGTERM or a control request."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        if self._config.dies_with:
            self._follow(self._config.dies_with)
        paths = binaries.ensure(self._report, binaries.CONTROL_PLANE)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._control_plane.stop)
            host, addresses = LOOPBACK, AddressBlock()
            stack.callback(addresses.close)
            if self._config.node_kind == "kubelet":
                self._kubelets = Kubelets.prepare(
                    self._layout, self._config.images, self._config.image_archives, self._report
                )
                host = self._kubelets.network.address
                stack.callback(self._kubelets.network.close)
            authority = pki.Authority(self._layout.pki)
            ports = await self._control_plane.start(paths, authority, host)
            state = await self._start_nodes(stack, authority, addresses, ports)
            on_ready(state)
            await self._until_stopped()

    def _follow(self, owner: int) -> None:
        """End when the owner ends. A parent-death signal would be tied to the owner's thread."""
        try:
            descriptor = os.pidfd_open(owner)
        except ProcessLookupError:
            self.owner_died = True
            self._stop.set()
            return

        def on_end() -> None:
            asyncio.get_running_loop().remove_reader(descriptor)
            self.owner_died = True
            self._stop.set()

        asyncio.get_running_loop().add_reader(descriptor, on_end)

    async def _until_stopped(self) -> None:
        keeper = asyncio.create_task(self._control_plane.keep_running(self._report))
        stopped = asyncio.create_task(self._stop.wait())
        done, pending = await asyncio.wait({keeper, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        for task in done:
            task.result()  # raises if a component kept exiting

    async def _start_nodes(
        self,
        stack: AsyncExitStack,
        authority: pki.Authority,
        addresses: AddressBlock,
        ports: Ports,
    ) -> dict[str, Any]:
        api = await stack.enter_async_context(
            KubeApi.from_directory(self._layout.root, ports.server)
        )
        if self._kubelets is not None:
            nodes: NodeKind = self._kubelets.nodes(api, authority, ports.server)
        else:
            nodes = await self._process_nodes(stack, api, authority, addresses, ports)
        stack.push_async_callback(nodes.close)
        control = ControlServer(nodes, self._stop.set)
        stack.push_async_callback(control.close)
        address = await control.open(addresses.control, authority)
        await asyncio.gather(*(nodes.add(spec) for spec in self._config.nodes))
        await self._control_plane.until_pods_are_accepted(api)
        return {
            "pid": os.getpid(),
            "server": ports.server,
            "control": address,
            "node_kind": self._config.node_kind,
            "answers_within_s": _ANSWER_S + (self._kubelets.import_s if self._kubelets else 0),
        }

    async def _process_nodes(
        self,
        stack: AsyncExitStack,
        api: KubeApi,
        authority: pki.Authority,
        addresses: AddressBlock,
        ports: Ports,
    ) -> ProcessNodes:
        events = EventRecorder(api)
        recorder = asyncio.create_task(events.run())
        stack.callback(recorder.cancel)
        node_ports = await self._node_ports(api, events, ports)
        return ProcessNodes(api, node_ports, addresses, KubeletServers(authority))

    async def _node_ports(self, api: KubeApi, events: EventRecorder, ports: Ports) -> NodePorts:
        async def awake() -> None:
            return None

        return NodePorts(
            api=api,
            events=events,
            images=self._config.images,
            isolation=await launch.find_isolation(self._layout.root),
            directory=self._layout.nodes,
            host_ip="",
            allocatable={},
            api_env={
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": str(ports.api),
                "KUBERNETES_SERVICE_PORT_HTTPS": str(ports.api),
            },
            path_env=container_path(),
            awake=awake,
            start_gate=asyncio.Semaphore(os.cpu_count() or 1),
            backoff=self._config.backoff,
        )


def main() -> None:
    """Run the daemon of one directory."""
    root = Path(sys.argv[1])
    status = int(sys.argv[2])

    def send(message: dict[str, Any]) -> None:
        try:
            os.write(status, json.dumps(message).encode() + b"\n")
        except OSError:
            return  # the starting process has exited; the cluster keeps running

    def report(text: str) -> None:
        print(text, flush=True)
        send({"progress": text})

    lock = lock_directory(root)
    if lock is None:
        send({"error": f"another cluster is running in {root}"})
        sys.exit(1)
    sign_lock(lock)
    config = Config.load(root / "config.json")
    layout = Layout(root)

    def on_ready(state: dict[str, Any]) -> None:
        pki.write_private(root / "cluster.json", json.dumps(state).encode())
        send({"ready": state})

    daemon: list[Daemon] = []

    async def serve() -> None:
        daemon.append(Daemon(layout, config, report))
        await daemon[0].run(on_ready)

    try:
        asyncio.run(serve())
    except DevclusterError as error:
        print(error, flush=True)
        send({"error": str(error)})
        sys.exit(1)
    except OSError as error:
        if not is_disk_full(error):
            raise
        send({"error": disk_full_message(root)})
        sys.exit(1)
    finally:
        (root / "cluster.json").unlink(missing_ok=True)
        if daemon and daemon[0].owner_died:
            remove_files(root)  # no other process is left to do it


if __name__ == "__main__":
    main()
