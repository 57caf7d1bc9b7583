"""Folders of the user's cache that programs are kept in; each has a lock."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bamboo_devcluster.errors import BinaryError, disk_full_message, is_disk_full


def folder(name: str) -> Path:
    """Return a folder outside the checkout. Its name holds the versions of what it keeps."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "bamboo" / "bin" / name


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Make the folder and keep other processes out of it. BinaryError if it cannot be written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with (path / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for leftover in path.glob(".build-*"):  # of a build that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            yield
    except OSError as error:
        if is_disk_full(error):
            raise BinaryError(disk_full_message(path)) from error
        raise BinaryError(
            f"Cannot write to {path} ({error.strerror}); set XDG_CACHE_HOME to a folder that you "
            "can write to."
        ) from error
