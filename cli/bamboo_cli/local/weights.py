"""Moves weights with the program that holds torch, and finds the checkpoints that are meant."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bamboo_cli.errors import CommandError
from bamboo_cli.local.program import Teller
from bamboo_core.api import local_run
from bamboo_core.api.spec import JobSpec, from_json
from bamboo_core.validation.pod_rules import PodRules
from bamboo_core.validation.reading import from_manifest

JOB_FILE = "job.json"
"""The job of a run on this machine, in the run's folder."""
_PROGRAM = (sys.executable, "-m", "bamboo_agent.weights.main")


@dataclass(frozen=True)
class Source:
    """Checkpoints. spec: of their job; None: it is not known."""

    address: str
    spec: JobSpec | None = None
    step: int | None = None
    attempt: int | None = None


def of_path(path: Path) -> Source:
    """A folder on this machine. CommandError if its job cannot be read."""
    file = path / JOB_FILE
    try:
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        return Source(str(path.resolve()), from_json(text) if text else None)
    except (OSError, ValueError) as error:
        raise CommandError(f"{file} cannot be read: {error}; remove it, or give -f.") from error


def of_job(manifest: Mapping[str, Any]) -> Source:
    """The newest checkpoint of a job in the cluster. CommandError if this machine does not have
    its files."""
    name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
    spec = from_manifest(manifest, rules=PodRules(trusted=True), is_started=True)
    if isinstance(spec, list):
        raise CommandError(f"the spec of {name} is wrong: {'; '.join(map(str, spec))}.")
    if spec.checkpoint is None:
        raise CommandError(f"{name} has no spec.checkpoint, so its weights are nowhere.")
    address = f"{spec.checkpoint.uri.rstrip('/')}/{manifest['metadata']['uid']}"
    parts = urlsplit(address)
    if parts.scheme == "file" and not Path(parts.path).exists():
        raise CommandError(
            f"the checkpoints of {name} are in {address}, which is not on this machine: run this in"
            f" a pod that mounts it, or copy it with `kubectl cp -n {namespace}"
            f" POD:{parts.path} FOLDER` and give FOLDER instead of {name}."
        )
    newest = (manifest.get("status") or {}).get("lastCheckpoint") or {}
    attempt, _, step = str(newest.get("path", "")).rpartition("/")
    attempt = attempt.rpartition("attempt-")[2]
    if not (attempt.isdecimal() and step.startswith("step-")):
        return Source(address, spec)
    return Source(address, spec, int(step.removeprefix("step-")), int(attempt))


def move(
    what: str,
    arguments: Sequence[str],
    spec: JobSpec | None,
    on_moved: Callable[[local_run.Moved], None],
    *,
    program: Sequence[str] = _PROGRAM,
) -> local_run.Written:
    """Export or import weights. CommandError says why nothing is written, ProgramError that the
    program failed."""
    log = Path(tempfile.mkdtemp(prefix="bamboo-")) / f"{what}.log"
    teller = Teller([*program, what, *arguments], spec, log, f"bamboo {what}")
    written: local_run.Written | None = None
    for told in teller.told():
        match told:
            case local_run.Moved():
                on_moved(told)
            case local_run.Refused(message):
                raise CommandError(message if message.endswith(".") else f"{message}.")
            case local_run.Written():
                written = told
    assert written is not None
    log.unlink()
    log.parent.rmdir()
    return written
