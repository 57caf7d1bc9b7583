"""Finds kubeconform, which checks manifests by JSON schemas; downloads or builds it if missing.

Kept apart from the other programs: only tests of manifests need it.
"""

import os
from collections.abc import Callable
from pathlib import Path

from bamboo_devcluster.programs import cache, download, gobuild
from bamboo_devcluster.programs.download import Source, UnavailableError
from bamboo_devcluster.spec import machine_architecture

VERSION = "0.8.0"
_RELEASES = "https://github.com/yannh/kubeconform/releases/download"
_RECIPE = gobuild.Recipe(
    "kubeconform", "github.com/yannh/kubeconform/cmd/kubeconform",
    f"-s -w -X main.version=v{VERSION}",
)  # fmt: skip


def cache_directory() -> Path:
    """Return the folder, outside the checkout, that caches the program."""
    return cache.folder(f"kubeconform-{VERSION}")


def ensure(report: Callable[[str], None]) -> Path:
    """Return the program's path; download or build it if it is missing.

    Safe to call concurrently. BinaryError if it cannot be had.
    """
    program = cache_directory() / "kubeconform"
    if not os.access(program, os.X_OK):
        with cache.locked(cache_directory()):
            if not os.access(program, os.X_OK):
                _get(program, report)
    return program


def source() -> Source:
    """Where the program is published for this machine's processor."""
    base = os.environ.get("BAMBOO_KUBECONFORM_URL", _RELEASES).rstrip("/")
    url = f"{base}/v{VERSION}"
    file = f"kubeconform-linux-{machine_architecture()}.tar.gz"
    return Source(f"{url}/{file}", f"{url}/CHECKSUMS", "kubeconform")


def _get(program: Path, report: Callable[[str], None]) -> None:
    try:
        download.fetch(source(), program, report)
    except UnavailableError as error:
        report(f"kubeconform: cannot be downloaded ({error}); building it instead")
        gobuild.build("kubeconform", _RECIPE, program, report)
