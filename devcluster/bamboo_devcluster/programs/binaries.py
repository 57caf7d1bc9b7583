"""Finds the programs of the control plane, helm and kubectl; downloads or builds missing ones.

Tried in this order: the folder named by KUBEBUILDER_ASSETS, the user's cache, the official
download, a build from the Go modules pinned in `tools/`.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from bamboo_devcluster.programs import cache, download, gobuild

KUBERNETES_VERSION = "1.36.3"
ETCD_VERSION = "3.6.8"
HELM_VERSION = "4.3.1"
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
PROGRAMS = (*CONTROL_PLANE, "kubectl", "helm")
# For nodes of the kind kubelet only; obtained when the first such cluster starts.
KUBELET = ("kubelet", "kube-proxy")

BinDir = dict[str, Path]


def cache_directory() -> Path:
    """Return the folder, outside the checkout, that caches programs."""
    return cache.folder(f"kubernetes-{KUBERNETES_VERSION}_etcd-{ETCD_VERSION}_helm-{HELM_VERSION}")


def ensure(report: Callable[[str], None], names: Sequence[str] = PROGRAMS) -> BinDir:
    """Return the paths of the programs; download or build missing ones.

    Safe to call concurrently: later callers wait for the first.
    """
    found = _find(names)
    if len(found) < len(names):
        with cache.locked(cache_directory()):
            found = _find(names)
            _get_missing([name for name in names if name not in found], report)
            found = _find(names)
    return found


def missing(names: Sequence[str]) -> list[str]:
    """Return the programs that would have to be downloaded or built."""
    found = _find(names)
    return [name for name in names if name not in found]


def _find(names: Sequence[str]) -> BinDir:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    folders = [*([Path(assets)] if assets else []), cache_directory()]
    found: BinDir = {}
    for name in names:
        for folder in folders:
            if name not in found and os.access(folder / name, os.X_OK):
                found[name] = folder / name
    return found


def _get_missing(names: Sequence[str], report: Callable[[str], None]) -> None:
    unreachable: set[str] = set()
    for name in names:
        target = cache_directory() / name
        if _downloaded(name, target, unreachable, report):
            continue
        recipe = gobuild.find_recipe(name, kubernetes=KUBERNETES_VERSION, helm=HELM_VERSION)
        gobuild.build(name, recipe, target, report)


def _downloaded(
    name: str, target: Path, unreachable: set[str], report: Callable[[str], None]
) -> bool:
    """Download a program; False if its site cannot be reached, which is then in `unreachable`."""
    source = download.find_source(
        name, kubernetes=KUBERNETES_VERSION, etcd=ETCD_VERSION, helm=HELM_VERSION
    )
    host = source.url.split("/")[2]
    if host in unreachable:
        return False
    try:
        download.fetch(source, target, report)
    except download.UnavailableError as error:
        unreachable.add(host)
        report(f"{name}: cannot be downloaded ({error}); building it instead")
        return False
    return True
