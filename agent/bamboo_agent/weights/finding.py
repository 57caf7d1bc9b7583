"""Finds the checkpoint that an address, a step and an attempt name."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import fsspec

from bamboo_agent.storage.checkpoint import CheckpointError, Checkpoints, Mark, Scan
from bamboo_agent.weight_files.outlines import WeightsError
from bamboo_agent.weight_files.source import options_of, why
from bamboo_core.protocol.messages import Manifest

_ATTEMPT, _STEP = re.compile(r"attempt-(\d+)"), re.compile(r"step-(\d+)")
_OF_RUN = "checkpoints"
"""In the folder of a run on one machine."""


@dataclass(frozen=True)
class Wanted:
    """None: the newest one."""

    step: int | None = None
    attempt: int | None = None
    is_best: bool = False  # by spec.checkpoint.best, which the manifests know


@dataclass(frozen=True)
class Found:
    """A complete checkpoint."""

    checkpoints: Checkpoints
    manifest: Manifest
    files: tuple[str, ...]  # address of each layer's


def find(address: str, wanted: Wanted) -> Found:
    """The checkpoint. address: of one, of an attempt, of a job, of the folder above, or of a run's
    folder. WeightsError says which checkpoints there are."""
    try:
        fs, _ = fsspec.core.url_to_fs(address, **options_of(address))
    except Exception as error:  # drivers raise errors of their own types
        raise WeightsError(f"{address} cannot be used: {error}") from error
    path, wanted = _above(address.rstrip("/"), wanted)
    folder = _job_folder(fs, path, address)
    parent, _, uid = folder.rpartition("/")
    try:
        checkpoints = Checkpoints(parent or "/", uid)
        manifest = _chosen(checkpoints, wanted, folder)
        files = tuple(checkpoints.paths(manifest))
    except CheckpointError as error:
        raise WeightsError(str(error)) from error
    return Found(checkpoints, manifest, files)


def _above(path: str, wanted: Wanted) -> tuple[str, Wanted]:
    """The folder above, and what is wanted in it, if the path is that of a step or an attempt."""
    step, attempt = wanted.step, wanted.attempt
    parent, _, name = path.rpartition("/")
    if (found := _STEP.fullmatch(name)) and _ATTEMPT.fullmatch(parent.rpartition("/")[2]):
        step = _one("--step", step, int(found[1]))
        path = parent
    parent, _, name = path.rpartition("/")
    if found := _ATTEMPT.fullmatch(name):
        attempt = _one("--attempt", attempt, int(found[1]))
        path = parent
    if wanted.is_best and (step is not None or attempt is not None):
        raise WeightsError("--best: the address names a checkpoint or an attempt; leave that out")
    return path, replace(wanted, step=step, attempt=attempt)


def _one(option: str, given: int | None, found: int) -> int:
    if given is not None and given != found:
        raise WeightsError(f"{option} {given}: the address names {found}; leave one of them out")
    return found


def _job_folder(fs: Any, path: str, address: str) -> str:
    """The folder with attempts."""
    names = _names(fs, path)
    if names is None:
        raise WeightsError(f"{address} is not there; name a folder with checkpoints")
    if any(map(_ATTEMPT.fullmatch, names)):
        return path
    if _OF_RUN in names:
        return _job_folder(fs, f"{path}/{_OF_RUN}", address)
    jobs = [n for n in names if any(map(_ATTEMPT.fullmatch, _names(fs, f"{path}/{n}") or ()))]
    if len(jobs) > 1:
        raise WeightsError(
            f"{address} has the checkpoints of {len(jobs)} jobs: name the folder of one of them:"
            f" {', '.join(sorted(jobs))}"
        )
    if not jobs:
        raise WeightsError(
            f"{address} has no checkpoint: the job has not written one yet, or this is another"
            " folder"
        )
    return f"{path}/{jobs[0]}"


def _names(fs: Any, path: str) -> list[str] | None:
    """In a folder; None: there is none."""
    try:
        return [str(x).rstrip("/").rpartition("/")[2] for x in fs.ls(path, detail=False)]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Exception as error:  # stores raise errors of their own
        raise WeightsError(f"{path} cannot be listed: {why(error, path)}") from error


def _chosen(checkpoints: Checkpoints, wanted: Wanted, folder: str) -> Manifest:
    scan = checkpoints.scan()
    if wanted.is_best:
        return _best(checkpoints, scan, folder)
    fits = [m for m in scan.good if _is_wanted((m.attempt, m.step), wanted)]
    wrong = [e for e in scan.bad if _is_wanted((e.attempt, e.step), wanted)]
    newest = max(fits, key=lambda m: (m.attempt, m.step), default=None)
    worst = max(wrong, key=lambda e: (e.attempt, e.step), default=None)
    if worst is not None and (
        newest is None or (worst.attempt, worst.step) > (newest.attempt, newest.step)
    ):
        raise WeightsError(f"{worst}; choose another checkpoint: {_listed(scan.good)}")
    if newest is not None and (wanted.step is not None or not scan.is_partial):
        return newest
    if scan.is_partial:
        raise WeightsError(f"{scan.unreachable}; choose another checkpoint: {_listed(scan.good)}")
    unsealed = [mark for mark in checkpoints.unsealed() if _is_wanted(mark, wanted)]
    if unsealed:
        attempt, step = max(unsealed)
        raise WeightsError(
            f"{folder}: the checkpoint of step {step}, attempt {attempt}, is not complete (it has"
            f" no manifest); choose another: {_listed(scan.good)}"
        )
    raise WeightsError(f"{folder} has no such checkpoint; there are: {_listed(scan.good)}")


def _best(checkpoints: Checkpoints, scan: Scan, folder: str) -> Manifest:
    if scan.is_partial:
        raise WeightsError(f"{scan.unreachable}; choose a checkpoint: {_listed(scan.good)}")
    found = checkpoints.best(scan.good)
    if found is None:
        raise WeightsError(
            f"--best: {folder} has no best checkpoint: its job has no spec.checkpoint.best, or no"
            f" validation has been saved yet; choose one with --step: {_listed(scan.good)}"
        )
    return found


def _is_wanted(mark: Mark, wanted: Wanted) -> bool:
    attempt, step = mark
    return wanted.attempt in (None, attempt) and wanted.step in (None, step)


def _listed(good: list[Manifest]) -> str:
    return ", ".join(f"step {m.step} (attempt {m.attempt})" for m in good) or "none"
