"""Files on a disk or a mounted volume: written under another name, flushed, and renamed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from bamboo_agent.factory_names import told


def write(
    fs: Any, path: str, data: bytes, *, mark: str, piece: int, on_traffic: Callable[[], None]
) -> None:
    """Write a file. It is not there, or as it was, unless this returns. mark: in the name of the
    temporary file; piece: bytes that are written at a time; on_traffic: called after each."""
    temporary = f"{path}.{mark}.tmp"
    try:
        fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        with fs.open(temporary, "wb") as file:
            view = memoryview(data)
            for at in range(0, len(data), piece):
                file.write(view[at : at + piece])
                on_traffic()
            file.flush()
            os.fsync(file.fileno())
            on_traffic()
        fs.mv(temporary, path)
        _sync_folder(path)
    except Exception:
        remove_quietly(fs, temporary)
        raise


def _sync_folder(path: str) -> None:
    """A rename is durable only after fsync of its folder."""
    descriptor = os.open(path.rpartition("/")[0], os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_quietly(fs: Any, path: str) -> None:
    """Remove a file if it is there and can be removed."""
    try:
        if fs.exists(path):
            fs.rm(path)
    except Exception:
        return


def why(error: Exception) -> str:
    """Say what the system says."""
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return told(error)
