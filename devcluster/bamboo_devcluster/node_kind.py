"""The one interface behind which nodes live: processes today, real kubelets as a second kind.

The daemon talks to a kind only through this protocol, and the end-to-end cases are written against
it, so that every kind passes the same cases.
"""

from typing import Protocol

from bamboo_devcluster.spec import NodeSpec


class NodeKind(Protocol):
    """Makes and breaks the nodes of one cluster. Unknown names raise NodeError."""

    async def add(self, spec: NodeSpec) -> None:
        """Register a new machine and return once pods can be scheduled onto it.

        A dead machine of the same name is replaced: new node UID, new boot ID.
        """

    async def kill(self, name: str) -> None:
        """The instance vanishes: no process survives, heartbeats stop, the node object stays."""

    async def freeze(self, name: str) -> None:
        """Everything on the machine stands still, heartbeats included."""

    async def thaw(self, name: str) -> None:
        """A frozen machine goes on."""

    async def remove(self, name: str) -> None:
        """The instance vanishes and its node object is deleted."""

    async def notice(self, name: str, lead_s: float) -> None:
        """The instance is reclaimed in `lead_s`: taint, pods deleted with grace, then kill."""

    async def kill_pod(self, namespace: str, name: str) -> None:
        """SIGKILL all processes of a pod; its node reports what happened."""

    def states(self) -> dict[str, str]:
        """Return each known machine's state: running, frozen or dead."""

    async def close(self) -> None:
        """End everything, silently."""
