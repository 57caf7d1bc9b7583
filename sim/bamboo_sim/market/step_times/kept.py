"""Computed times in files of the user's cache folder. A damaged file counts as absent."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import warnings
from collections.abc import Mapping
from functools import cache
from math import isfinite
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import bamboo_core
from bamboo_sim.timed import clock

Times = dict[str, float | None]
"""Milliseconds by name. None: there is no such time."""

_HERE = Path(__file__).parent
_CODE = (Path(bamboo_core.__file__).parent, Path(clock.__file__).parent, _HERE)
"""Whatever changes there, times are computed again: nobody has to know on what they depend."""


def folder() -> Path:
    """Where the files are, unless the caller names another place."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "bamboo" / "step-times"


def key(question: object) -> str:
    """The name of a file: a hash of the question, of the code that answers it, and of Python.

    The question counts by its ``repr``, in which frozen dataclasses have all their fields.
    """
    parts = (repr(question), _code(), platform.python_version())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


@cache
def _code() -> str:
    digest = hashlib.sha256()
    for part in _CODE:
        for path in sorted(part.rglob("*.py")):
            digest.update(f"{path.relative_to(part)}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


class Kept:
    """The times of one key. ``path``: of its file. Where the folder cannot be written, a warning
    says so once, and times are kept in memory alone."""

    def __init__(self, name: str, place: Path | None = None) -> None:
        self.path = (place or folder()) / f"{name}.json"
        self._times = _read(self.path)
        self._writes = True

    def __contains__(self, name: str) -> bool:
        return name in self._times

    def __getitem__(self, name: str) -> float | None:
        return self._times[name]

    def add(self, times: Mapping[str, float | None]) -> None:
        """Keep these times, too, beside those that others have written meanwhile."""
        self._times |= times
        if not times or not self._writes:
            return
        try:
            self._write()
        except OSError as error:
            self._writes = False
            text = f"step times are not kept: {self.path.parent}: {error.strerror}; set"
            warnings.warn(f"{text} XDG_CACHE_HOME to a folder that can be written.", stacklevel=2)

    def _write(self) -> None:
        place = self.path.parent
        place.mkdir(parents=True, exist_ok=True)
        with (place / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._times = _read(self.path) | self._times
            content = {"times": self._times, "sum": _sum(self._times)}
            with NamedTemporaryFile("w", dir=place, prefix=".new-", delete=False) as new:
                json.dump(content, new)
            Path(new.name).replace(self.path)


def _read(path: Path) -> Times:
    """The times of a file; none if it is absent or damaged."""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        times = found["times"]
        is_whole = found["sum"] == _sum(times) and all(map(_is_time, times.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return dict(times) if is_whole else {}


def _is_time(value: Any) -> bool:
    return value is None or (type(value) is float and isfinite(value) and value >= 0)


def _sum(times: Any) -> str:
    return hashlib.sha256(json.dumps(times, sort_keys=True).encode()).hexdigest()
