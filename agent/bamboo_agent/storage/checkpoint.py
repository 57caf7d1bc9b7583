"""Checkpoints: one safetensors file per layer, and a manifest with hashes that is written last.

Each file is written under a temporary name, flushed to disk and renamed. A checkpoint exists once
its manifest does. The folder is ``<uri>/<job uid>/attempt-A/step-K/``, at any fsspec address. Any
grid can read it, since there is one file per layer.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import fsspec
import safetensors.torch
from safetensors import SafetensorError

from bamboo_agent.payloads.kinds import FileRecord, LayerRecord
from bamboo_agent.storage.sight import Look
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.pruning import removable
from bamboo_core.protocol.messages import Fork, Manifest

log = logging.getLogger(__name__)

FORMAT = 1
MANIFEST = "manifest.json"
BEGUN = "begun"
"""File in the folder of an attempt that has begun from a checkpoint of an older one."""


Mark = tuple[int, int]
"""Attempt and step of a checkpoint."""
_PIECE_BYTES = 64 << 20  # of a file at a time, so that a slow storage is seen to move


class CheckpointError(Exception):
    """A checkpoint cannot be written, or was read and is wrong. The text names the file.

    cause: why a write failed, without the file's name.
    """

    def __init__(self, text: str, attempt: int = 0, step: int = 0, *, cause: str = "") -> None:
        super().__init__(text)
        self.attempt, self.step, self.cause = attempt, step, cause


class UnreachableError(CheckpointError):
    """The storage fails, or a file or folder is not there: a mount may be late, and a folder may
    be away for a while. This says nothing about a checkpoint."""


class AbsentError(UnreachableError):
    """The storage answers, but a file is not there."""


@dataclass(frozen=True)
class Header:
    """The identity of the state, for the manifest."""

    attempt: int
    step: int
    seed: int
    batch: BatchShape


class Facts(NamedTuple):
    """What the operator knows of the checkpoints, for pruning."""

    forks: tuple[Fork, ...] = ()
    bad: frozenset[Mark] = frozenset()  # read and wrong


class Scan(NamedTuple):
    """Complete checkpoints, oldest first, and an error for each one that is wrong."""

    good: list[Manifest]
    bad: list[CheckpointError]
    unreachable: str = ""  # why one of them is neither good nor wrong; empty: all could be read

    @property
    def is_partial(self) -> bool:
        """Whether a checkpoint could not be reached."""
        return self.unreachable != ""


class Checkpoints:
    """The checkpoints of one job below one address."""

    def __init__(
        self, uri: str, job_uid: str, *, on_traffic: Callable[[], None] = lambda: None
    ) -> None:
        """uri: ``file:///path``, a plain path, or any fsspec address. on_traffic: called in the
        thread that reads or writes, after each piece of a file.

        CheckpointError if the installed fsspec does not support it.
        """
        try:
            self._fs, root = fsspec.core.url_to_fs(uri)
        except (ImportError, ValueError, OSError) as error:
            raise CheckpointError(f"checkpoint.uri {uri!r} cannot be used: {error}") from error
        self._root = f"{root.rstrip('/')}/{job_uid}"
        self._is_local = "file" in _protocols(self._fs)
        self._on_traffic = on_traffic
        self._mark = os.urandom(8).hex()  # process ids are not unique across containers

    def folder(self, attempt: int, step: int) -> str:
        """The folder of one checkpoint."""
        return f"{self._root}/attempt-{attempt:04d}/step-{step:08d}"

    def _file(self, attempt: int, step: int, layer: int) -> str:
        return f"{self.folder(attempt, step)}/layer-{layer:04d}.safetensors"

    # ------------------------------------------------------------ writing

    def probe(self) -> None:
        """Write a small file and remove it. CheckpointError if that fails."""
        path = f"{self._root}/probe-{self._mark}"
        self._write(path, b"written to see whether checkpoints can be")
        self._remove_quietly(path)

    def claim(self, attempt: int) -> bool:
        """Leave a mark before this attempt reads the checkpoint that it begins from: agents of
        older attempts, which nobody can reach, delete nothing from then on. Best effort.

        False: the job's folder is not there. It is not made, since a mount may be late.
        UnreachableError.
        """
        self._fs.invalidate_cache()
        if self._list(self._root) is None:
            return False
        try:
            self._write(f"{self._root}/attempt-{attempt:04d}/{BEGUN}", b"")
        except CheckpointError as error:
            log.warning("agents of older attempts may delete what this one begins from: %s", error)
        return True

    def write_layer(
        self, *, attempt: int, step: int, layer: int, record: LayerRecord
    ) -> FileRecord:
        """Write one layer. CheckpointError if it cannot be written."""
        data = safetensors.torch.save(record.tensors, {"extra": record.extra})
        path = self._file(attempt, step, layer)
        self._write(path, data)
        return FileRecord(path, hashlib.sha256(data).hexdigest(), len(data))

    def seal(self, header: Header, files: Sequence[FileRecord]) -> Manifest:
        """Write the manifest over the files of all layers, in order. CheckpointError."""
        entries = [{"path": f.path, "sha256": f.sha256, "bytes": f.num_bytes} for f in files]
        content = {"format": FORMAT, **asdict(header), "files": entries}
        data = json.dumps(content, indent=1, sort_keys=True).encode()
        path = f"{self.folder(header.attempt, header.step)}/{MANIFEST}"
        self._write(path, data)
        return Manifest(header.attempt, header.step, path, hashlib.sha256(data).hexdigest())

    def _write(self, path: str, data: bytes) -> None:
        temporary = f"{path}.{self._mark}.tmp"
        try:
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            with self._fs.open(temporary, "wb") as file:
                view = memoryview(data)
                for at in range(0, len(data), _PIECE_BYTES):
                    file.write(view[at : at + _PIECE_BYTES])
                    self._on_traffic()
                if self._is_local:
                    file.flush()
                    os.fsync(file.fileno())
                    self._on_traffic()
            self._fs.mv(temporary, path)
            self._sync_folder(path)
        except Exception as error:
            self._remove_quietly(temporary)
            why = _why(error)
            cause = f"writing below {self._root} failed: {why}"
            raise CheckpointError(f"writing {path} failed: {why}", cause=cause) from error

    def _sync_folder(self, path: str) -> None:
        """A rename is durable only after fsync of its folder."""
        if not self._is_local:
            return
        descriptor = os.open(path.rpartition("/")[0], os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _remove_quietly(self, path: str) -> None:
        try:
            if self._fs.exists(path):
                self._fs.rm(path)
        except Exception:
            return

    # ------------------------------------------------------------ reading

    def scan(self, told: set[str] | None = None) -> Scan:
        """Check that all files exist, by listing each folder once.

        Hashes are checked when layers are loaded. UnreachableError if a folder of checkpoints
        cannot be listed. told: the errors that have been logged; they are not logged again.
        """
        return self._survey(set() if told is None else told)[0]

    def missing(self, look: Look) -> str:
        """The first file that is not there with its bytes, by one listing; empty: all are.

        A folder that cannot be listed has none.
        """
        self._fs.invalidate_cache()
        try:
            found = self._list(self.folder(look.attempt, look.step)) or {}
        except UnreachableError as error:
            log.warning("%s", error)
            found = {}
        sizes = {name.rpartition("/")[2]: size for name, size in found.items()}
        paths = (self._file(look.attempt, look.step, x) for x in range(len(look.sizes)))
        files = zip(paths, look.sizes, strict=True)
        return next((p for p, size in files if sizes.get(p.rpartition("/")[2]) != size), "")

    def _survey(self, told: set[str]) -> tuple[Scan, list[tuple[Mark, str]]]:
        """The same, and the folders of checkpoints that are not sealed."""
        self._fs.invalidate_cache()
        good: list[Manifest] = []
        bad: list[CheckpointError] = []
        unreachable = ""
        unsealed: list[tuple[Mark, str]] = []
        there = self._list(self._root)
        if there is None and self._is_local:  # the set-up has made it
            return Scan([], [], f"{self._root} is not there"), []
        for parent in _named(self._root, there, "attempt-"):
            for folder in _named(parent, self._list(parent), "step-"):
                attempt, step = (int(x.rpartition("-")[2]) for x in folder.split("/")[-2:])
                try:
                    manifest = self._check(folder)
                except UnreachableError as error:
                    unreachable = unreachable or str(error)
                    if str(error) not in told:
                        told.add(str(error))
                        log.warning("%s; it may be complete", error)
                except CheckpointError as error:
                    bad.append(CheckpointError(str(error), attempt, step))
                else:
                    if manifest is None:
                        unsealed.append(((attempt, step), folder))
                    else:
                        good.append(manifest)
        return Scan(good, bad, unreachable), unsealed

    def _list(self, folder: str) -> dict[str, int | None] | None:
        """Path -> bytes, with as few requests as the storage allows; None: no such folder."""
        try:
            entries = self._fs.ls(folder, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except Exception as error:
            raise UnreachableError(f"listing {folder} failed: {_why(error)}") from error
        return {entry["name"].rstrip("/"): entry["size"] for entry in entries}

    def _check(self, folder: str) -> Manifest | None:
        """None if it is not sealed, or is being removed at this moment.

        The manifest is read before the folder is listed, since it is written after the files and
        removed before them.
        """
        path = f"{folder}/{MANIFEST}"
        data = self._find(path)
        if data is None:
            return None
        content = _parse(path, data)
        found = self._list(folder) or {}
        sizes = {name.rpartition("/")[2]: size for name, size in found.items()}
        for entry in content["files"]:
            size = sizes.get(entry["path"].rpartition("/")[2])
            if size != entry["bytes"]:
                if self._find(path) is None:
                    return None
                if size is None:
                    raise AbsentError(f"{entry['path']} is not there")
                text = f"{entry['path']} has {size} bytes, expected {entry['bytes']} bytes"
                raise CheckpointError(text)
        digest = hashlib.sha256(data).hexdigest()
        return Manifest(content["attempt"], content["step"], path, digest)

    def read_layers(self, manifest: Manifest, layers: Iterable[int]) -> Iterator[LayerRecord]:
        """The state of these layers. CheckpointError if the manifest or a file was altered,
        UnreachableError if one is not there."""
        files = self._files(manifest)
        for layer in layers:
            if layer >= len(files):
                text = f"{manifest.path} has {len(files)} layers, none is layer {layer}"
                raise CheckpointError(text)
            yield self._read_file(files[layer])

    def check(self, manifest: Manifest) -> None:
        """Read all of a checkpoint. CheckpointError if it is wrong, UnreachableError if something
        of it is not there."""
        for entry in self._files(manifest):
            self._read_file(entry)

    def _files(self, manifest: Manifest) -> list[dict[str, Any]]:
        """The entries of a manifest."""
        data = self._read(manifest.path)
        if hashlib.sha256(data).hexdigest() != manifest.digest:
            raise CheckpointError(f"{manifest.path} has been altered: its hash does not match")
        return _parse(manifest.path, data)["files"]  # type: ignore[no-any-return]

    def hashes(self, manifest: Manifest) -> list[str]:
        """SHA-256 of each layer's file. CheckpointError if the manifest was altered."""
        return [entry["sha256"] for entry in self._files(manifest)]

    def read_layer(self, manifest: Manifest, layer: int) -> LayerRecord:
        """A layer's state. CheckpointError if the manifest or the file was altered."""
        return next(self.read_layers(manifest, [layer]))

    def _read_file(self, entry: dict[str, Any]) -> LayerRecord:
        path, data = entry["path"], self._read(entry["path"])
        if len(data) != entry["bytes"]:
            raise CheckpointError(f"{path} is torn: {len(data)} of {entry['bytes']} bytes")
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise CheckpointError(f"{path} has been altered: its hash does not match the manifest")
        try:
            tensors = safetensors.torch.load(data)
        except SafetensorError as error:
            raise CheckpointError(f"{path} is no safetensors file: {error}") from error
        return LayerRecord(tensors, _metadata(data).get("extra", "{}"))

    def _find(self, path: str) -> bytes | None:
        """A file's content; None if there is no such file. UnreachableError."""
        try:
            with self._fs.open(path, "rb") as file:
                pieces = []
                while piece := file.read(_PIECE_BYTES):
                    pieces.append(piece)
                    self._on_traffic()
                return b"".join(pieces)
        except FileNotFoundError:
            return None
        except Exception as error:
            raise UnreachableError(f"reading {path} failed: {_why(error)}") from error

    def _read(self, path: str) -> bytes:
        data = self._find(path)
        if data is None:
            raise AbsentError(f"reading {path} failed: No such file or directory")
        return data

    # ------------------------------------------------------------ pruning

    def prune(self, *, keep: int, newest: Manifest, facts: Facts) -> None:
        """Remove what is not needed any more, manifests first, and what was left by checkpoints
        that were given up. CheckpointError if one cannot be removed.

        The rule is :func:`removable`. It also holds for a folder without a manifest, which may only
        be away for a moment. Once a later attempt has begun, its facts are not known here, so
        nothing is removed.
        """
        if later := self._later(newest.attempt):
            log.warning("no checkpoint is removed: %s is of a later attempt than this one", later)
            return
        scan, unsealed = self._survey(set())
        found = {(m.attempt, m.step): m.path for m in scan.good}
        gone = removable(
            [*found, *(mark for mark, _ in unsealed)],
            newest=(newest.attempt, newest.step),
            keep=keep,
            sealed=found.keys() - facts.bad,
            forks=[(f.attempt, f.step) for f in facts.forks],
        )
        for path in (found[mark] for mark in gone if mark in found):
            self._remove(path)
            self._remove(path.rpartition("/")[0])
        for mark, folder in unsealed:
            if mark in gone:
                self._remove(folder)

    def _later(self, attempt: int) -> str:
        """Folder of an attempt that has begun after this one; empty: there is none."""
        self._fs.invalidate_cache()
        folders = _named(self._root, self._list(self._root), "attempt-")
        return next((x for x in folders if int(x.rpartition("-")[2]) > attempt), "")

    def _remove(self, path: str) -> None:
        try:
            self._fs.rm(path, recursive=True)
        except FileNotFoundError:
            return
        except Exception as error:
            raise CheckpointError(f"removing {path} failed: {_why(error)}") from error


def _why(error: Exception) -> str:
    """Stores raise errors of their own types, too. No error of a store may end training."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"{type(error).__name__}: {error}"


def _named(folder: str, paths: Iterable[str] | None, prefix: str) -> list[str]:
    """Paths in the folder that are a prefix and a number."""
    names = (path.rpartition("/")[2] for path in paths or ())
    found = (n for n in names if n.startswith(prefix) and n.removeprefix(prefix).isdecimal())
    return [f"{folder}/{name}" for name in sorted(found)]


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _parse(path: str, data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data)
        if content["format"] != FORMAT:
            raise CheckpointError(f"{path} has format {content['format']}, this is {FORMAT}")
        _ = content["attempt"], content["step"], [e["path"] for e in content["files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is no manifest: {error}") from error
    return content  # type: ignore[no-any-return]


def _metadata(data: bytes) -> dict[str, str]:
    """The ``__metadata__`` of a safetensors file: 8 bytes of length, then a JSON header."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]).get("__metadata__", {})  # type: ignore[no-any-return]
