"""Starts the programs of the control plane together, waits for them, and stops them.

They start in order: etcd and the API server, and the others once the API server is ready.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

from bamboo_devcluster.controlplane import audit, components
from bamboo_devcluster.controlplane.components import Component, PortInUseError, Ports
from bamboo_devcluster.errors import DevclusterError
from bamboo_devcluster.kube.client import ApiError, KubeApi, UnreachableError
from bamboo_devcluster.kube.pki import Authority
from bamboo_devcluster.layout import Layout

_READY_TIMEOUT_S = 90.0
_PORT_ATTEMPTS = 3
_POLL_S = 0.1
_ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"


class ControlPlane:
    """The control plane of one cluster."""

    def __init__(self, layout: Layout, *, api_port: int = 0, is_audited: bool = False) -> None:
        self._layout, self._api_port, self._is_audited = layout, api_port, is_audited
        self._components: list[Component] = []

    async def start(self, programs: Mapping[str, Path], authority: Authority, host: str) -> Ports:
        """Start all programs; return once the API server is ready. It listens on `host`."""
        for attempt in range(_PORT_ATTEMPTS):
            ports = components.pick_ports(self._api_port, host)
            components.write_credentials(self._layout, authority, ports)
            try:
                await self._start_components(programs, ports)
            except PortInUseError:
                await self.stop()
                if self._api_port or attempt == _PORT_ATTEMPTS - 1:
                    raise
                continue
            return ports
        raise AssertionError("unreachable")

    async def keep_running(self, report: Callable[[str], None]) -> None:
        """Restart programs that exit; raise ComponentError once one exits too often."""
        keepers = [asyncio.create_task(c.keep_running(report)) for c in self._components]
        try:
            done, _ = await asyncio.wait(keepers, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in keepers:
                task.cancel()

    async def until_pods_are_accepted(self, api: KubeApi) -> None:
        """Wait for the service account of the first namespace; pods are refused without it."""
        try:
            async with asyncio.timeout(_READY_TIMEOUT_S):
                while True:
                    with contextlib.suppress(ApiError, UnreachableError):
                        await api.get(_ACCOUNT)
                        return
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise DevclusterError(
                f"kube-controller-manager created no service account within {_READY_TIMEOUT_S:g} s;"
                f" see {self._layout.logs}"
            ) from None

    async def stop(self) -> None:
        """Stop all programs."""
        # Stop clients first; otherwise the API server waits for their watches.
        for component in reversed(self._components):
            await component.stop()
        self._components = []

    async def _start_components(self, programs: Mapping[str, Path], ports: Ports) -> None:
        argvs = components.command_lines(programs, self._layout, ports)
        if self._is_audited:
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
        async with KubeApi.from_directory(self._layout.root, ports.server) as api:
            while True:
                try:
                    await api.get("/readyz")
                    # Default priority classes and namespaces appear slightly later.
                    await api.get("/api/v1/namespaces/kube-node-lease")
                    return
                except (ApiError, UnreachableError):
                    await asyncio.sleep(_POLL_S)
