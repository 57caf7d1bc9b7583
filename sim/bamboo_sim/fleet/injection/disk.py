"""The local file system of checkpoints, slow or failing on order."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from bamboo_sim.fleet.injection.effects import Count, Effect
from bamboo_sim.fleet.injection.state import Disk

_NEVER = threading.Event()


class FaultyFileSystem(LocalFileSystem):  # type: ignore[misc]
    """Every call takes ``delay_s`` longer; if the disk ``fails``, it raises EIO after that."""

    cachable = False
    disk: Callable[[], Disk]
    count: Count

    def _suffer(self) -> None:
        now, count = type(self).disk(), type(self).count
        if now.delay_s:
            _NEVER.wait(now.delay_s)
            count(Effect.SLOW_DISK)
        if now.fails:
            count(Effect.FAILED_DISK)
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def _faulty(name: str) -> Any:
    plain = getattr(LocalFileSystem, name)

    def call(self: FaultyFileSystem, *args: Any, **options: Any) -> Any:
        self._suffer()
        return plain(self, *args, **options)

    return call


for _name in ("ls", "info", "makedirs", "_open", "mv", "rm"):
    setattr(FaultyFileSystem, _name, _faulty(_name))


def install(disk: Callable[[], Disk], count: Count) -> None:
    """Let ``file://`` addresses of this process use it. disk: asked before every call; count:
    called with each effect."""
    FaultyFileSystem.disk, FaultyFileSystem.count = staticmethod(disk), staticmethod(count)
    fsspec.register_implementation("file", FaultyFileSystem, clobber=True)
