"""Measures what the layers of a job cost on this machine, in a process that holds torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bamboo_cli.errors import CommandError, ProgramError
from bamboo_core.api.spec import JobSpec, to_json
from bamboo_core.protection import profile_file
from bamboo_core.protection.profile_file import Profile

_PROGRAM = ("-m", "bamboo_agent.worker.profile_job")
_TIMEOUT_S = 1800.0


def measure(
    spec: JobSpec,
    out: Path,
    *,
    program: Sequence[str] = (sys.executable, *_PROGRAM),
    timeout_s: float = _TIMEOUT_S,
) -> Profile:
    """Profile the job into the file ``out``. ProgramError says why it is impossible, CommandError
    that the file cannot be written."""
    if out.is_dir() or not out.parent.is_dir():  # measuring takes long
        raise CommandError(f"--out {out} cannot be written; give a file in a folder that exists.")
    with TemporaryDirectory() as folder:  # in ``out`` there may be an earlier profile
        made = Path(folder) / "profile.json"
        _run([*program, "--out", str(made)], spec, timeout_s)
        if not made.exists():
            raise ProgramError(
                "the layers cannot be measured: it ended without a result; does the code of"
                " spec.model or spec.data call exit()?"
            )
        profile = read_profile(made)
        try:
            out.write_bytes(made.read_bytes())
        except OSError as error:
            raise CommandError(f"--out {out} cannot be written: {error.strerror}.") from error
    return profile


def _run(command: Sequence[str], spec: JobSpec, timeout_s: float) -> None:
    """With the spec on its standard input. ProgramError if it fails."""
    try:
        done = subprocess.run(
            command, input=to_json(spec), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
            text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ProgramError(
            f"the layers were not measured within {timeout_s:g} s; give --timeout more seconds."
        ) from error
    except OSError as error:
        raise ProgramError(f"cannot run {command[0]}: {error}.") from error
    if done.returncode:
        raise ProgramError(_why(done.stderr, spec))


def _why(errors: str, spec: JobSpec) -> str:
    line = next(reversed(errors.strip().splitlines()), "no output")
    if "No module named 'torch'" in line or "No module named bamboo_agent" in line:
        return (
            f"layers are measured with torch, which is missing here ({line}); install"
            " bamboo-train[agent], or use the image of the agents."
        )
    remedy = remedy_of_name(line, spec)
    return f"the layers cannot be measured: {line}{remedy}{'.' if remedy else ''}"


def remedy_of_name(line: str, spec: JobSpec) -> str:
    """How to correct the name of a factory, to follow an error about it; empty: it is of something
    else."""
    fields = [field for field, factory in _factories(spec) if _is_named(factory, line)]
    if not fields:
        return ""
    text = f"; correct {' or '.join(fields)}"
    if line.startswith("cannot import"):
        text += ", install what is missing on this machine, or name its folder in PYTHONPATH"
    return text


def _factories(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Field and value."""
    yield "spec.model.factory", spec.model.factory
    yield "spec.data.factory", spec.data.factory
    if spec.data.validation is not None:
        yield "spec.data.validation.factory", spec.data.validation.factory
    yield "spec.training.optimizer.factory", spec.training.optimizer.factory


def _is_named(factory: str, line: str) -> bool:
    """The line is about the name of this factory, or of its module."""
    return any(repr(name) in line for name in (factory, factory.partition(":")[0]))


def read_profile(path: Path) -> Profile:
    """A file of :func:`measure`. CommandError names what is wrong with it."""
    try:
        return profile_file.from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}.") from error
    except ValueError as error:  # also what is not UTF-8
        raise CommandError(
            f"{path} is not a file of `bamboo profile`: {error}; run `bamboo profile` again."
        ) from error


def check(profile: Profile, spec: JobSpec, path: Path) -> None:
    """CommandError if it is a profile of another model or micro-batch."""
    wanted = {
        "spec.model.factory": (spec.model.factory, profile.model.factory),
        "spec.model.args": (spec.model.args, profile.model.args),
        "spec.training.microBatchSize": (spec.training.micro_batch_size, profile.micro_batch_size),
    }
    for field, (given, measured) in wanted.items():
        if given != measured:
            raise CommandError(
                f"{path} was measured with {field} {measured!r}, and the job has {given!r};"
                " run `bamboo profile` again."
            )
