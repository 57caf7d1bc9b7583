"""Removes what a killed daemon of kubelet nodes leaves: a bridge and control groups.

The kernel ends the processes, mounts and namespaces of its nodes by itself. The bridge carries the
cluster's directory as its alias.
"""

import subprocess
from pathlib import Path

from bamboo_devcluster.kubelet.cgroups import Group

PREFIX = "bdc"
_INTERFACES = Path("/sys/class/net")


def remove_leftovers(directory: Path) -> None:
    """Remove what the cluster of this directory left. Its daemon must have ended."""
    for path in _INTERFACES.glob(f"{PREFIX}[0-9]*"):
        if path.name[len(PREFIX) :].isdigit() and _alias(path) == str(directory):
            remove_bridge(path.name)


def remove_bridge(bridge: str) -> None:
    """Remove a bridge and the control groups that belong to it. Their processes have ended."""
    subprocess.run(["ip", "link", "delete", bridge], capture_output=True, check=False)
    Group(bridge).remove()


def _alias(interface: Path) -> str:
    try:
        return (interface / "ifalias").read_text().strip()
    except OSError:
        return ""
