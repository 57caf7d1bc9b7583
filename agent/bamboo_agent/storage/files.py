"""Files of a disk or a bucket, by their paths: every error says which file, and how it failed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import fsspec

from bamboo_agent.storage import disk, objects
from bamboo_agent.storage.errors import AbsentError, CheckpointError, UnreachableError

_PIECE_BYTES = 64 << 20  # of a file at a time, so that a slow storage is seen to move


class Files:
    """Files below one address."""

    def __init__(self, uri: str, folder: str, on_traffic: Callable[[], None]) -> None:
        """folder: below the address. See :class:`bamboo_agent.storage.checkpoint.Checkpoints`."""
        scheme, _, rest = uri.rpartition("://")
        self._scheme = "" if scheme == "file" else scheme
        self._is_local = self._scheme == ""
        options = {} if self._is_local else objects.options(scheme)
        try:
            self._fs, root = fsspec.core.url_to_fs(uri, **options)
        except Exception as error:  # drivers raise errors of their own types
            raise CheckpointError(f"checkpoint.uri {uri!r} cannot be used: {error}") from error
        root = root.rstrip("/") if self._is_local else f"{scheme}://{rest.rstrip('/')}"
        self._root = f"{root}/{folder}"
        self._reading = {} if self._is_local else objects.READING
        self._on_traffic = on_traffic
        self._mark = os.urandom(8).hex()  # process ids are not unique across containers

    def _write(self, path: str, data: bytes) -> None:
        how: dict[str, Any] = {"piece": _PIECE_BYTES, "on_traffic": self._on_traffic}
        try:
            if self._is_local:
                disk.write(self._fs, path, data, mark=self._mark, **how)
            else:
                objects.upload(self._fs, path, data, **how)
        except Exception as error:
            raise self._failed(path, error) from error

    def _failed(self, path: str, error: Exception) -> CheckpointError:
        why = self._why(error)
        cause = f"writing below {self._root} failed: {why}"
        return CheckpointError(f"writing {path} failed: {why}", cause=cause)

    def _why(self, error: Exception) -> str:
        """No error of a store may end training, of whatever type it is."""
        return disk.why(error) if self._is_local else objects.why(error, self._root)

    def _at(self, folder: str) -> Files:
        """The storage of a folder: a manifest may point to files in another one. UnreachableError
        if it cannot be used here."""
        if folder.rpartition("://")[0] == self._scheme:
            return self
        parent, _, name = folder.rpartition("/")
        try:
            return Files(parent, name, self._on_traffic)
        except CheckpointError as error:
            raise UnreachableError(str(error)) from error

    def _list(self, folder: str) -> dict[str, int | None] | None:
        """Path -> bytes, with as few requests as the storage allows; None: no such folder."""
        return self._at(folder)._list_own(folder)

    def _list_own(self, folder: str) -> dict[str, int | None] | None:
        try:
            entries = self._fs.ls(folder, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except Exception as error:
            raise UnreachableError(f"listing {folder} failed: {self._why(error)}") from error
        return {entry["name"].rstrip("/"): entry["size"] for entry in entries}

    def _find(self, path: str) -> bytes | None:
        """A file's content; None if there is no such file. UnreachableError."""
        return self._at(path.rpartition("/")[0])._find_own(path)

    def _find_own(self, path: str) -> bytes | None:
        try:
            with self._fs.open(path, "rb", **self._reading) as file:
                pieces = []
                while piece := file.read(_PIECE_BYTES):
                    pieces.append(piece)
                    self._on_traffic()
                return b"".join(pieces)
        except FileNotFoundError:
            return None
        except Exception as error:
            raise UnreachableError(f"reading {path} failed: {self._why(error)}") from error

    def _read(self, path: str) -> bytes:
        data = self._find(path)
        if data is None:
            raise AbsentError(f"reading {path} failed: No such file or directory")
        return data

    def _remove(self, path: str) -> None:
        try:
            if self._is_local:
                self._fs.rm(path, recursive=True)
            else:
                objects.remove(self._fs, path)
        except FileNotFoundError:
            return
        except Exception as error:
            raise CheckpointError(f"removing {path} failed: {self._why(error)}") from error
