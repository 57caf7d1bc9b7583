"""The form of every file under benchmarks/results, and how it is written."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def machine() -> dict[str, Any]:
    """What the figures were measured on, as far as it matters."""
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
    """The commit that was measured; ``+`` if files that git knows, but results, were changed."""
    try:
        head = _git("describe", "--always", "--abbrev=12")
        changed = _git("status", "--porcelain", "-uno", "--", ":!benchmarks/results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def fingerprint(folders: Sequence[str]) -> str:
    """Hash of all files of these folders that git knows, as they are now."""
    names = _git("ls-files", "--", *folders).split("\n")
    digest = hashlib.sha256()
    for path in (RESULTS.parent.parent / name for name in names if name):
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()[:16]


def ratios(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Median and quartiles of first / second over interleaved pairs."""
    found = [a / b for a, b in pairs]
    low, middle, high = statistics.quantiles(found, n=4)
    return {"median": round(middle, 4), "p25": round(low, 4), "p75": round(high, 4)}


def _arguments() -> list[str]:
    """As they were typed: ``python -m`` has put a whole path in the place of the module."""
    program = Path(sys.argv[0])
    if program.name != "__main__.py":
        return sys.argv
    module = ".".join(program.parent.relative_to(RESULTS.parent.parent).parts)
    return ["-m", module, *sys.argv[1:]]


def write(
    name: str, *, samples: Mapping[str, Any], figures: Mapping[str, Any], note: str = ""
) -> Path:
    """Write ``results/<name>.json`` and return its path."""
    content = {
        "name": name,
        "commit": commit(),
        "command": " ".join([Path(sys.executable).name, *_arguments()]),
        "machine": machine(),
        "samples": dict(samples),
        "figures": dict(figures),
    }
    if note:
        content["note"] = note
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path
