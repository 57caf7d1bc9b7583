"""The daemon of a cluster: parent of the control plane, host of the nodes.

`cluster.Cluster` runs it as `python -m bamboo_devcluster.daemon DIRECTORY STATUS_FD`. It holds the
directory's lock while it runs. When it dies, the kernel kills all other processes of the cluster.
It reads its configuration from `config.json` in the directory.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bamboo_devcluster import audit, binaries, components, launch, pki
from bamboo_devcluster.addresses import AddressBlock
from bamboo_devcluster.components import Component, PortInUseError, Ports
from bamboo_devcluster.container import Backoff
from bamboo_devcluster.control import ControlServer
from bamboo_devcluster.directory import Layout, lock_directory, remove_files, sign_lock
from bamboo_devcluster.errors import DevclusterError, disk_full_message, is_disk_full
from bamboo_devcluster.events import EventRecorder
from bamboo_devcluster.kubeapi import ApiError, KubeApi, UnreachableError
from bamboo_devcluster.kubelet.cluster import Kubelets
from bamboo_devcluster.kubelet_server import KubeletServers
from bamboo_devcluster.node_kind import NodeKind
from bamboo_devcluster.pod_start import NodePorts, default_path_env
from bamboo_devcluster.process_nodes import ProcessNodes
from bamboo_devcluster.spec import ImageMap, NodeSpec

_READY_TIMEOUT_S = 90.0
_ANSWER_S = 150.0  # longer than a node without archives takes
_PORT_ATTEMPTS = 3
_POLL_S = 0.1


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
        self._components: list[Component] = []
        self._kubelets: Kubelets | None = None
        self._host = components.LOOPBACK
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
            stack.push_async_callback(self._stop_components)
            addresses = AddressBlock()
            stack.callback(addresses.close)
            if self._config.node_kind == "kubelet":
                self._kubelets = Kubelets.prepare(
                    self._layout, self._config.images, self._config.image_archives, self._report
                )
                self._host = self._kubelets.network.address
                stack.callback(self._kubelets.network.close)
            authority = pki.Authority(self._layout.pki)
            ports = await self._start_control_plane(paths, authority)
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
        keepers = [asyncio.create_task(c.keep_running(self._report)) for c in self._components]
        stopped = asyncio.create_task(self._stop.wait())
        done, pending = await asyncio.wait({*keepers, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        for task in done:
            task.result()  # raises if a component kept exiting

    async def _start_control_plane(self, paths: dict[str, Path], authority: pki.Authority) -> Ports:
        for attempt in range(_PORT_ATTEMPTS):
            ports = components.pick_ports(self._config.api_port, self._host)
            components.write_credentials(self._layout, authority, ports)
            try:
                await self._start_components(paths, ports)
            except PortInUseError:
                await self._stop_components()
                if self._config.api_port or attempt == _PORT_ATTEMPTS - 1:
                    raise
                continue
            return ports
        raise AssertionError("unreachable")

    async def _start_components(self, paths: dict[str, Path], ports: Ports) -> None:
        argvs = components.command_lines(paths, self._layout, ports)
        if self._config.audit:
            argvs["kube-apiserver"] += audit.flags(self._layout)
        self._components = [Component(n, argv, self._layout) for n, argv in argvs.items()]
        etcd, server, *clients = self._components
        await etcd.start()
        await server.start()
        await self._until_ready(ports, [etcd, server])
        for component in clients:
            await component.start()

    async def _until_ready(self, ports: Ports, watched: list[Component]) -> None:
        ends: list[asyncio.Task[None]] = [asyncio.create_task(c.fail_at_end()) for c in watched]
        ready = asyncio.create_task(self._poll_readyz(ports))
        try:
            done, _ = await asyncio.wait(
                {ready, *ends}, timeout=_READY_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
            if ready not in done:
                raise DevclusterError(
                    f"kube-apiserver was not ready within {_READY_TIMEOUT_S:g} s; see "
                    f"{self._layout.logs}"
                )
        finally:
            for task in (ready, *ends):
                task.cancel()

    async def _poll_readyz(self, ports: Ports) -> None:
        async with self._client(ports) as api:
            while True:
                try:
                    await api.get("/readyz")
                    # Default priority classes and namespaces appear slightly later.
                    await api.get("/api/v1/namespaces/kube-node-lease")
                    return
                except (ApiError, UnreachableError):
                    await asyncio.sleep(_POLL_S)

    async def _until_exists(self, api: KubeApi, path: str) -> None:
        """Wait for an object that the controller manager creates; pods are refused without it."""
        try:
            async with asyncio.timeout(_READY_TIMEOUT_S):
                while True:
                    with contextlib.suppress(ApiError, UnreachableError):
                        await api.get(path)
                        return
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise DevclusterError(
                f"kube-controller-manager created no service account within {_READY_TIMEOUT_S:g} s;"
                f" see {self._layout.logs}"
            ) from None

    def _client(self, ports: Ports) -> KubeApi:
        return KubeApi.from_directory(self._layout.root, ports.server)

    async def _start_nodes(
        self,
        stack: AsyncExitStack,
        authority: pki.Authority,
        addresses: AddressBlock,
        ports: Ports,
    ) -> dict[str, Any]:
        api = await stack.enter_async_context(self._client(ports))
        if self._kubelets is not None:
            nodes: NodeKind = self._kubelets.nodes(api, authority, ports.server)
        else:
            nodes = await self._process_nodes(stack, api, authority, addresses, ports)
        stack.push_async_callback(nodes.close)
        control = ControlServer(nodes, self._stop.set)
        stack.push_async_callback(control.close)
        address = await control.open(addresses.control, authority)
        await asyncio.gather(*(nodes.add(spec) for spec in self._config.nodes))
        await self._until_exists(api, "/api/v1/namespaces/default/serviceaccounts/default")
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
            path_env=default_path_env(os.environ.get("PATH", os.defpath)),
            awake=awake,
            start_gate=asyncio.Semaphore(os.cpu_count() or 1),
            backoff=self._config.backoff,
        )

    async def _stop_components(self) -> None:
        # Stop clients first; otherwise the API server waits for their watches.
        for component in reversed(self._components):
            await component.stop()
        self._components = []


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
