"""The four programs of the control plane: their flags, their start, their health.

A component that exits is restarted, like a static pod. If it keeps exiting, the cluster ends with
the last line of its log.
"""

import asyncio
import os
import re
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bamboo_devcluster.children import launch
from bamboo_devcluster.children.environment import program_env
from bamboo_devcluster.children.logs import last_line, log_tail
from bamboo_devcluster.errors import ComponentError, disk_full_message
from bamboo_devcluster.kube import pki
from bamboo_devcluster.layout import Layout

LOOPBACK = "127.0.0.1"
NODE_MONITOR_GRACE_S = 8
EVICTION_TOLERATION_S = 5
_RESTART_DELAY_S = 0.5
_MAX_RESTARTS = 5
_RESTART_WINDOW_S = 60.0
_STOP_TIMEOUT_S = 5.0
_PORT_IN_USE = re.compile(r":(\d+): bind: address already in use")


@dataclass(frozen=True)
class Ports:
    """The API server's address, and the ports of one cluster. etcd's are loopback ports."""

    api: int
    etcd_client: int
    etcd_peer: int
    host: str = LOOPBACK

    @property
    def server(self) -> str:
        """The API server's URL."""
        return f"https://{self.host}:{self.api}"


def pick_ports(api: int = 0, host: str = LOOPBACK) -> Ports:
    """Choose free ports; the API server's may be given."""
    sockets = [socket.socket() for _ in range(3)]
    try:
        for sock, address in zip(sockets, (host, LOOPBACK, LOOPBACK), strict=True):
            sock.bind((address, 0))
        free = [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()
    return Ports(api=api or free[0], etcd_client=free[1], etcd_peer=free[2], host=host)


class PortInUseError(ComponentError):
    """Another process took a port after we chose it, or the given port is in use."""


def write_credentials(layout: Layout, authority: pki.Authority, ports: Ports) -> None:
    """Write all certificates and kubeconfigs of the control plane and the administrator."""
    authority.issue(
        "apiserver",
        common_name="kube-apiserver",
        names=["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"],
        addresses=sorted({LOOPBACK, "10.0.0.1", ports.host}),
    )
    authority.issue(
        "kubelet-client", common_name="apiserver-kubelet-client", organization="system:masters"
    )
    pki.write_service_account_key(layout.pki / "sa.key")
    clients = {
        "kube-controller-manager": ("system:kube-controller-manager", ""),
        "kube-scheduler": ("system:kube-scheduler", ""),
        "admin": ("devcluster-admin", "system:masters"),
    }
    for name, (common_name, organization) in clients.items():
        pair = authority.issue(name, common_name=common_name, organization=organization)
        path = layout.kubeconfig if name == "admin" else layout.client_config(name)
        pki.write_kubeconfig(path, server=ports.server, authority=authority.cert, pair=pair)


def command_lines(
    binaries: Mapping[str, Path], layout: Layout, ports: Ports
) -> dict[str, list[str]]:
    """Return the argv of each component, in start order."""
    etcd_url = f"http://127.0.0.1:{ports.etcd_client}"
    keys = layout.pki
    # The data of a temporary cluster need not survive a power failure: no fsync in etcd.
    flags = {
        "etcd": [
            f"--data-dir={layout.root / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={etcd_url}",
            f"--advertise-client-urls={etcd_url}",
            f"--listen-peer-urls=http://127.0.0.1:{ports.etcd_peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{ports.etcd_peer}",
            f"--initial-cluster=default=http://127.0.0.1:{ports.etcd_peer}",
        ],
        "kube-apiserver": [
            f"--etcd-servers={etcd_url}",
            f"--bind-address={ports.host}",
            f"--advertise-address={ports.host}",
            f"--secure-port={ports.api}",
            f"--endpoint-reconciler-type={_reconciler(ports)}",
            f"--tls-cert-file={keys / 'apiserver.crt'}",
            f"--tls-private-key-file={keys / 'apiserver.key'}",
            f"--client-ca-file={keys / 'ca.crt'}",
            f"--service-account-key-file={keys / 'sa.key'}",
            f"--service-account-signing-key-file={keys / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=Node,RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--allow-privileged",
            "--enable-admission-plugins=NodeRestriction",
            f"--default-not-ready-toleration-seconds={EVICTION_TOLERATION_S}",
            f"--default-unreachable-toleration-seconds={EVICTION_TOLERATION_S}",
            f"--kubelet-client-certificate={keys / 'kubelet-client.crt'}",
            f"--kubelet-client-key={keys / 'kubelet-client.key'}",
            f"--kubelet-certificate-authority={keys / 'ca.crt'}",
            "--kubelet-preferred-address-types=InternalIP",
        ],
        "kube-controller-manager": [
            *_client_flags(layout, "kube-controller-manager"),
            f"--service-account-private-key-file={keys / 'sa.key'}",
            f"--root-ca-file={keys / 'ca.crt'}",
            "--use-service-account-credentials",
            "--node-monitor-period=1s",
            f"--node-monitor-grace-period={NODE_MONITOR_GRACE_S}s",
        ],
        "kube-scheduler": _client_flags(layout, "kube-scheduler"),
    }
    return {name: [str(binaries[name]), *args] for name, args in flags.items()}


def _reconciler(ports: Ports) -> str:
    # The API refuses loopback addresses as endpoints, so they cannot be registered.
    return "none" if ports.host == LOOPBACK else "lease"


def _client_flags(layout: Layout, name: str) -> list[str]:
    config = layout.client_config(name)
    return [
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        "--leader-elect=false",
        "--secure-port=0",
    ]


class Component:
    """One running control plane program."""

    def __init__(self, name: str, argv: Sequence[str], layout: Layout) -> None:
        self.name = name
        self.log = layout.logs / f"{name}.log"
        self._argv = argv
        self._cwd = layout.root
        self._process: launch.Process | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        running = self._process is not None and self._process.is_running
        return self._process.pid if running and self._process else None

    async def start(self) -> None:
        """Start the program; its output is appended to its log."""
        order = launch.Order(argv=self._argv, env=program_env(), cwd=str(self._cwd))
        output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._process = await launch.start(order, output)
        finally:
            os.close(output)

    async def keep_running(self, on_restart: Callable[[str], None]) -> None:
        """Restart the program whenever it exits; raise ComponentError if it exits too often."""
        loop = asyncio.get_running_loop()
        ends: deque[float] = deque(maxlen=_MAX_RESTARTS)
        while not self._stopping:
            assert self._process is not None
            code = await asyncio.shield(self._process.exit_code)
            if self._stopping:
                return
            if len(ends) == _MAX_RESTARTS and loop.time() - ends[0] < _RESTART_WINDOW_S:
                raise self.failure(code)
            ends.append(loop.time())
            on_restart(f"{self.name} exited with code {code}; restarting it")
            await asyncio.sleep(_RESTART_DELAY_S)
            await self.start()

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL."""
        self._stopping = True
        process = self._process
        if process is None:
            return
        process.signal(15)
        try:
            await asyncio.wait_for(asyncio.shield(process.exit_code), _STOP_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.exit_code

    async def fail_at_end(self) -> None:
        """Wait until the program exits; raise ComponentError."""
        assert self._process is not None
        raise self.failure(await asyncio.shield(self._process.exit_code))

    def failure(self, code: int) -> ComponentError:
        """Return the error for the program's exit, with the last line of its log."""
        end = log_tail(self.log)
        if "address already in use" in end:
            port = _PORT_IN_USE.search(end)
            which = f"Port {port[1]}" if port else "A port"
            return PortInUseError(f"{which} that {self.name} needs is in use; choose another port.")
        if "no space left on device" in end:
            return ComponentError(disk_full_message(self._cwd))
        return ComponentError(
            f"{self.name} exited with code {code}: {last_line(end)} (see {self.log})"
        )
