"""Files of token numbers, one after the other, as nanoGPT and Megatron write them.

A ``.bin`` file holds little-endian integers and nothing else, a ``.npy`` file an array of one
dimension. The files are mapped into memory, read-only: what is read stands in the system's cache,
which all processes of a machine share, and belongs to no process. A sample is refused by name if
its file has become shorter. A disk that fails at the moment of reading kills the process: that is
how the system reports errors of mapped files.
"""

from __future__ import annotations

import glob
import hashlib
import mmap
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch

_DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")
_DEFAULT = "uint16"
_BLOCKS, _BLOCK_BYTES = 256, 4096  # of the files together, for the fingerprint
_MOST_MAPPED = 64  # files of a set at a time: each takes a descriptor of the process


class _Mappings:
    """The files that are mapped now, with the bytes that each has. Another process that gets the
    data set maps them itself; a forked one uses the same."""

    def __init__(self) -> None:
        self._open: dict[Path, mmap.mmap] = {}

    def of(self, path: Path) -> mmap.mmap | None:
        """The file's mapping; None if it has no bytes. OSError."""
        found = self._open.get(path)
        if found is None:
            with path.open("rb") as opened:
                try:
                    found = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
                except ValueError:  # it is empty
                    return None
            while len(self._open) >= _MOST_MAPPED:  # closed when nobody reads it any more
                self._open.pop(next(iter(self._open)))
            self._open[path] = found
        return found

    def __reduce__(self) -> tuple[type[_Mappings], tuple[()]]:
        return _Mappings, ()


@dataclass(frozen=True)
class _File:
    """Tokens on disk. start: bytes before the first one; size: bytes of the file."""

    path: Path
    dtype: np.dtype[Any]
    start: int
    tokens: int
    size: int

    def read(self, mappings: _Mappings, first: int, count: int) -> np.ndarray[Any, Any]:
        """Some tokens: a read-only part of the mapped file. ValueError if it has become shorter."""
        width = self.dtype.itemsize
        begin, mapped = self.start + first * width, mappings.of(self.path)
        # size: of the file now; to touch a page behind its end would kill the process
        if mapped is None or min(len(mapped), mapped.size()) < begin + count * width:
            raise ValueError(
                f"{self.path} has become shorter since the start: token {first + count - 1} is not"
                " there; files of a data set must stay as they are"
            )
        return np.frombuffer(mapped, self.dtype, count, begin)

    def _bytes(self, first: int, count: int) -> bytes:
        with self.path.open("rb") as opened:
            opened.seek(first)
            return opened.read(count)

    def digest(self, blocks: int) -> bytes:
        """A hash of the size and of some blocks at equal distances, the first and last among
        them."""
        found = hashlib.sha256(f"{self.size}".encode())
        last = max(0, self.size - _BLOCK_BYTES)
        for at in sorted({last * i // (blocks - 1) for i in range(blocks)}):
            found.update(self._bytes(at, _BLOCK_BYTES))
        return found.digest()


class Tokens:
    """Sample i: (``sequence`` tokens, the same shifted by one), both int64. See :func:`build`."""

    def __init__(
        self,
        files: Sequence[_File],
        sequence: int,
        part: range,
        eos: int | None,
        vocabulary: int | None,
    ) -> None:
        """part: samples of the files that belong to this set."""
        self._files, self._sequence, self._part = files, sequence, part
        self._eos, self._vocabulary = eos, vocabulary
        self._ends = list(accumulate(_samples(file, sequence) for file in files))
        self._mappings = _Mappings()

    def __len__(self) -> int:
        return len(self._part)

    def __getitem__(self, index: int) -> tuple[Any, torch.Tensor]:
        at = self._part[index]
        number = bisect_right(self._ends, at)
        file, first = self._files[number], at - (self._ends[number - 1] if number else 0)
        mapped = file.read(self._mappings, first * self._sequence, self._sequence + 1)
        piece = mapped.astype(np.int64)
        self._check(piece, file, first * self._sequence)
        tokens = torch.from_numpy(piece)
        if self._eos is None:
            return tokens[:-1], tokens[1:]
        inputs = {"input_ids": tokens[:-1], "position_ids": _positions(piece[:-1], self._eos)}
        return inputs, tokens[1:]

    def _check(self, piece: np.ndarray[Any, Any], file: _File, first: int) -> None:
        wrong = piece < 0
        if self._vocabulary is not None:
            wrong |= piece >= self._vocabulary
        if wrong.any():
            place = int(wrong.argmax())
            limit = "" if self._vocabulary is None else f" and below vocabulary {self._vocabulary}"
            raise ValueError(
                f"{file.path}: token {first + place} is {piece[place]}, which is not at least"
                f" 0{limit}; is the file of dtype {file.dtype}, and of this tokenizer?"
            )

    def content_fingerprint(self) -> str:
        """A hash of the sizes of all files, and of up to 1 MiB at places that lie evenly."""
        blocks = max(2, _BLOCKS // len(self._files))
        found = hashlib.sha256()
        for file in self._files:
            found.update(file.digest(blocks))
        return found.hexdigest()


def build(
    path: str | Sequence[str],
    sequence: int,
    dtype: str | None = None,
    first: int = 0,
    count: int | None = None,
    eos: int | None = None,
    vocabulary: int | None = None,
    header: int = 0,
) -> Tokens:
    """Samples of ``sequence`` tokens, with targets shifted by one.

    path: a file, a pattern such as ``/data/train-*.bin``, or a list of those; files of a pattern
    are sorted by name. A sample never crosses the end of a file. dtype: of ``.bin`` files, uint16
    unless it is named; ``.npy`` files say theirs. first, count: the samples that belong to this
    set. eos: the token that ends a document. With it the input is a dict of ``input_ids`` and
    ``position_ids``, which begin at 0 again after each such token. vocabulary: a token that is not
    below it is refused when it is read. header: bytes before the tokens of a ``.bin`` file.

    ValueError names what is wrong, and the file; OSError one that is missing or cannot be read,
    which may be a fault of one node.
    """
    for name, value, least in (
        ("sequence", sequence, 1),
        ("first", first, 0),
        ("count", count, 1),
        ("eos", eos, 0),
        ("vocabulary", vocabulary, 1),
        ("header", header, 0),
    ):
        if value is not None and (type(value) is not int or value < least):
            raise ValueError(f"{name} {value!r} must be a whole number of at least {least}")
    if dtype is not None and dtype not in _DTYPES:
        raise ValueError(f"dtype {dtype!r} must be one of {', '.join(_DTYPES)}")
    files = [_opened(found, dtype, header) for found in _paths(path)]
    for file in files:
        if file.tokens <= sequence:
            raise ValueError(
                f"{file.path} has {file.tokens} tokens, too few for one sample of sequence"
                f" {sequence} and its last target; take a shorter sequence, or leave the file out"
            )
    whole = sum(_samples(file, sequence) for file in files)
    end = whole if count is None else first + count
    if first >= whole or end > whole:
        wanted = "" if count is None else f" and count {count}"
        raise ValueError(
            f"first {first}{wanted} lie beyond the {whole} samples of {_told(path)}; both count"
            f" samples of {sequence} tokens"
        )
    return Tokens(files, sequence, range(first, end), eos, vocabulary)


def _samples(file: _File, sequence: int) -> int:
    return (file.tokens - 1) // sequence


def _positions(tokens: np.ndarray[Any, Any], eos: int) -> torch.Tensor:
    """Places in the document: 0 for the first token and for each that follows an ``eos``."""
    places = np.arange(len(tokens))
    begins = np.zeros(len(tokens), np.int64)
    begins[1:] = np.where(tokens[:-1] == eos, places[1:], 0)
    return torch.from_numpy(places - np.maximum.accumulate(begins))


def _told(path: str | Sequence[str]) -> str:
    return path if isinstance(path, str) else ", ".join(path)


def _paths(path: str | Sequence[str]) -> list[Path]:
    patterns = [path] if isinstance(path, str) else list(path)
    if not patterns or not all(isinstance(x, str) and x for x in patterns):
        raise ValueError(f"path {path!r} must be a file, a pattern of files, or a list of those")
    found = []
    for pattern in patterns:
        matches = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern))
        if not matches:
            raise FileNotFoundError(
                f"{pattern}: no such file; name a file that is in the image or on a volume that all"
                " agents mount (worker.podTemplate)"
            )
        found += [Path(x) for x in matches]
    return found


def _opened(path: Path, dtype: str | None, header: int) -> _File:
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name its files: {path}/*.bin")
    try:
        size = path.stat().st_size
        if path.suffix == ".npy":
            return _npy(path, dtype, size)
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror or error}") from error
    kind = np.dtype(dtype or _DEFAULT).newbyteorder("<")
    if size <= header:
        what = f"has {size} bytes, no more than header {header}" if size else "is empty"
        raise ValueError(f"{path} {what}; write it again, or leave it out")
    if (size - header) % kind.itemsize:
        raise ValueError(
            f"{path}: {size - header} bytes of tokens are no multiple of {kind.itemsize}, the bytes"
            f" of one {kind.name}; name the dtype that the file has, or copy the file again"
        )
    return _File(path, kind, header, (size - header) // kind.itemsize, size)


def _npy(path: Path, dtype: str | None, size: int) -> _File:
    with path.open("rb") as opened:
        try:
            version = np.lib.format.read_magic(opened)
            read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
                version, np.lib.format.read_array_header_2_0
            )
            shape, _, kind = read(opened)
        except ValueError as error:
            raise ValueError(f"{path} is no array of numpy: {error}") from error
        start = opened.tell()
    if len(shape) != 1 or kind.newbyteorder("=").name not in _DTYPES:
        raise ValueError(
            f"{path} is an array of shape {shape} and dtype {kind}; save one dimension of one of"
            f" {', '.join(_DTYPES)}"
        )
    if dtype is not None and kind.newbyteorder("=") != np.dtype(dtype):
        raise ValueError(f"{path} is of dtype {kind}, not {dtype}; leave dtype out for .npy files")
    if size < start + shape[0] * kind.itemsize:
        raise ValueError(f"{path} ends before its {shape[0]} tokens; copy the file again")
    return _File(path, kind, start, shape[0], size)
