"""SIGKILL at exact instructions of real processes: not one bit of any step may change.

Every instruction before it runs, after it has run, and after its results have been sent. A few
points in each run of the tests, other ones for each commit; all with BAMBOO_KILL_POINTS=all.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.fleet.campaign import Campaign, Point
from tests.fleet.doom import MOMENTS
from tests.fleet.jobs import tiny_gpt
from tests.fleet.local import LocalFleet, NurseryProcess

from bamboo_core.arbitration import Happening
from bamboo_core.spec import JobSpec, RedundancyMode
from bamboo_core.view import Outcome

ENDLESS = 1_000_000
ALL = os.environ.get("BAMBOO_KILL_POINTS", "") == "all"
pytestmark = pytest.mark.timeout(0 if ALL else 400)


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NurseryProcess]:
    process = NurseryProcess(tmp_path_factory.mktemp("nursery") / "socket")
    process.start()
    yield process
    process.stop()


def chosen(points: Sequence[tuple[Point, ...]], count: int) -> Sequence[tuple[Point, ...]]:
    """A sample that is the same for the same commit, or for $BAMBOO_KILL_SEED."""
    command = ["git", "rev-parse", "HEAD"]
    head = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    seed = os.environ.get("BAMBOO_KILL_SEED", head)
    return points if ALL else random.Random(seed).sample(points, count)


def agents(pipelines: int, stages: int) -> dict[str, str]:
    """Enough in each of three zones."""
    numbers = range(pipelines * stages)
    return {f"agent-{n}": f"zone-{'abc'[n % 3]}" for n in numbers}


async def survive(
    folder: Path, nursery: NurseryProcess, job: JobSpec, strikes: Sequence[tuple[Point, ...]]
) -> None:
    """Train through all strikes, then compare with a job of as many steps without any."""
    grid = job.pipelines
    names = agents(grid.count, grid.stages)
    endless = replace(job, training=replace(job.training, steps=ENDLESS))
    async with LocalFleet(endless, folder / "struck", nursery=nursery) as fleet:
        await fleet.add(names)
        campaign = Campaign(fleet)
        struck = [await campaign.strike(*points) for points in strikes]
        over = await fleet.suspended()
        assert over.outcome is Outcome.SUSPENDED, fleet.story()
        assert not fleet.recorded(Happening.RESTORING), fleet.story()
        steps, history, weights = fleet.steps, fleet.history(), fleet.weights()
        assert fleet.divergences() == []
    assert job.checkpoint is not None
    checkpoints = replace(job.checkpoint, uri=f"file://{folder / 'quiet-checkpoints'}")
    quiet = replace(job, training=replace(job.training, steps=steps), checkpoint=checkpoints)
    async with LocalFleet(quiet, folder / "quiet", nursery=nursery) as fleet:
        await fleet.add(names)
        await fleet.over(deadline_s=120.0)
        pairs = zip(fleet.history(), history, strict=True)
        assert [pair for pair in pairs if repr(pair[0]) != repr(pair[1])] == [], struck
        undisturbed = fleet.weights()
    assert weights.keys() == undisturbed.keys()
    assert [name for name in weights if not torch.equal(weights[name], undisturbed[name])] == []


async def test_one_pipeline_with_replicas(tmp_path: Path, nursery: NurseryProcess) -> None:
    job = tiny_gpt(
        tmp_path, pipelines=1, stages=4, most=1, mode=RedundancyMode.REPLICA, microbatches=8
    )
    points = [(Point(0, s, m, n),) for s in range(4) for m in MOMENTS for n in range(29)]
    await survive(tmp_path, nursery, job, chosen(points, 5))


async def test_two_pipelines_while_they_commit(tmp_path: Path, nursery: NurseryProcess) -> None:
    job = tiny_gpt(tmp_path, pipelines=2, stages=3, microbatches=8)
    points = [
        (Point(d, s, m, n),)
        for d in range(2)
        for s in range(3)
        for m in MOMENTS
        for n in range(-7, 0)
    ]
    await survive(tmp_path, nursery, job, chosen(points, 4))


async def test_two_deaths_in_one_step(tmp_path: Path, nursery: NurseryProcess) -> None:
    job = tiny_gpt(tmp_path, pipelines=2, stages=3, microbatches=8)
    points = [
        (Point(0, s, m, n), Point(1, (s + shift) % 3, other, k))
        for s in range(3)
        for shift in (1, 2)
        for m in MOMENTS
        for other in MOMENTS
        for n in range(0, 20, 3)
        for k in range(0, 20, 3)
    ]
    await survive(tmp_path, nursery, job, chosen(points, 3))
