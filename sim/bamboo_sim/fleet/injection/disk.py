"""The local file system of checkpoints, slow, failing, full or away on order."""

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
    """Every call takes ``delay_s`` longer; if the disk ``fails``, it raises EIO after that. On a
    full disk no file can be made, or each write stops half-way. A folder that is away is really
    away: its absence is only counted here."""

    cachable = False
    disk: Callable[[], Disk]
    count: Count

    def _suffer(self, *, makes_file: bool) -> None:
        now, count = type(self).disk(), type(self).count
        if now.delay_s:
            _NEVER.wait(now.delay_s)
            count(Effect.SLOW_DISK)
        if now.fails:
            count(Effect.FAILED_DISK)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if now.is_full and makes_file and not now.room:
            count(Effect.FULL_DISK)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _found_nothing(self) -> None:
        """Something was not there."""
        away = type(self).disk().away
        if away and not os.path.exists(away):
            type(self).count(Effect.ABSENT_FOLDER)


def _limited(file: Any, left: int) -> Any:
    """The file takes so many bytes more. What fits of a piece is really written."""
    plain = file.write

    def write(data: bytes) -> int:
        nonlocal left
        fits = memoryview(data)[:left]
        written: int = plain(fits)
        left -= written
        if written < len(data):
            file.flush()
            FaultyFileSystem.count(Effect.FULL_DISK)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written

    file.write = write
    return file


def _faulty(name: str) -> Any:
    plain = getattr(LocalFileSystem, name)

    def call(self: FaultyFileSystem, *args: Any, **options: Any) -> Any:
        mode = options.get("mode", args[1] if len(args) > 1 else "rb")
        makes_file = name == "_open" and "r" not in mode
        self._suffer(makes_file=makes_file)
        now = type(self).disk()
        try:
            found = plain(self, *args, **options)
            return _limited(found, now.room) if makes_file and now.is_full else found
        except FileNotFoundError:
            self._found_nothing()
            raise

    return call


for _name in ("ls", "info", "makedirs", "_open", "mv", "rm"):
    setattr(FaultyFileSystem, _name, _faulty(_name))


def install(disk: Callable[[], Disk], count: Count) -> None:
    """Let ``file://`` addresses of this process use it. disk: asked before every call; count:
    called with each effect."""
    FaultyFileSystem.disk, FaultyFileSystem.count = staticmethod(disk), staticmethod(count)
    fsspec.register_implementation("file", FaultyFileSystem, clobber=True)
