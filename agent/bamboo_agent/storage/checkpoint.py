"""Checkpoints: one safetensors file per layer, and a manifest with hashes that is written last.

Each file is written under a temporary name, flushed to disk and renamed. A checkpoint exists once
its manifest does. The folder is ``<uri>/<job uid>/attempt-A/step-K/``, at any fsspec address. Any
grid can read it, since there is one file per layer.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import fsspec
import safetensors.torch
from safetensors import SafetensorError

from bamboo_agent.compute.layers import LayerRecord
from bamboo_agent.compute.serialization import FileRecord
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol.messages import Manifest

FORMAT = 1
MANIFEST = "manifest.json"


class CheckpointError(Exception):
    """A checkpoint cannot be written, or is torn or altered. The text names the file.

    cause: why a write failed, without the file's name.
    """

    def __init__(self, text: str, *, attempt: int = 0, step: int = 0, cause: str = "") -> None:
        super().__init__(text)
        self.attempt, self.step, self.cause = attempt, step, cause


@dataclass(frozen=True)
class Header:
    """The identity of the state, for the manifest."""

    attempt: int
    step: int
    seed: int
    batch: BatchShape


class Checkpoints:
    """The checkpoints of one job below one address."""

    def __init__(self, uri: str, job_uid: str) -> None:
        """uri: ``file:///path``, a plain path, or any fsspec address.

        CheckpointError if the installed fsspec does not support it.
        """
        try:
            self._fs, root = fsspec.core.url_to_fs(uri)
        except (ImportError, ValueError, OSError) as error:
            raise CheckpointError(f"checkpoint.uri {uri!r} cannot be used: {error}") from error
        self._root = f"{root.rstrip('/')}/{job_uid}"
        self._is_local = "file" in _protocols(self._fs)
        self._mark = os.urandom(8).hex()  # process ids are not unique across containers

    def folder(self, attempt: int, step: int) -> str:
        """The folder of one checkpoint."""
        return f"{self._root}/attempt-{attempt:04d}/step-{step:08d}"

    # ------------------------------------------------------------ writing

    def probe(self) -> None:
        """Write a small file and remove it. CheckpointError if that fails."""
        path = f"{self._root}/probe-{self._mark}"
        self._write(path, b"written to see whether checkpoints can be")
        self._remove_quietly(path)

    def write_layer(
        self, *, attempt: int, step: int, layer: int, record: LayerRecord
    ) -> FileRecord:
        """Write one layer. CheckpointError if it cannot be written."""
        data = safetensors.torch.save(record.tensors, {"extra": record.extra})
        path = f"{self.folder(attempt, step)}/layer-{layer:04d}.safetensors"
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
                file.write(data)
                if self._is_local:
                    file.flush()
                    os.fsync(file.fileno())
            self._fs.mv(temporary, path)
            self._sync_folder(path)
        except OSError as error:
            self._remove_quietly(temporary)
            why = error.strerror or str(error)
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
        except OSError:
            return  # the first error is reported

    # ------------------------------------------------------------ reading

    def scan(self) -> tuple[list[Manifest], list[CheckpointError]]:
        """Complete checkpoints, oldest first, and errors for the others.

        This checks that all files exist. Hashes are checked when layers are loaded.
        """
        self._fs.invalidate_cache()
        good: list[Manifest] = []
        bad: list[CheckpointError] = []
        for path in sorted(self._fs.glob(f"{self._root}/attempt-*/step-*/{MANIFEST}")):
            try:
                good.append(self._check(path))
            except CheckpointError as error:
                attempt, step = (int(part.rpartition("-")[2]) for part in path.split("/")[-3:-1])
                bad.append(CheckpointError(str(error), attempt=attempt, step=step))
        return good, bad

    def _check(self, path: str) -> Manifest:
        data = self._read(path)
        content = _parse(path, data)
        for entry in content["files"]:
            size = self._fs.size(entry["path"]) if self._fs.exists(entry["path"]) else None
            if size != entry["bytes"]:
                found = "is missing" if size is None else f"has {size} bytes"
                raise CheckpointError(f"{entry['path']} {found}, expected {entry['bytes']} bytes")
        digest = hashlib.sha256(data).hexdigest()
        return Manifest(content["attempt"], content["step"], path, digest)

    def read_layer(self, manifest: Manifest, layer: int) -> LayerRecord:
        """A layer's state. CheckpointError if the manifest or the file was altered."""
        data = self._read(manifest.path)
        if hashlib.sha256(data).hexdigest() != manifest.digest:
            raise CheckpointError(f"{manifest.path} has been altered: its hash does not match")
        files = _parse(manifest.path, data)["files"]
        if layer >= len(files):
            raise CheckpointError(f"{manifest.path} has {len(files)} layers, none is layer {layer}")
        return self._read_file(files[layer])

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

    def _read(self, path: str) -> bytes:
        try:
            with self._fs.open(path, "rb") as file:
                return bytes(file.read())
        except OSError as error:
            raise CheckpointError(f"reading {path} failed: {error.strerror or error}") from error

    # ------------------------------------------------------------ pruning

    def prune(self, *, keep: int, newest: Manifest) -> None:
        """Remove all but the newest ``keep`` checkpoints up to ``newest``, manifests first.

        CheckpointError if one cannot be removed.
        """
        good, _ = self.scan()
        older = [m for m in good if (m.attempt, m.step) <= (newest.attempt, newest.step)]
        for manifest in older[: max(0, len(older) - keep)]:
            try:
                self._fs.rm(manifest.path)
                self._fs.rm(manifest.path.rpartition("/")[0], recursive=True)
            except OSError as error:
                why = error.strerror or str(error)
                raise CheckpointError(f"removing {manifest.path} failed: {why}") from error


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
