"""What kubelet nodes need from the machine. A message names everything that is missing."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from bamboo_devcluster.errors import DevclusterError

_PROGRAMS = {
    "containerd": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "nft": "nftables",
    "ip": "iproute2",
    "nsenter": "util-linux",
}
_PLUGINS = ("bridge", "host-local", "loopback")
_PLUGIN_FOLDERS = ("/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni")
# Each machine has its own; a cluster's files must stay visible in it.
_PRIVATE = ("/run", "/var/run", "/var/lib", "/var/log")


@dataclass(frozen=True)
class Tools:
    """Programs of the machine, and the folder with the CNI plugins."""

    programs: dict[str, str]
    plugins: Path

    def __getitem__(self, name: str) -> str:
        return self.programs[name]


def find_tools(directory: Path) -> Tools:
    """Look for all that kubelet nodes need; DevclusterError names what is missing and the remedy.

    directory: the cluster's; it must be visible inside the nodes.
    """
    missing = [] if os.geteuid() == 0 else ["root (run the command with sudo)"]
    programs = {name: shutil.which(name) or "" for name in _PROGRAMS}
    packages = sorted({_PROGRAMS[name] for name, path in programs.items() if not path})
    missing += [name for name, path in programs.items() if not path]
    plugins = _find_plugins(programs["containerd"])
    if plugins is None:
        missing.append(f"the CNI plugins {', '.join(_PLUGINS)}")
        packages.append("containernetworking-plugins")
    if missing:
        remedy = f"; on Debian: apt-get install {' '.join(packages)}" if packages else ""
        hint = "; CNI_PATH names a folder of plugins" if plugins is None else ""
        raise DevclusterError(
            f"Nodes of the kind kubelet need {', '.join(missing)}{remedy}{hint}. Nodes of the kind"
            " process need none of it."
        )
    if any(directory.is_relative_to(folder) for folder in _PRIVATE):
        raise DevclusterError(
            f"{directory} is hidden from kubelet nodes, which have their own {', '.join(_PRIVATE)};"
            " choose another --dir."
        )
    assert plugins is not None
    return Tools(programs, plugins)


def _find_plugins(containerd: str) -> Path | None:
    named = [folder for folder in os.environ.get("CNI_PATH", "").split(":") if folder]
    beside = [str(Path(containerd).parents[1] / "lib/cni")] if containerd else []
    for folder in (*named, *_PLUGIN_FOLDERS, *beside):
        if all(os.access(Path(folder) / name, os.X_OK) for name in _PLUGINS):
            return Path(folder)
    return None
