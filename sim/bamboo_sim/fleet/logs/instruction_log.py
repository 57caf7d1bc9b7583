"""The instructions that a worker ran, read from its event log while the log grows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from bamboo_core.model.program import parse_instruction

_ENDED = re.compile(r"ended CommitRecord\(step=(\d+)")


class InstructionLog:
    """One worker's instructions by step; :meth:`read` reads new lines."""

    def __init__(self, path: Path) -> None:
        self.ended = -1
        """The last step that ended on the worker, whose instructions are complete."""
        self.commits: dict[int, str] = {}
        """Commit records of ended steps as text."""
        self._path, self._at = path, 0
        self._steps: dict[int, dict[str, None]] = {}

    def read(self) -> InstructionLog:
        """Read complete lines only, since the worker may be writing one."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._at)
                lines, end, _ = file.read().rpartition(b"\n")
            self._at += len(lines) + len(end)
            for line in lines.splitlines():
                self._take(json.loads(line).get("effects", ()))
        return self

    def of(self, step: int) -> list[str]:
        """Its instructions of a step, in order, without the step."""
        return list(self._steps.get(step, ()))

    def _take(self, effects: Iterable[str]) -> None:
        for effect in effects:
            if effect.startswith("run "):
                text = effect.removeprefix("run ")
                step = parse_instruction(text).step
                self._steps.setdefault(step, {})[text.removesuffix(f" @{step}")] = None
            elif found := _ENDED.match(effect):
                self.ended = max(self.ended, int(found[1]))
                self.commits[int(found[1])] = effect.removeprefix("ended ")
