"""torchrun and torchft, seen through their workers' logs of commits."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from . import workload
from .commits import Commit, CommitReader
from .processes import Program
from .variants import Variant

GROUP_S = {True: 1.0, False: 5.0}
"""Time-out of torchft's process group: the shortest that works; that of torchft's example."""
JOIN_MS = {True: 500, False: 60_000}
"""How long torchft's lighthouse waits for healthy replicas: the shortest; the default."""
HEARTBEAT_MS = 5_000
"""After which silence the lighthouse takes a replica for dead: the default. With the short JOIN_MS
nobody waits for it."""


class LoggedFleet:
    """What both have in common. See :class:`peers.procedure.Fleet`."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        (folder / "commits").mkdir(parents=True)
        self.programs: list[Program] = []
        self.killed_at = math.inf
        self._reader = CommitReader(folder / "commits")

    async def close(self) -> None:
        for program in reversed(self.programs):
            await asyncio.to_thread(program.end)

    def commits(self) -> list[Commit]:
        if any(program.has_ended() for program in self.programs):
            raise RuntimeError(f"a program has ended\n{self.record()}")
        return self._reader.read()

    def counted(self) -> list[Commit]:
        """The samples of a step are the most that a worker reports: one that heals knows less."""
        most: dict[int, int] = {}
        for commit in self._reader.commits:
            if commit.done:
                most[commit.step] = max(commit.samples, most.get(commit.step, 0))
        return [replace(c, samples=most.get(c.step, c.samples)) for c in self._reader.commits]

    def workers(self) -> list[str]:
        newest = max(c.step for c in self._reader.commits)
        return sorted({c.worker for c in self._reader.commits if c.step >= newest - 1})

    def kill(self, worker: str) -> float:
        pid = next(c.pid for c in reversed(self._reader.commits) if c.worker == worker)
        self.killed_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        return self.killed_at

    def record(self) -> str:
        return "\n".join(f"--- {x.log.name}\n{x.tail()}" for x in self.programs)

    def _after(self) -> list[Commit]:
        """Steps after the loss."""
        return [c for c in self.commits() if c.done and c.at > self.killed_at]

    def _take_part(self) -> bool:
        """Whether all workers have committed one of the newest two steps."""
        commits = self.commits()
        newest = max((c.step for c in commits), default=0)
        return len({c.worker for c in commits if c.step >= newest - 1}) == self.count


class TorchrunFleet(LoggedFleet):
    """One launcher with all workers; it restarts all of them when one ends."""

    def __init__(self, folder: Path, variant: Variant, count: int = workload.WORKERS) -> None:
        super().__init__(folder, count)
        self._mode = "forked" if variant.forked else "standard"

    async def start(self) -> None:
        arguments = [self._mode, str(os.getpid()), str(self.folder), str(self.count)]
        command = [sys.executable, "-m", "peers.torchrun_host", *arguments]
        self.programs.append(Program(command, self.folder / "torchrun.log"))

    def is_full(self) -> bool:
        return self._take_part()

    async def replace(self, worker: str) -> None:
        raise AssertionError(f"torchrun itself replaces {worker}")

    def survived_at(self) -> float:
        return self.full_at()

    def full_at(self) -> float:
        return min((c.at for c in self._after() if c.attempt), default=math.inf)


class TorchftFleet(LoggedFleet):
    """Replicas of one process each, and a lighthouse."""

    def __init__(
        self, folder: Path, variant: Variant, python: Path, count: int = workload.WORKERS
    ) -> None:
        super().__init__(folder, count)
        self._batch = count * workload.SHARE
        self._tuned, self._host = variant.tuned, [str(python), "-m", "peers.torchft_host"]
        self._pids = frozenset[int]()

    async def start(self) -> None:
        parent, tuned = str(os.getpid()), self._tuned
        limits = [str(JOIN_MS[tuned]), str(HEARTBEAT_MS)]
        lighthouse = self._program("lighthouse", [*self._host, "lighthouse", parent, *limits])
        arguments = [parent, str(self.folder), str(GROUP_S[tuned])]
        replicas = self._program("replicas", [*self._host, "replicas", *arguments])
        replicas.tell(await asyncio.to_thread(lighthouse.line))
        await asyncio.to_thread(replicas.line)
        for number in range(self.count):
            replicas.tell(str(number))

    def _program(self, name: str, command: list[str]) -> Program:
        program = Program(command, self.folder / f"{name}.log", talks=True)
        self.programs.append(program)
        return program

    def is_full(self) -> bool:
        newest = max(self.commits(), key=lambda c: (c.step, c.at), default=None)
        return newest is not None and newest.samples == self._batch and self._take_part()

    def kill(self, worker: str) -> float:
        self._pids = frozenset(c.pid for c in self._reader.commits)
        return super().kill(worker)

    async def replace(self, worker: str) -> None:
        self.programs[-1].tell(worker.removeprefix("replica-"))

    def survived_at(self) -> float:
        fewer = (c.at for c in self._after() if c.samples < self._batch)
        return min(fewer, default=math.inf)

    def full_at(self) -> float:
        """The newcomer's first commit with all samples; while it heals it has no part."""
        own = (c.at for c in self._after() if c.pid not in self._pids)
        joined = min(own, default=math.inf)
        full = (c.at for c in self._after() if c.samples == self._batch and c.at >= joined)
        return min(full, default=math.inf)
