"""Writes files of weights: under a temporary name beside their place, to which they move at the
end."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from bamboo_agent.weight_files.outlines import WeightsError
from bamboo_agent.weight_files.source import IN_FOLDERS, INDEX

SHARD_BYTES = 5 * 10**9
"""As large as libraries make a part."""
_WHOLE = "model.safetensors"
_METADATA = {"format": "pt"}  # libraries refuse files without it


@contextmanager
def placed(path: Path, *, force: bool) -> Iterator[Path]:
    """A temporary path for a file or folder, which replaces ``path`` at the end. Nothing is left
    after an error. WeightsError if something is there, or the place cannot be written."""
    path = Path(os.path.abspath(path))  # "." has no name
    if path.exists() and not force:
        raise WeightsError(f"--out {path} exists; give another path, or --force to replace it")
    if path.is_dir() and not _is_replaceable(path):
        raise WeightsError(
            f"--out {path} is a folder without weights, which --force does not replace; give"
            " another path"
        )
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _flush(temporary)
        if path.is_dir() and not path.is_symlink():  # a folder cannot be replaced at once
            old = path.with_name(f".{path.name}.{secrets.token_hex(4)}.old")
            path.rename(old)
            temporary.rename(path)
            shutil.rmtree(old)
        else:
            if temporary.is_dir() and path.exists():
                path.unlink()
            temporary.replace(path)
    except (OSError, SafetensorError) as error:
        text = getattr(error, "strerror", None) or str(error)
        raise WeightsError(f"--out {path} cannot be written: {text}") from error
    finally:
        _remove(temporary)


def _is_replaceable(folder: Path) -> bool:
    """Whether it is empty, or is one that libraries and this program write."""
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    return not names or not set(IN_FOLDERS).isdisjoint(names)


def _flush(path: Path) -> None:
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    for file in [*files, path.parent]:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove(path: Path) -> None:
    with suppress(OSError):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


class Sink:
    """Gets tensors in order. ``add`` may write, ``close`` writes the rest. ``num_bytes`` and
    ``tensors``: so far."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self.names: set[str] = set()

    def add(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """More tensors. WeightsError if there is one of this name."""
        for name, tensor in tensors.items():
            if name in self.names:
                raise WeightsError(f"two layers have {name}: no file can have both")
            self.names.add(name)
            self.num_bytes += _size(tensor)
            self._add(name, tensor.contiguous())

    def close(self) -> None:
        """Write what is left."""
        raise NotImplementedError

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        raise NotImplementedError


def _save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Write a safetensors file with the rights of any new file: the library gives its user alone
    the right to read it, and pods run as another one."""
    path.touch()
    mode = path.stat().st_mode
    safetensors.torch.save_file(tensors, path, _METADATA)
    path.chmod(mode)


class OneFile(Sink):
    """All tensors in one file. They are in memory until it is written."""

    def __init__(self, path: Path, *, is_torch: bool) -> None:
        super().__init__()
        self._path, self._is_torch = path, is_torch
        self._tensors: dict[str, torch.Tensor] = {}

    def close(self) -> None:
        """Write the file."""
        if self._is_torch:
            with open(self._path, "wb") as file:  # else its name would be in the bytes
                torch.save(self._tensors, file)
        else:
            _save(self._tensors, self._path)

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        self._tensors[name] = tensor


class Folder(Sink):
    """A folder of parts with an index, or with one file if all fits in a part. One part is in
    memory at a time."""

    def __init__(self, path: Path, *, shard_bytes: int = SHARD_BYTES) -> None:
        super().__init__()
        self._folder, self._limit = path, shard_bytes
        self._part: dict[str, torch.Tensor] = {}
        self._bytes = 0  # of the part
        self._parts: list[list[str]] = []
        path.mkdir()

    def close(self) -> None:
        """Write the last part, and give all parts their names."""
        self._write()
        count = len(self._parts)
        if count == 1:
            self._temporary(0).rename(self._folder / _WHOLE)
            return
        places: dict[str, str] = {}
        for number, names in enumerate(self._parts):
            name = f"model-{number + 1:05}-of-{count:05}.safetensors"
            self._temporary(number).rename(self._folder / name)
            places |= dict.fromkeys(names, name)
        index = {"metadata": {"total_size": self.num_bytes}, "weight_map": places}
        self.write_json(INDEX, index)

    def write_json(self, name: str, value: Any) -> None:
        """A file beside them."""
        text = json.dumps(value, indent=2, sort_keys=True) + "\n"
        (self._folder / name).write_text(text, encoding="utf-8")

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        if self._part and self._bytes + _size(tensor) > self._limit:
            self._write()
        self._part[name] = tensor
        self._bytes += _size(tensor)

    def _write(self) -> None:
        _save(self._part, self._temporary(len(self._parts)))
        self._parts.append(list(self._part))
        self._part, self._bytes = {}, 0

    def _temporary(self, number: int) -> Path:
        return self._folder / f"part-{number}"


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
