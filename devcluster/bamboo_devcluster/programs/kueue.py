"""Kueue's manager and chart; built and copied from its Go module, which `tools/kueue` pins.

Kept apart from the other programs: only some tests need them, and the build takes long.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bamboo_devcluster.errors import BinaryError
from bamboo_devcluster.programs import cache, gobuild

VERSION = "0.16.1"
_MODULE = "sigs.k8s.io/kueue"
_RECIPE = gobuild.Recipe(
    "kueue", f"{_MODULE}/cmd/kueue", f"-s -w -X {_MODULE}/pkg/version.GitVersion=v{VERSION}"
)


@dataclass(frozen=True)
class Files:
    """manager: the program. chart: Helm's folder, with the resource definitions and webhooks."""

    manager: Path
    chart: Path


def cache_directory() -> Path:
    """Return the folder, outside the checkout, that caches both."""
    return cache.folder(f"kueue-{VERSION}")


def find() -> Files | None:
    """Return both if they are in the cache. Builds nothing."""
    found = Files(cache_directory() / "kueue", cache_directory() / "chart")
    return found if os.access(found.manager, os.X_OK) and found.chart.is_dir() else None


def ensure(report: Callable[[str], None]) -> Files:
    """Return both; build what is missing.

    Safe to call concurrently. BinaryError if they cannot be had.
    """
    with cache.locked(cache_directory()):
        if find() is None:
            _make(cache_directory(), report)
    found = find()
    assert found is not None
    return found


def _make(folder: Path, report: Callable[[str], None]) -> None:
    if shutil.which("go") is None:
        raise BinaryError(
            "Kueue cannot be built: `go` is not on the PATH; install Go 1.26 or newer."
        )
    for leftover in (folder / "chart", folder / ".chart"):
        shutil.rmtree(leftover, ignore_errors=True)
    gobuild.build("kueue", _RECIPE, folder / "kueue", report)
    source = gobuild.module_folder(_RECIPE.module, _MODULE) / "charts" / "kueue"
    # Plain copies: the module cache is read-only, and a copy of its modes could not be deleted.
    for file in filter(Path.is_file, source.rglob("*")):
        target = folder / ".chart" / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    (folder / ".chart").rename(folder / "chart")
