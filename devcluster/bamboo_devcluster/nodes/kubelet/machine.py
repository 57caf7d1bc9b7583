"""One machine: process 1 with containerd, the kubelet and kube-proxy, in namespaces of its own.

The machine has its own processes, mounts, network, host name and control groups. When process 1
ends, the kernel ends everything in it; when the daemon ends, the kernel ends process 1.
"""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from bamboo_devcluster.children import launch
from bamboo_devcluster.children.environment import program_env
from bamboo_devcluster.children.logs import last_line, log_tail
from bamboo_devcluster.errors import NodeError
from bamboo_devcluster.kube import pki
from bamboo_devcluster.nodes.kubelet import configs, images
from bamboo_devcluster.nodes.kubelet.cgroups import Group
from bamboo_devcluster.nodes.kubelet.network import Network, Place
from bamboo_devcluster.nodes.kubelet.prerequisites import Tools
from bamboo_devcluster.spec import NodeSpec

_FIRST = Path(__file__).with_name("first.py")
_GROUPS_S = 10.0
_POLL_S = 0.02


@dataclass(frozen=True)
class Site:
    """What all machines of a cluster share."""

    tools: Tools
    binaries: Mapping[str, Path]  # kubelet and kube-proxy
    network: Network
    authority: pki.Authority
    server: str
    directory: Path  # of the nodes
    logs: Path
    archives: Sequence[Path]
    mounts: Sequence[str]  # folders of the host that containers see
    import_s: float  # which a node may take for the archives


class Machine:
    """A machine; it exists until `vanish`."""

    def __init__(self, spec: NodeSpec, place: Place, boot_id: str, site: Site) -> None:
        self.spec, self.place, self.boot_id = spec, place, boot_id
        self.state = "running"
        self.cuts: list[str] = []  # the names of the nodes that it cannot reach
        self._site = site
        self._home = site.directory / f"{spec.name}-{boot_id[:8]}"
        self._logs = site.logs / spec.name
        self.group = Group(f"{site.network.bridge}/{self._home.name}")
        self._process: launch.Process | None = None
        self._gate: int | None = None

    @property
    def is_started(self) -> bool:
        """Whether process 1 has been started."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """Process 1, as the host numbers it."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start the machine; return once its network is up. NodeError if that fails."""
        self.group.create()
        order = self._write_files()
        self._gate = os.open(order["gate"], os.O_RDWR)  # a pipe that the machine reads
        output = os.open(self._logs / "machine.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._process = await launch.start(
                launch.Order(
                    argv=[sys.executable, "-I", "-S", str(_FIRST), str(self._home / "order.json")],
                    env=program_env(),
                    cwd="/",
                    isolation=launch.Isolation.NAMESPACES,
                    is_machine=True,
                ),
                output,
            )
        except launch.StartError as error:
            raise NodeError(f"node {self.spec.name} could not be started: {error}") from error
        finally:
            os.close(output)
        await self._site.network.connect(self.place, self.pid)
        os.write(self._gate, b".")

    async def fail_at_end(self) -> None:
        """Wait until the machine ends by itself; raise NodeError with the last line of its log."""
        assert self._process is not None
        code = await asyncio.shield(self._process.exit_code)
        last = last_line(log_tail(self._logs / "machine.log"))
        raise NodeError(f"node {self.spec.name} ended with code {code}: {last} (see {self._logs})")

    async def freeze(self) -> None:
        """Stop all processes; return once they have stopped."""
        self.state = "frozen"
        self.group.freeze(True)
        await self._until(lambda: self.group.is_frozen, "frozen")

    def thaw(self) -> None:
        """Resume all processes."""
        self.group.freeze(False)
        self.state = "running"

    async def vanish(self) -> None:
        """SIGKILL all processes at once; remove all that the machine had, except its logs."""
        if self.state == "dead":
            return
        self.state = "dead"
        self.group.end()
        if self._process is not None:
            self._process.signal(9)
            await self._process.exit_code  # the kernel reports it after all others have ended
        if self._gate is not None:
            os.close(self._gate)
        await self._site.network.disconnect(self.place)
        shutil.rmtree(self._home, ignore_errors=True)
        await self._until(self.group.remove, "removed")

    async def _until(self, condition: Callable[[], bool], wish: str) -> None:
        """Poll the control groups: the kernel changes them a moment later."""
        for _ in range(round(_GROUPS_S / _POLL_S)):
            if condition():
                return
            await asyncio.sleep(_POLL_S)
        raise NodeError(f"the control groups of node {self.spec.name} cannot be {wish}")

    def _write_files(self) -> dict[str, str]:
        home, site = self._home, self._site
        for name in ("cni", "lib", "log"):
            (home / name).mkdir(parents=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        gate = home / "gate"
        os.mkfifo(gate, 0o600)
        kubeconfig, proxy_config = self._write_credentials()
        files: dict[str, object] = {
            "kubelet.yaml": configs.kubelet(self._identity()),
            "proxy.yaml": configs.kube_proxy(self.spec.name, proxy_config, site.network.block),
            "cni/10-pods.conflist": configs.cni(self.place),
        }
        for name, content in files.items():
            (home / name).write_text(
                json.dumps(content) if name.endswith("list") else yaml.safe_dump(content)
            )
        (home / "containerd.toml").write_text(
            configs.containerd(site.tools.plugins, home / "cni", site.tools["runc"])
        )
        (home / "boot_id").write_text(self.boot_id + "\n")
        (home / "machine_id").write_text(self.boot_id.replace("-", "") + "\n")
        (home / "order.json").write_text(json.dumps(self._order(gate, kubeconfig)))
        return {"gate": str(gate)}

    def _identity(self) -> configs.Identity:
        keys = self._site.directory.parent / "pki"
        pair = pki.Pair(keys / f"node-{self.spec.name}.crt", keys / f"node-{self.spec.name}.key")
        authority = self._site.authority.cert
        return configs.Identity(self.spec.name, self.place, pair, authority, self.group.path)

    def _write_credentials(self) -> tuple[Path, Path]:
        """Issue the node's certificates; return the kubeconfigs of the kubelet and kube-proxy."""
        name, site = self.spec.name, self._site
        node = site.authority.issue(
            f"node-{name}", common_name=f"system:node:{name}", organization="system:nodes",
            names=[name], addresses=[self.place.address, "127.0.0.1"],
        )  # fmt: skip
        proxy = site.authority.issue(f"proxy-{name}", common_name="system:kube-proxy")
        paths = (self._home / "kubelet.kubeconfig", self._home / "proxy.kubeconfig")
        for path, pair in zip(paths, (node, proxy), strict=True):
            authority = site.authority.cert
            pki.write_kubeconfig(path, server=site.server, authority=authority, pair=pair)
        return paths

    def _order(self, gate: Path, kubeconfig: Path) -> dict[str, object]:
        home, tools = self._home, self._site.tools
        env = program_env()
        argvs = {
            "containerd": [tools["containerd"], "--config", str(home / "containerd.toml")],
            "kubelet": [
                str(self._site.binaries["kubelet"]),
                f"--config={home / 'kubelet.yaml'}",
                f"--kubeconfig={kubeconfig}",
                f"--hostname-override={self.spec.name}",
                f"--node-ip={self.place.address}",
                f"--boot-id-file={home / 'boot_id'}",
                f"--machine-id-file={home / 'machine_id'}",
            ],
            "kube-proxy": [
                str(self._site.binaries["kube-proxy"]), f"--config={home / 'proxy.yaml'}",
            ],
        }  # fmt: skip
        return {
            "name": self.spec.name[:64],
            "cgroups": self.group.doors(),
            "gate": str(gate),
            "env": env,
            "ctr": [tools["ctr"], "--address", configs.SOCKET],
            "binds": [[str(home / "lib"), "/var/lib"], [str(home / "log"), "/var/log"]],
            "mounts": images.mounts(self._site.mounts),
            "archives": [str(path) for path in self._site.archives],
            "programs": [
                {"name": name, "argv": argv, "env": env, "log": str(self._logs / f"{name}.log")}
                for name, argv in argvs.items()
            ],
        }
