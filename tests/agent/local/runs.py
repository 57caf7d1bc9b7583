"""`bamboo_agent.local.main` as a program, for tests: a small job, and what the program tells."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from bamboo_core.api import local_run
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import CheckpointSpec, JobSpec, to_json
from bamboo_sim.fleet.runs.jobs import tiny_gpt

_T = TypeVar("_T")


def job(folder: Path, *, pipelines: int = 2, stages: int = 2, steps: int = 8) -> JobSpec:
    spec = tiny_gpt(folder, pipelines=pipelines, stages=stages, steps=steps, microbatches=8)
    return replace(spec, checkpoint=CheckpointSpec((folder / "checkpoints").as_uri()))


class Run:
    """The program, with what it tells."""

    def __init__(
        self, spec: JobSpec, folder: Path, *options: str, code: Path | None = None
    ) -> None:
        read, write = os.pipe()
        path = os.pathsep.join(filter(None, [str(code or ""), os.environ.get("PYTHONPATH", "")]))
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "bamboo_agent.local.main", "--name", "local/job"),
                *("--folder", str(folder), "--tell", str(write), *options),
            ],
            stdin=subprocess.PIPE,
            pass_fds=[write],
            env={**os.environ, "PYTHONPATH": path},
        )
        os.close(write)
        assert self.process.stdin is not None
        self.process.stdin.write(to_json(spec).encode())
        self.process.stdin.close()
        self._lines = os.fdopen(read, encoding="utf-8")
        self.told: list[local_run.Told] = []

    def __iter__(self) -> Iterator[local_run.Told]:
        for line in self._lines:
            self.told.append(local_run.from_line(line))
            yield self.told[-1]
        self._lines.close()

    def close(self) -> None:
        """Hear no more."""
        self._lines.close()

    def to_end(self) -> int:
        """Hear all; the exit code."""
        for _ in self:
            pass
        return self.process.wait()

    def all_of(self, kind: type[_T]) -> list[_T]:
        return [x for x in self.told if isinstance(x, kind)]

    @property
    def ended(self) -> local_run.Ended:
        (ended,) = self.all_of(local_run.Ended)
        return ended


def written(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "mine.py").write_text(textwrap.dedent(text))
    return folder


def check_grids(spec_of: Callable[[Path, int, int], JobSpec], folder: Path, code: Path) -> None:
    """One agent, and three pipelines of two that lose two agents, end with the bits of a plain
    loop. spec_of(folder, pipelines, stages): the job."""
    digests = set()
    for pipelines, stages, kills in ((1, 1, 0), (3, 2, 2)):
        own = folder / f"{pipelines}x{stages}"
        run = Run(spec_of(own, pipelines, stages), own, "--check", "--kill", str(kills), code=code)
        assert run.to_end() == 0, run.ended
        assert [x.differs for x in run.all_of(local_run.Compared)] == [""]
        assert len(run.all_of(local_run.Killed)) == kills
        digests.add(run.ended.digest)
    assert len(digests) == 1


def check_restore(spec: JobSpec, folder: Path, code: Path) -> None:
    """A job without copies goes on from its last checkpoint and ends with the bits of a plain
    loop."""
    run = Run(spec, folder, "--check", "--kill", "1", code=code)
    assert run.to_end() == 0, run.ended
    assert run.ended.outcome is Outcome.COMPLETE
    assert run.all_of(local_run.Killed)
    assert [x.differs for x in run.all_of(local_run.Compared)] == [""]
