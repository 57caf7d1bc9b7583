"""Removes what a killed daemon of kubelet nodes leaves: a bridge, cables and control groups.

The kernel ends the processes, mounts and namespaces of its nodes by itself; those of a frozen node
only when it is thawed. The bridge carries the cluster's directory as its alias.
"""

import subprocess
import time
from pathlib import Path

from bamboo_devcluster.errors import DevclusterError
from bamboo_devcluster.nodes.kubelet.cgroups import ROOT, Group

PREFIX = "bdc"
_INTERFACES = Path("/sys/class/net")
_POLL_S = 0.02


def remove_leftovers(directory: Path) -> None:
    """Remove what the cluster of this directory left. Its daemon must have ended."""
    for path in _INTERFACES.glob(f"{PREFIX}[0-9]*"):
        if path.name[len(PREFIX) :].isdigit() and _alias(path) == str(directory):
            remove_bridge(path.name)


def remove_bridge(bridge: str, root: Path = ROOT, timeout_s: float = 10.0) -> None:
    """End the processes in the control groups of a bridge; remove all of them.

    DevclusterError if the groups cannot be removed. The bridge then stays, for the next attempt.
    """
    group = Group(bridge, root)
    deadline = time.monotonic() + timeout_s
    while not group.remove():
        if time.monotonic() > deadline:
            raise DevclusterError(
                f"The control groups {root}/*/{bridge} cannot be removed; end the processes in them"
                " and try again."
            )
        group.end()
        time.sleep(_POLL_S)
    # Connections that were open keep a machine's network, and so its cable, for minutes.
    cables = [path.name for path in _INTERFACES.glob(f"{bridge}n*")]
    for name in (*cables, bridge):
        subprocess.run(["ip", "link", "delete", name], capture_output=True, check=False)


def _alias(interface: Path) -> str:
    try:
        return (interface / "ifalias").read_text().strip()
    except OSError:
        return ""
