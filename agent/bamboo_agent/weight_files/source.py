"""Reads tensors by name from files of weights, each when it is wanted.

An address is a safetensors file, a file of ``torch.save``, or a folder with one of them, as
libraries write it: whole, or in parts with an index. Files here are mapped into memory. Of others,
which any fsspec address may name, the wanted bytes are read.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import fsspec
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from bamboo_agent.factory_names import told
from bamboo_agent.storage import objects
from bamboo_agent.weight_files.outlines import Outline, WeightsError

INDEX = "model.safetensors.index.json"
IN_FOLDERS = (
    INDEX,
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)
"""What a folder may have; the first that is there counts."""
_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16,
    "U16": torch.uint16, "I32": torch.int32, "U32": torch.uint32, "I64": torch.int64,
    "U64": torch.uint64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32,
    "F64": torch.float64, "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
_LONGEST_HEADER = 100_000_000  # bytes; the library's own limit
_MOST_SHOWN = 300  # characters of an error
_PLAIN_NAME = re.compile(r"[^/\\]+")


def options_of(address: str) -> dict[str, Any]:
    """Arguments of the address's driver."""
    scheme = address.rpartition("://")[0]
    return {} if scheme in ("", "file") else objects.options(scheme)


def why(error: Exception, address: str) -> str:
    """Say what went wrong with reading an address, and what to do about it."""
    if not options_of(address):
        return " ".join(told(error).split())[:_MOST_SHOWN]
    folder = address.rstrip("/").rpartition("/")[0]
    return " ".join(objects.why(error, folder, "to list and read there").split())


class _File(Protocol):
    """One file. OSError, SafetensorError, ValueError if it cannot be read."""

    def outlines(self) -> dict[str, Outline]: ...

    def tensor(self, name: str) -> torch.Tensor: ...


class Source(Mapping[str, torch.Tensor]):
    """Tensors by name. WeightsError if one cannot be read. ``outlines``: what there is."""

    def __init__(self, address: str) -> None:
        """address: a path, or any fsspec address. WeightsError."""
        self.address = address
        self._files: dict[str, _File] = {}
        self.outlines: dict[str, Outline] = {}
        try:
            self._fs, self._path = fsspec.core.url_to_fs(address, **options_of(address))
        except Exception as error:  # drivers raise errors of their own types
            raise WeightsError(f"{address} cannot be used: {error}") from error
        for path in self._paths():
            file: _File = self._asked(path, partial(self._open, path))
            for name, outline in self._asked(path, file.outlines).items():
                if name in self.outlines:
                    raise WeightsError(f"{address} has {name} in two files; remove one of them")
                self.outlines[name] = outline
                self._files[name] = file

    def __getitem__(self, name: str) -> torch.Tensor:
        found: torch.Tensor = self._asked(name, partial(self._files[name].tensor, name))
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def _asked(self, what: str, ask: Callable[[], Any]) -> Any:
        """The answer. WeightsError if the file cannot be read; stores have errors of their own."""
        try:
            return ask()
        except WeightsError:
            raise
        except FileNotFoundError as error:
            raise WeightsError(f"{self.address}: {what} is not there") from error
        except Exception as error:
            text = why(error, self.address)
            raise WeightsError(f"{self.address}: {what} cannot be read: {text}") from error

    def _paths(self) -> list[str]:
        """The files at the address."""
        if not self._asked("it", lambda: self._fs.exists(self._path)):
            raise WeightsError(f"{self.address} is not there; name a file or folder with weights")
        if not self._asked("it", lambda: self._fs.isdir(self._path)):
            return [self._path]
        folder = self._path.rstrip("/")
        there = {str(x).rstrip("/").rpartition("/")[2] for x in self._fs.ls(folder, detail=False)}
        found = next((name for name in IN_FOLDERS if name in there), "")
        if not found:
            raise WeightsError(
                f"{self.address} has none of {', '.join(IN_FOLDERS)}; name a file with weights"
            )
        if not found.endswith(".index.json"):
            return [f"{folder}/{found}"]
        index = self._asked(found, lambda: json.loads(self._fs.cat_file(f"{folder}/{found}")))
        parts = index.get("weight_map") if isinstance(index, dict) else None
        names = set(parts.values()) if isinstance(parts, dict) else set()
        if not names or not all(isinstance(x, str) and _PLAIN_NAME.fullmatch(x) for x in names):
            raise WeightsError(f"{self.address}: {found} names no files of its folder")
        return [f"{folder}/{name}" for name in sorted(names)]

    def _open(self, path: str) -> _File:
        is_local = isinstance(self._fs, fsspec.implementations.local.LocalFileSystem)
        if path.endswith((".bin", ".pt", ".pth")):
            if not is_local:
                raise WeightsError(
                    f"{self.address} is a file of torch.save that is not on this machine: copy it"
                    " here, or write it as safetensors"
                )
            return _TorchFile(Path(path))
        return _MappedFile(Path(path)) if is_local else _RemoteFile(self._fs, path)


class _MappedFile:
    """A safetensors file on this machine."""

    def __init__(self, path: Path) -> None:
        try:
            self._open: Any = safe_open(str(path), framework="pt")
        except SafetensorError as error:
            raise WeightsError(
                f"{path} is no safetensors file, or is torn ({error}): name one, or a file of"
                " torch.save whose name ends in .bin, .pt or .pth"
            ) from error

    def outlines(self) -> dict[str, Outline]:
        slices = {name: self._open.get_slice(name) for name in self._open.keys()}  # noqa: SIM118
        return {
            name: Outline(_dtype(each.get_dtype()), tuple(each.get_shape()))
            for name, each in slices.items()
        }

    def tensor(self, name: str) -> torch.Tensor:
        found: torch.Tensor = self._open.get_tensor(name)
        return found


class _RemoteFile:
    """A safetensors file elsewhere: 8 bytes of length, a JSON header, then the tensors."""

    def __init__(self, fs: Any, path: str) -> None:
        self._fs, self._path = fs, path
        length = int.from_bytes(fs.cat_file(path, start=0, end=8), "little")
        if not 0 < length <= _LONGEST_HEADER:
            raise SafetensorError("it has no header")
        self._start = 8 + length
        self._header = json.loads(fs.cat_file(path, start=8, end=self._start))
        self._header.pop("__metadata__", None)

    def outlines(self) -> dict[str, Outline]:
        return {
            name: Outline(_dtype(entry["dtype"]), tuple(entry["shape"]))
            for name, entry in self._header.items()
        }

    def tensor(self, name: str) -> torch.Tensor:
        """The library reads it, from a file in memory that has nothing else."""
        entry = self._header[name]
        begin, end = entry["data_offsets"]
        data = b""  # stores refuse to read no bytes
        if begin < end:
            place = {"start": self._start + begin, "end": self._start + end}
            data = self._fs.cat_file(self._path, **place)
        header = json.dumps({name: {**entry, "data_offsets": [0, end - begin]}}).encode()
        header += b" " * (-len(header) % 8)
        found: torch.Tensor
        found = safetensors.torch.load(len(header).to_bytes(8, "little") + header + data)[name]
        return found


class _TorchFile:
    """A file of ``torch.save`` with a state dict. Nothing but tensors is unpickled."""

    def __init__(self, path: Path) -> None:
        try:
            try:
                found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            except RuntimeError:  # the format of before torch 1.6 cannot be mapped
                found = torch.load(path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, EOFError, RuntimeError) as error:
            # torch's text advises to unpickle anything, which would run code of the file
            raise WeightsError(
                f"{path} is no file of torch.save with tensors alone, or is torn: write one with"
                " torch.save(model.state_dict(), PATH), or as safetensors"
            ) from error
        if isinstance(found, Mapping) and isinstance(found.get("state_dict"), Mapping):
            found = found["state_dict"]
        if not isinstance(found, Mapping) or not all(
            isinstance(name, str) and isinstance(value, torch.Tensor)
            for name, value in found.items()
        ):
            raise WeightsError(
                f"{path} is no state dict{_nested(found)}: write one with"
                " torch.save(model.state_dict(), PATH)"
            )
        self._tensors = dict(found)

    def outlines(self) -> dict[str, Outline]:
        return {name: Outline.of(tensor) for name, tensor in self._tensors.items()}

    def tensor(self, name: str) -> torch.Tensor:
        found: torch.Tensor = self._tensors[name].detach()
        return found


def _nested(found: Any) -> str:
    """Which entries of a file of torch.save may be meant."""
    entries = found.items() if isinstance(found, Mapping) else ()
    dicts = [repr(name) for name, value in entries if isinstance(value, Mapping)]
    return f", but has dicts under {', '.join(dicts)}" if dicts else ""


def _dtype(name: str) -> torch.dtype:
    if name not in _DTYPES:
        raise WeightsError(f"its dtype {name} is not known here")
    return _DTYPES[name]


def given(address: str) -> Source:
    """Weights that a user names. WeightsError, also if there are none."""
    source = Source(address)
    if not source.outlines:
        raise WeightsError(f"{address} has no tensors; name a file with weights")
    return source
