"""Steps that workers committed, as logs in a folder: one file for each start of a worker."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Commit:
    """A worker ended a step. ``done`` is False if it threw the step away instead."""

    at: float  # time.monotonic(), the same clock in all processes of a machine
    step: int
    worker: str
    samples: int = 0  # that the step used, on all workers together
    attempt: int = 0  # starts of the whole job before this one
    pid: int = 0
    done: bool = True


class CommitLog:
    """Written by one worker, a line for each step."""

    def __init__(self, folder: Path, worker: str, attempt: int = 0) -> None:
        self._worker, self._attempt, self._pid = worker, attempt, os.getpid()
        name = folder / f"{worker}-{self._pid}.jsonl"
        self._file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, step: int, samples: int, *, done: bool = True) -> None:
        """The worker has just ended a step."""
        now = time.monotonic()
        line = Commit(now, step, self._worker, samples, self._attempt, self._pid, done)
        os.write(self._file, (json.dumps(asdict(line)) + "\n").encode())


class CommitReader:
    """Reads all logs of a folder while they grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._at: dict[Path, int] = {}
        self.commits: list[Commit] = []

    def read(self) -> list[Commit]:
        """All whole lines so far."""
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._at.get(path, 0))
                lines, end, _ = file.read().rpartition(b"\n")
            self._at[path] = self._at.get(path, 0) + len(lines) + len(end)
            self.commits += [Commit(**json.loads(line)) for line in lines.splitlines()]
        return self.commits
