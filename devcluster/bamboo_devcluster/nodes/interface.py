"""The interface of a kind of node. There are two: processes, and kubelets with containerd.

The daemon uses a kind only through this protocol. The end-to-end tests are written against it, so
that they apply to every kind.
"""

from collections.abc import Mapping
from typing import Protocol

from bamboo_devcluster.spec import NodeSpec


class NodeKind(Protocol):
    """Adds nodes to a cluster and makes them fail. Unknown names raise NodeError."""

    async def add(self, spec: NodeSpec) -> None:
        """Register a new machine; return once pods can be scheduled on it.

        A dead machine with the same name is replaced: new node UID, new boot ID.
        """

    async def kill(self, name: str) -> None:
        """The instance vanishes: no process survives, heartbeats stop, the node object stays."""

    async def freeze(self, name: str) -> None:
        """All processes and heartbeats of the machine stop."""

    async def thaw(self, name: str) -> None:
        """A frozen machine resumes."""

    async def remove(self, name: str) -> None:
        """The instance vanishes and its node object is deleted."""

    async def notice(self, name: str, lead_s: float) -> None:
        """The instance is reclaimed in `lead_s`: taint, pods deleted with grace, then kill."""

    async def kill_pod(self, namespace: str, name: str) -> None:
        """SIGKILL all processes of a pod; its node reports what happened."""

    async def break_devices(self, name: str) -> None:
        """The node refuses new pods that ask for a GPU, which it still offers."""

    async def repair_devices(self, name: str) -> None:
        """Undo `break_devices`."""

    async def cut(self, name: str, other: str) -> None:
        """No packet from `name` reaches `other` any more; the other direction stays."""

    async def heal(self, name: str, other: str) -> None:
        """Undo a cut."""

    def states(self) -> dict[str, str]:
        """Machine name -> running, frozen or dead."""

    async def close(self) -> None:
        """Kill everything, without reporting to the API."""


def no_such(name: str, known: Mapping[str, object]) -> str:
    """The message for a node that does not exist or is dead."""
    names = ", ".join(sorted(known)) or "none"
    return f"no node {name} is alive in this cluster; there are: {names}"
