"""Finds Prometheus and promtool; downloads them if they are missing.

Tried in this order: the PATH, the user's cache, the official download, Debian's package, which is
unpacked and not installed.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from bamboo_devcluster.errors import BinaryError
from bamboo_devcluster.programs import cache, download
from bamboo_devcluster.programs.binaries import BinDir
from bamboo_devcluster.programs.download import Source, UnavailableError
from bamboo_devcluster.spec import machine_architecture

VERSION = "3.5.0"
PROGRAMS = ("prometheus", "promtool")
_RELEASES = "https://github.com/prometheus/prometheus/releases/download"
_PACKAGE_S = 120.0


def cache_directory() -> Path:
    """Return the folder, outside the checkout, that caches the programs."""
    return cache.folder(f"prometheus-{VERSION}")


def ensure(report: Callable[[str], None]) -> BinDir:
    """Return the paths of both programs; download missing ones.

    Safe to call concurrently. BinaryError if they cannot be had.
    """
    if found := _find():
        return found
    with cache.locked(cache_directory()):
        return _find() or _get(cache_directory(), report)


def _find() -> BinDir:
    """Both programs from one place; empty: there is none."""
    installed = {name: shutil.which(name) for name in PROGRAMS}
    if all(installed.values()):
        return {name: Path(path) for name, path in installed.items() if path}
    cached = {name: cache_directory() / name for name in PROGRAMS}
    return cached if all(os.access(path, os.X_OK) for path in cached.values()) else {}


def _get(folder: Path, report: Callable[[str], None]) -> BinDir:
    try:
        download.fetch_all(source(), {name: folder / name for name in PROGRAMS}, report)
    except UnavailableError as error:
        report(f"prometheus: cannot be downloaded ({error}); taking Debian's package")
        _unpack_package(folder)
    return _find()


def source() -> Source:
    """Where both programs are published for this machine's processor."""
    base = os.environ.get("BAMBOO_PROMETHEUS_URL", _RELEASES).rstrip("/")
    stem = f"prometheus-{VERSION}.linux-{machine_architecture()}"
    url = f"{base}/v{VERSION}"
    return Source(f"{url}/{stem}.tar.gz", f"{url}/sha256sums.txt", stem)


def _unpack_package(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        work = Path(name)
        work.chmod(0o755)
        _run(work, "apt-get", "download", "prometheus")
        for package in work.glob("prometheus_*.deb"):
            _run(work, "dpkg", "-x", package.name, "root")
        for program in PROGRAMS:
            unpacked = work / "root/usr/bin" / program
            if not unpacked.exists():
                raise _unobtainable(f"the package does not contain {program}")
            unpacked.rename(folder / program)


def _run(folder: Path, *command: str) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=_PACKAGE_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unobtainable(str(error)) from error
    if done.returncode:
        raise _unobtainable((done.stderr.strip().splitlines() or [f"{command[0]} failed"])[-1])


def _unobtainable(why: str) -> BinaryError:
    return BinaryError(
        f"Prometheus cannot be downloaded, and Debian's package cannot be unpacked ({why}); put "
        "prometheus and promtool on the PATH."
    )
