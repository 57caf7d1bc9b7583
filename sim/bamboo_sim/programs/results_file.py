"""Writes the files under benchmarks/results, and the progress files of runs that can be resumed.

A result is a summary of at most 300 lines. Details that only a resumed run needs go to a progress
file in the user's cache directory.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = next(
    folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").is_file()
)
"""The checkout."""
RESULTS = ROOT / "benchmarks" / "results"
PROGRESS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bamboo" / "progress"
_WIDTH = 160


def machine() -> dict[str, Any]:
    """The hardware and the load under which the figures were measured."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def commit() -> str:
    """The measured commit; ``+`` marks uncommitted changes outside the results."""
    try:
        head = _git("describe", "--always", "--abbrev=12")
        changed = _git("status", "--porcelain", "-uno", "--", ":!benchmarks/results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def fingerprint(paths: Sequence[str]) -> str:
    """Hash of the current contents of all tracked files that match these git pathspecs. ValueError
    if one of them matches no file: it would no longer tell one state of the code from another."""
    try:
        names = _git("ls-files", "--error-unmatch", "--", *paths).split("\n")
    except subprocess.CalledProcessError as error:
        if error.returncode != 1:
            raise
        raise ValueError(f"git knows no file by one of the names {' '.join(paths)}") from error
    digest = hashlib.sha256()
    for path in (ROOT / name for name in names if name):
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()[:16]


def ratios(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Median and quartiles of first / second over interleaved pairs."""
    low, middle, high = statistics.quantiles([a / b for a, b in pairs], n=4)
    return {"median": round(middle, 4), "p25": round(low, 4), "p75": round(high, 4)}


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Samples as one array for each key; None where a sample lacks the key."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: [row.get(key) for row in rows] for key in keys}


def dumps(value: Any, indent: int = 0) -> str:
    """JSON in few lines: short values and arrays of plain values take one line each."""
    line = json.dumps(value, ensure_ascii=False)
    is_plain = not isinstance(value, dict | list | tuple) or (
        not isinstance(value, dict) and not any(isinstance(x, dict | list | tuple) for x in value)
    )
    if is_plain or (indent and indent + len(line) <= _WIDTH):
        return line
    if isinstance(value, dict):
        parts = [f"{json.dumps(str(k))}: {dumps(v, indent + 1)}" for k, v in value.items()]
    else:
        parts = [dumps(x, indent + 1) for x in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    inner, outer = "\n" + " " * (indent + 1), "\n" + " " * indent
    return begin + inner + ("," + inner).join(parts) + outer + end


def _command() -> str:
    """The command line as the user typed it, with ``-m MODULE`` for a module. Of files that are
    elsewhere on this machine it has the names only."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = ["-m", spec.name.removesuffix(".__main__")] if spec else sys.argv[:1]
    given = [Path(x).name if Path(x).is_absolute() else x for x in sys.argv[1:]]
    return shlex.join([Path(sys.executable).name, *program, *given])


def write(
    name: str, *, samples: Mapping[str, Any], figures: Mapping[str, Any], note: str = ""
) -> Path:
    """Write ``results/<name>.json`` and return its path."""
    content = {
        "name": name,
        "commit": commit(),
        "command": _command(),
        "machine": machine(),
        "samples": dict(samples),
        "figures": dict(figures),
    }
    if note:
        content["note"] = note
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(dumps(content) + "\n", encoding="utf-8")
    return path


def read(name: str) -> dict[str, Any]:
    """The contents of ``results/<name>.json``."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def load_progress(name: str, code: str) -> dict[str, Any] | None:
    """The state that an earlier run of the same code saved, if any. code: from `fingerprint`."""
    path = PROGRESS / f"{name}-{code}.json"
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


def save_progress(name: str, code: str, content: Mapping[str, Any]) -> None:
    """Save the state of a run, so that a later run of the same code can resume it."""
    PROGRESS.mkdir(parents=True, exist_ok=True)
    path = PROGRESS / f"{name}-{code}.json"
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(content), encoding="utf-8")
    new.replace(path)
