"""Checkpoints: one safetensors file per layer, and a manifest with hashes that is written last.

On a disk, each file is written under a temporary name, flushed and renamed. In a bucket, each is
uploaded under its own name, and appears when it is complete. A checkpoint exists once its manifest
does. The folder is ``<uri>/<job uid>/attempt-A/step-K/``. Any grid can read it, since there is one
file per layer.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import safetensors.torch
from safetensors import SafetensorError

from bamboo_agent.payloads.kinds import FileRecord, LayerRecord
from bamboo_agent.storage import disk, objects
from bamboo_agent.storage.errors import AbsentError as AbsentError
from bamboo_agent.storage.errors import CheckpointError as CheckpointError
from bamboo_agent.storage.errors import UnreachableError as UnreachableError
from bamboo_agent.storage.files import Files
from bamboo_agent.storage.ranking import Facts as Facts
from bamboo_agent.storage.ranking import Scored as Scored
from bamboo_agent.storage.ranking import best_of, unneeded, value_of
from bamboo_agent.storage.sight import Look
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol.messages import Manifest

log = logging.getLogger(__name__)

FORMAT = 1
MANIFEST = "manifest.json"
BEGUN = "begun"
"""File in the folder of an attempt that has begun from a checkpoint of an older one."""
MADE = "made"
"""Object in a job's folder in a bucket, from its first set-up on."""

Mark = tuple[int, int]
"""Attempt and step of a checkpoint."""


@dataclass(frozen=True)
class Header:
    """The identity of the state, for the manifest."""

    attempt: int
    step: int
    seed: int
    batch: BatchShape
    best: Scored | None = None  # None: no checkpoint is the best one
    identity: dict[str, str] = field(default_factory=dict)  # see storage.origin; empty: not noted


class Scan(NamedTuple):
    """Complete checkpoints, oldest first, and an error for each one that is wrong."""

    good: list[Manifest]
    bad: list[CheckpointError]
    unreachable: str = ""  # why one of them is neither good nor wrong; empty: all could be read

    @property
    def is_partial(self) -> bool:
        """Whether a checkpoint could not be reached."""
        return self.unreachable != ""


class Checkpoints(Files):
    """The checkpoints of one job below one address."""

    def __init__(
        self, uri: str, job_uid: str, *, on_traffic: Callable[[], None] = lambda: None
    ) -> None:
        """uri: ``file:///path``, a plain path, or a bucket (``s3://``, ``gs://``, ``az://``,
        ``abfs://``) with a prefix. on_traffic: called in the thread that reads or writes, after
        each piece of a file.

        CheckpointError if its driver is not installed, or refuses the address.
        """
        super().__init__(uri, job_uid, on_traffic)
        self._given_up: set[Mark] = set()  # without a manifest when it was pruned

    def folder(self, attempt: int, step: int) -> str:
        """The folder of one checkpoint."""
        return f"{self._root}/attempt-{attempt:04d}/step-{step:08d}"

    def _file(self, attempt: int, step: int, layer: int) -> str:
        return f"{self.folder(attempt, step)}/layer-{layer:04d}.safetensors"

    # ------------------------------------------------------------ writing

    def probe(self) -> None:
        """Write a small file and remove it. CheckpointError if that fails.

        A bucket has no empty folders: one object stays, so that a job's folder that is not there
        is no folder without checkpoints. There, rights to list and delete are tried as well.
        """
        path, text = f"{self._root}/probe-{self._mark}", b"to see whether checkpoints can be"
        if self._is_local:
            self._write(path, text)
            disk.remove_quietly(self._fs, path)
            return
        path = path.ljust(len(self._file(0, 0, 0)), "-")  # names can be too long for a bucket
        self._write(path, text)
        found = self._list(self._root) or {}
        self._remove(path)
        if not any(name.endswith(f"/{MADE}") for name in found):
            self._write(f"{self._root}/{MADE}", text)

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
        """Write the manifest over the files of all layers, in order. CheckpointError.

        In a bucket, a whole manifest is never replaced: of two writers, the second one finds what
        it would have written, or an error. A value of the validation that is known is never lost,
        though a plan without validation may seal the same files again.
        """
        entries = [{"path": f.path, "sha256": f.sha256, "bytes": f.num_bytes} for f in files]
        content = {"format": FORMAT, **asdict(header), "files": entries}
        if header.best is None:
            del content["best"]
            return self._seal(content)
        known = self._sealed_before(header, entries)
        return known if known is not None else self._seal(content)

    def point_to(self, content: Mapping[str, Any], folder: str) -> Manifest:
        """Write a manifest of attempt 0 whose files are those of another job. CheckpointError.

        content: of that job's manifest; folder: of its files, which are only read. How good that
        job has found it is left out: this one may compare by another metric.
        """
        kept = {name: value for name, value in content.items() if name != "best"}
        return self._seal({**kept, "attempt": 0, "from": folder})

    def _seal(self, content: dict[str, Any]) -> Manifest:
        data = json.dumps(content, indent=1, sort_keys=True).encode()
        attempt, step = content["attempt"], content["step"]
        path = f"{self.folder(attempt, step)}/{MANIFEST}"
        if self._is_local:
            self._write(path, data)
        else:
            self._create_manifest(path, data)
        digest = hashlib.sha256(data).hexdigest()
        return Manifest(attempt, step, path, digest, value_of(content))

    def _sealed_before(self, header: Header, entries: list[dict[str, Any]]) -> Manifest | None:
        """The whole manifest over the same files that is there already, unless this one is to
        replace it, since it alone knows the value."""
        try:
            known = self._check(self.folder(header.attempt, header.step))
            if known is None or self._files(known) != entries:
                return None
        except CheckpointError:
            return None
        assert header.best is not None
        is_better = known.value is None and header.best.value is not None and self._is_local
        return None if is_better else known

    def _create_manifest(self, path: str, data: bytes) -> None:
        for _ in range(2):
            try:
                is_ours = objects.create(self._fs, path, data)
            except Exception as error:
                if self._find_quietly(path) != data:  # else only the answer was lost
                    raise self._failed(path, error) from error
                return
            if is_ours or self._find_quietly(path) == data:
                return
            if self._is_sealed(path.rpartition("/")[0]):
                break
            self._remove(path)  # it is damaged, so there is no checkpoint
        raise CheckpointError(f"writing {path} failed: another agent has sealed other files there")

    def _is_sealed(self, folder: str) -> bool:
        try:
            return self._check(folder) is not None
        except AbsentError:
            return False
        except UnreachableError:
            raise
        except CheckpointError:
            return False

    def _find_quietly(self, path: str) -> bytes | None:
        try:
            return self._find(path)
        except UnreachableError:
            return None

    # ------------------------------------------------------------ reading

    def scan(self, told: set[str] | None = None) -> Scan:
        """Check that all files exist, by listing each folder once.

        Hashes are checked when layers are loaded. UnreachableError if a folder of checkpoints
        cannot be listed. told: the errors that have been logged; they are not logged again.
        """
        return self._survey(set() if told is None else told)[0]

    def unsealed(self) -> list[Mark]:
        """Checkpoints without a manifest: they are being written, or were given up."""
        return [mark for mark, _ in self._survey(set())[1]]

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
        if there is None:  # the set-up has made it
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
        home = _home(path, content)
        found = self._list(home) or {}
        sizes = {name.rpartition("/")[2]: size for name, size in found.items()}
        for entry in content["files"]:
            name = entry["path"].rpartition("/")[2]
            size = sizes.get(name)
            if size != entry["bytes"]:
                if self._find(path) is None:
                    return None
                if size is None:
                    raise AbsentError(f"{home}/{name} is not there")
                text = f"{home}/{name} has {size} bytes, expected {entry['bytes']} bytes"
                raise CheckpointError(text)
        digest = hashlib.sha256(data).hexdigest()
        return Manifest(content["attempt"], content["step"], path, digest, value_of(content))

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
        """The entries of a manifest, with the files' paths."""
        content, folder = self.content(manifest)
        names = [entry["path"].rpartition("/")[2] for entry in content["files"]]
        pairs = zip(content["files"], names, strict=True)
        return [{**entry, "path": f"{folder}/{name}"} for entry, name in pairs]

    def content(self, manifest: Manifest) -> tuple[dict[str, Any], str]:
        """A manifest, and the folder of its files. CheckpointError if it was altered,
        UnreachableError if it is not there."""
        data = self._read(manifest.path)
        if hashlib.sha256(data).hexdigest() != manifest.digest:
            raise CheckpointError(f"{manifest.path} has been altered: its hash does not match")
        content = _parse(manifest.path, data)
        return content, _home(manifest.path, content)

    def find(self, attempt: int, step: int) -> Manifest | None:
        """One checkpoint; None: it is not sealed. CheckpointError if a file has other bytes,
        UnreachableError if one is not there."""
        self._fs.invalidate_cache()
        return self._check(self.folder(attempt, step))

    def is_there(self) -> bool:
        """Whether the job has a folder. UnreachableError."""
        return self._list(self._root) is not None

    def jobs(self, below: str = "") -> list[str]:
        """The folders of jobs with checkpoints in this folder, or in one below: their paths from
        here. UnreachableError."""
        names = [path.rpartition("/")[2] for path in self._list(f"{self._root}{below}") or ()]
        folders = sorted(f"{below}/{name}" for name in names)
        roots = {x: f"{self._root}{x}" for x in folders}
        return [x for x in folders if _named(roots[x], self._list(roots[x]), "attempt-")]

    def best(self, good: Sequence[Manifest]) -> Manifest | None:
        """The best of these checkpoints, as the newest one's manifest compares them; None: none is.
        CheckpointError."""
        newest = max(good, key=lambda m: (m.attempt, m.step), default=None)
        if newest is None:
            return None
        return best_of(_parse(newest.path, self._read(newest.path)), good)

    def hashes(self, manifest: Manifest) -> list[str]:
        """SHA-256 of each layer's file. CheckpointError if the manifest was altered."""
        return [entry["sha256"] for entry in self._files(manifest)]

    def paths(self, manifest: Manifest) -> list[str]:
        """Each layer's file. CheckpointError if the manifest was altered."""
        return [entry["path"] for entry in self._files(manifest)]

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

    # ------------------------------------------------------------ pruning

    def prune(self, *, keep: int, newest: Manifest, facts: Facts) -> None:
        """Remove what is not needed any more, manifests first, and what was left by checkpoints
        that were given up. CheckpointError if one cannot be removed.

        The rule is :func:`unneeded`. It also holds for a folder without a manifest, which may only
        be away for a moment. Once a later attempt has begun, its facts are not known here, so
        nothing is removed.
        """
        if later := self.later(newest.attempt):
            log.warning("no checkpoint is removed: %s is of a later attempt than this one", later)
            return
        scan, unsealed = self._survey(set())
        given_up = {mark for mark, _ in unsealed}
        gone = unneeded(
            scan.good,
            given_up,
            new=given_up - self._given_up,
            newest=(newest.attempt, newest.step),
            keep=keep,
            facts=facts,
        )
        self._given_up = given_up
        found = {(m.attempt, m.step): m.path for m in scan.good}
        for path in (found[mark] for mark in gone if mark in found):
            self._remove(path)
            self._remove(path.rpartition("/")[0])
        for mark, folder in unsealed:
            if mark in gone:
                self._remove(folder)
        self._sweep(newest.attempt)

    def _sweep(self, attempt: int) -> None:
        """Remove what dead agents have uploaded of files that nobody completes. Best effort."""
        if self._is_local:
            return
        try:
            count = objects.sweep(self._fs, self._root, attempt)
        except Exception as error:
            log.warning("uploads that were begun stay in %s: %s", self._root, self._why(error))
            return
        if count:
            log.info("%d uploads that dead agents had begun are removed", count)

    def later(self, attempt: int) -> str:
        """Folder of an attempt that has begun after this one; empty: there is none."""
        self._fs.invalidate_cache()
        folders = _named(self._root, self._list(self._root), "attempt-")
        return next((x for x in folders if int(x.rpartition("-")[2]) > attempt), "")


def _named(folder: str, paths: Iterable[str] | None, prefix: str) -> list[str]:
    """Paths in the folder that are a prefix and a number."""
    names = (path.rpartition("/")[2] for path in paths or ())
    found = (n for n in names if n.startswith(prefix) and n.removeprefix(prefix).isdecimal())
    return [f"{folder}/{name}" for name in sorted(found)]


def _home(path: str, content: Mapping[str, Any]) -> str:
    """The folder of a manifest's files: they stand beside it, wherever it was written, unless they
    are another job's."""
    return str(content.get("from") or path.rpartition("/")[0])


def _parse(path: str, data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data)
        if content["format"] != FORMAT:
            raise CheckpointError(f"{path} has format {content['format']}, this is {FORMAT}")
        _ = int(content["attempt"]), int(content["step"]), str.strip(content.get("from", ""))
        files = [
            (e["path"].split("/"), str.strip(e["sha256"]), e["bytes"] >= 0)
            for e in content["files"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is no manifest: {error}") from error
    for parts, _, _ in files:
        if ".." in parts or parts[-1] in ("", "."):
            text = f"its file {'/'.join(parts)!r} does not stand beside it"
            raise CheckpointError(f"{path} is no manifest: {text}")
    return content  # type: ignore[no-any-return]


def _metadata(data: bytes) -> dict[str, str]:
    """The ``__metadata__`` of a safetensors file: 8 bytes of length, then a JSON header."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]).get("__metadata__", {})  # type: ignore[no-any-return]
