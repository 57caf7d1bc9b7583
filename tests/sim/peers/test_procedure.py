"""The order of events around one loss, with a fleet that only pretends to train."""

from __future__ import annotations

import asyncio
import math
import random
import time

import pytest
from benchmarks.peers import procedure, workload
from benchmarks.peers.commits import Commit
from benchmarks.peers.variants import Newcomer

STEP_S = 0.01


class PretendedFleet:
    """Commits a step each 10 ms, but for a pause of 0.1 s after a loss."""

    def __init__(self, *, recovers: bool = True) -> None:
        self.did: list[str] = []
        self.started = asyncio.Event()
        self._recovers, self._since, self._replaced = recovers, math.inf, math.inf

    async def start(self) -> None:
        self._started = time.monotonic()
        self.did.append("start")
        self.started.set()

    async def close(self) -> None:
        self.did.append("close")

    def commits(self) -> list[Commit]:
        steps = range(int((time.monotonic() - self._started) / STEP_S))
        ends = [(step, self._started + (step + 1) * STEP_S) for step in steps]
        pause = self._since + (0.1 if self._recovers else math.inf)
        return [Commit(at, step, "a") for step, at in ends if not self._since < at < pause]

    def counted(self) -> list[Commit]:
        return [
            Commit(c.at, c.step, c.worker, workload.BATCH - (4 if c.at > self._since else 0))
            for c in self.commits()
        ]

    def is_full(self) -> bool:
        return len(self.commits()) > 2

    def workers(self) -> list[str]:
        return ["a", "b"]

    def kill(self, worker: str) -> float:
        self.did.append("kill")
        self._since = time.monotonic()
        return self._since

    async def replace(self, worker: str) -> None:
        assert worker in self.workers()
        self.did.append("replace")
        self._replaced = time.monotonic()

    def survived_at(self) -> float:
        return min((c.at for c in self.commits() if c.at > self._since), default=math.inf)

    def full_at(self) -> float:
        later = (c.at for c in self.commits() if c.at > max(self._since, self._replaced))
        return min(later, default=math.inf)

    def record(self) -> str:
        return "what was logged"


async def test_a_newcomer_after_the_pause() -> None:
    fleet = PretendedFleet()
    found = await procedure.one_kill(fleet, Newcomer.AFTER, random.Random(1))
    assert fleet.did == ["start", "kill", "replace", "close"]
    assert 0.07 < found.delay_s < 0.13
    assert found.joining_s == pytest.approx(0.0, abs=1e-6)
    assert found.skipped_samples >= 4 * procedure.AFTER


async def test_a_newcomer_with_the_loss() -> None:
    fleet = PretendedFleet()
    found = await procedure.one_kill(fleet, Newcomer.AT_ONCE, random.Random(1))
    assert fleet.did == ["start", "kill", "replace", "close"]
    assert (found.joining_s, 0.07 < found.delay_s < 0.13) == (None, True)


async def test_a_job_that_does_not_recover_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procedure, "RECOVERY_S", 0.2)
    fleet = PretendedFleet(recovers=False)
    with pytest.raises(TimeoutError, match=r"not within 0.2 s\nwhat was logged"):
        await procedure.one_kill(fleet, Newcomer.AT_ONCE, random.Random(1))
    assert fleet.did[-1] == "close"


async def test_an_interrupted_run_leaves_no_process() -> None:
    fleet = PretendedFleet()
    task = asyncio.create_task(procedure.one_kill(fleet, Newcomer.AFTER, random.Random(1)))
    await fleet.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert fleet.did == ["start", "close"]
