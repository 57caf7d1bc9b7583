"""Arrays on disk, as ``numpy.save`` writes them: row i of each is a part of sample i.

Rows are read when they are asked for, so memory does not grow with the files; the system's cache
keeps what is read often. As in :mod:`bamboo_agent.datasets.tokens`, files are read, not mapped.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

_BLOCKS, _BLOCK_BYTES = 128, 4096  # of each file, for the fingerprint


@dataclass(frozen=True)
class _Rows:
    """An array in a file. start: bytes before it."""

    path: Path
    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def _row_bytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))

    def read(self, index: int) -> torch.Tensor:
        """A row. ValueError if the file has become shorter."""
        data = self._bytes(self.start + index * self._row_bytes, self._row_bytes)
        if len(data) < self._row_bytes:
            raise ValueError(
                f"{self.path} has become shorter since the start: row {index} is not there; files"
                " of a data set must stay as they are"
            )
        row = np.frombuffer(data, self.dtype).reshape(self.shape[1:])
        return torch.from_numpy(row.astype(self.dtype.newbyteorder("=")))

    def _bytes(self, first: int, count: int) -> bytes:
        with self.path.open("rb") as opened:
            opened.seek(first)
            return opened.read(count)

    def digest(self) -> bytes:
        """A hash of the size and of some blocks at equal distances, the first and last among
        them."""
        size = self.path.stat().st_size
        found = hashlib.sha256(f"{size}".encode())
        last = max(0, size - _BLOCK_BYTES)
        for at in sorted({last * i // (_BLOCKS - 1) for i in range(_BLOCKS)}):
            found.update(self._bytes(at, _BLOCK_BYTES))
        return found.digest()


class Arrays:
    """Sample i: (a row of the inputs, the same row of the targets). See :func:`build`."""

    def __init__(self, inputs: _Rows, targets: _Rows, part: range) -> None:
        """part: rows that belong to this set."""
        self._inputs, self._targets, self._part = inputs, targets, part

    def __len__(self) -> int:
        return len(self._part)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = self._part[index]
        return self._inputs.read(row), self._targets.read(row)

    def content_fingerprint(self) -> str:
        """A hash of the sizes of both files, and of up to 512 KiB of each at places that lie
        evenly."""
        return hashlib.sha256(self._inputs.digest() + self._targets.digest()).hexdigest()


def build(inputs: str, targets: str, first: int = 0, count: int | None = None) -> Arrays:
    """Samples from two ``.npy`` files with as many rows.

    first, count: the rows that belong to this set. ValueError names what is wrong, and the file;
    OSError one that is missing or cannot be read, which may be a fault of one node.
    """
    for name, value, least in (("first", first, 0), ("count", count, 1)):
        if value is not None and (type(value) is not int or value < least):
            raise ValueError(f"{name} {value!r} must be a whole number of at least {least}")
    given, wanted = _opened("inputs", inputs), _opened("targets", targets)
    rows = given.shape[0]
    if wanted.shape[0] != rows:
        raise ValueError(
            f"{given.path} has {rows} rows and {wanted.path} {wanted.shape[0]}: give a target for"
            " each input"
        )
    end = rows if count is None else first + count
    if first >= rows or end > rows:
        wish = "" if count is None else f" and count {count}"
        raise ValueError(f"first {first}{wish} lie beyond the {rows} rows of {given.path}")
    return Arrays(given, wanted, range(first, end))


def _opened(name: str, path: str) -> _Rows:
    """name: of the argument."""
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{name} {path}: no such file; name a file that is in the image or on a volume that all"
            " agents mount (worker.podTemplate)"
        ) from error
    except (ValueError, EOFError) as error:
        raise ValueError(
            f"{name} {path} is not an array of numbers of numpy.save, or is torn: {error}"
        ) from error
    if not isinstance(found, np.memmap):
        raise ValueError(f"{name} {path} must be a .npy file of one array, as numpy.save writes it")
    if not found.ndim or found.dtype.kind not in "biuf":
        raise ValueError(
            f"{name} {path} has dtype {found.dtype} and shape {found.shape}; it must have rows of"
            " numbers"
        )
    if not found.flags.c_contiguous:
        raise ValueError(
            f"{name} {path} is in Fortran order, so its rows are spread: save"
            " np.ascontiguousarray of it"
        )
    return _Rows(Path(path), found.offset, found.dtype, found.shape)
