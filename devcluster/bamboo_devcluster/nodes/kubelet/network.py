"""The network of a cluster of kubelet nodes: a bridge, an address per node, one-way cuts.

A cluster claims 10.N.0.0/16 by creating the bridge bdcN. Node I has 10.N.0.(10+I), its pods
10.N.I.0/24. The control plane listens on the bridge's address, 10.N.0.1.
"""

import asyncio
import ipaddress
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bamboo_devcluster.errors import ComponentError, NodeError
from bamboo_devcluster.nodes.kubelet.leftovers import PREFIX, remove_bridge
from bamboo_devcluster.nodes.kubelet.prerequisites import Tools

MAX_NODES = 200
_FIRST, _LAST = 200, 249
_TABLE = "devcluster_cuts"


@dataclass(frozen=True)
class Place:
    """The addresses of one node."""

    block: int
    index: int

    @property
    def address(self) -> str:
        return f"10.{self.block}.0.{10 + self.index}"

    @property
    def pods(self) -> str:
        return f"10.{self.block}.{self.index}.0/24"

    @property
    def interface(self) -> str:
        """The host's end of the cable; the other end is the node's eth0."""
        return f"{PREFIX}{self.block}n{self.index}"


class Network:
    """The bridge of one cluster. The pods' networks are routed, without address translation."""

    def __init__(self, tools: Tools, block: int) -> None:
        self._tools = tools
        self.block = block
        self.bridge = f"{PREFIX}{block}"
        self.address = f"10.{block}.0.1"
        self._used: dict[int, Place] = {}

    @classmethod
    def claim(cls, tools: Tools, directory: Path) -> "Network":
        """Create the bridge of a block that no one uses."""
        taken = _routed_networks(tools["ip"])
        for block in range(_FIRST, _LAST + 1):
            wanted = ipaddress.ip_network(f"10.{block}.0.0/16")
            if any(wanted.overlaps(other) for other in taken):
                continue
            network = cls(tools, block)
            if network._create(directory):
                return network
        raise ComponentError(
            f"Every network from 10.{_FIRST}.0.0/16 to 10.{_LAST}.0.0/16 is in use; stop a cluster"
            " with `bamboo-devcluster down` first."
        )

    def _create(self, directory: Path) -> bool:
        ip = self._tools["ip"]
        made = subprocess.run(
            [ip, "link", "add", self.bridge, "type", "bridge"], capture_output=True, check=False
        )
        if made.returncode:
            return False
        lines = [
            f"link set {self.bridge} alias {directory}",
            f"addr add {self.address}/24 dev {self.bridge}",
            f"link set {self.bridge} up",
        ]
        done = subprocess.run(
            [ip, "-batch", "-"], input="\n".join(lines), text=True, capture_output=True, check=False
        )
        if done.returncode:
            self.close()
            raise ComponentError(f"{self.bridge} cannot be set up: {done.stderr.strip()}")
        return True

    def take(self) -> Place:
        """Reserve the addresses of a node."""
        for index in range(1, MAX_NODES + 1):
            if index not in self._used:
                self._used[index] = Place(self.block, index)
                return self._used[index]
        raise NodeError(f"no address is left for more than {MAX_NODES} nodes; remove some first")

    async def connect(self, place: Place, pid: int) -> None:
        """Give process `pid`'s network namespace its cable, addresses and routes."""
        name = place.interface
        await self._ip(
            [
                f"link add {name} type veth peer name eth0 netns {pid}",
                f"link set {name} master {self.bridge} up",
                f"route replace {place.pods} via {place.address} dev {self.bridge} onlink",
            ]
        )
        others = [other for other in self._used.values() if other != place]
        await self._ip(
            [
                "link set lo up",
                f"addr add {place.address}/24 dev eth0",
                "link set eth0 up",
                f"route add default via {self.address}",
                *(f"route replace {o.pods} via {o.address} dev eth0 onlink" for o in others),
            ],
            pid,
        )
        await self._inside(pid, ["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])

    async def add_route(self, pid: int, place: Place) -> None:
        """Tell the namespace of `pid` the way to another node's pods."""
        line = f"route replace {place.pods} via {place.address} dev eth0 onlink"
        await self._ip([line], pid)

    async def disconnect(self, place: Place) -> None:
        """Remove the cable and the route; give the addresses back."""
        self._used.pop(place.index, None)
        await self._run([self._tools["ip"], "link", "delete", place.interface], check=False)
        await self._run([self._tools["ip"], "route", "delete", place.pods], check=False)

    async def cut(self, pid: int, targets: Sequence[Place]) -> None:
        """Drop every packet from the namespace of `pid` to the targets, and no others."""
        addresses = [text for place in targets for text in (place.address, place.pods)]
        rule = f"ip daddr {{ {', '.join(addresses)} }} drop" if addresses else ""
        # Declaring the table before deleting it makes the deletion valid when there is none.
        script = f"""
table ip {_TABLE} {{}}
delete table ip {_TABLE}
table ip {_TABLE} {{
  chain out {{
    type filter hook postrouting priority 0; policy accept;
    {rule}
  }}
}}
"""
        await self._inside(pid, [self._tools["nft"], "-f", "-"], script)

    def close(self) -> None:
        """Remove the bridge and the cluster's control groups."""
        remove_bridge(self.bridge)

    async def _ip(self, lines: Sequence[str], pid: int | None = None) -> None:
        command = [self._tools["ip"], "-batch", "-"]
        text = "\n".join(lines) + "\n"
        await (self._run(command, text) if pid is None else self._inside(pid, command, text))

    async def _inside(self, pid: int, command: Sequence[str], text: str = "") -> None:
        await self._run([self._tools["nsenter"], f"--net=/proc/{pid}/ns/net", *command], text)

    async def _run(self, command: Sequence[str], text: str = "", *, check: bool = True) -> None:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        _, errors = await process.communicate(text.encode())
        if check and process.returncode:
            words = " ".join(errors.decode(errors="replace").split())
            raise NodeError(f"the network could not be changed: {words}")


def _routed_networks(ip: str) -> list[ipaddress.IPv4Network]:
    listed = subprocess.run([ip, "-4", "route"], capture_output=True, text=True, check=False)
    words = [line.split()[0] for line in listed.stdout.splitlines() if line.strip()]
    found = []
    for word in words:
        try:
            found.append(ipaddress.IPv4Network(word))
        except ValueError:
            continue  # `default`, `unreachable`, ...
    return found
