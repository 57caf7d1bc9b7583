"""Processes that read samples, in real jobs: they die at any time, and cost no agent and no bit."""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bamboo_agent.data.order import sample_indices
from bamboo_agent.datasets import text
from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import DataSpec, JobSpec, RedundancyMode
from bamboo_sim.fleet.local_fleet import ForkServerProcess, LocalFleet
from bamboo_sim.fleet.logs.sample_log import SampleLog
from bamboo_sim.fleet.runs.jobs import tiny_gpt

pytestmark = pytest.mark.timeout(300)
ZONES = {"a-0": "zone-a", "a-1": "zone-b", "a-2": "zone-a", "a-3": "zone-b"}
STEPS, STEP, MICROBATCH = 9, 5, 3


class Deadly:
    """The text. A file names a sample that ends the process which reads it."""

    def __init__(self, windows: text.Windows, file: Path) -> None:
        self._windows, self._file = windows, file

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._file.is_file() and int(self._file.read_text()) == index:
            os._exit(3)
        return self._windows[index]


def deadly(*, file: str, context: int, limit_bytes: int) -> Deadly:
    return Deadly(text.build(context=context, limit_bytes=limit_bytes), Path(file))


def job(folder: Path, *, workers: int, mode: RedundancyMode, steps: int = STEPS) -> JobSpec:
    made = tiny_gpt(folder, pipelines=2, stages=2, steps=steps, mode=mode)
    return replace(made, data=replace(made.data, workers=workers))


def children(pid: int) -> list[int]:
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def loaders(fleet: LocalFleet, agent: str) -> tuple[list[int], list[int]]:
    """Processes of an agent that fork, and that read."""
    forking = children(fleet.pods[agent].worker_pid)
    return forking, [pid for parent in forking for pid in children(parent)]


async def kill_loaders(fleet: LocalFleet, chance: random.Random) -> None:
    """Kill readers for as long as the job runs, and one of the processes that fork them: another
    one has to import torch, so an agent that loses it again and again would never read. For the
    same reason pauses grow: on a busy machine a reader takes longer to start."""
    left, longest_s = 1, 0.2
    while True:
        forking, reading = loaders(fleet, chance.choice(list(fleet.pods)))
        is_fork = bool(left and reading and chance.random() < 0.2)
        left -= is_fork
        for pid in forking[:1] if is_fork else reading[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(chance.uniform(0.0, longest_s))
        longest_s *= 1.02


def results(fleet: LocalFleet) -> tuple[dict[str, torch.Tensor], SampleLog]:
    return fleet.weights(), fleet.samples()


async def undisturbed(
    folder: Path, forkserver: ForkServerProcess, mode: RedundancyMode
) -> tuple[dict[str, torch.Tensor], SampleLog]:
    """The results of the same job without loaders."""
    spec = job(folder, workers=0, mode=mode)
    async with LocalFleet(spec, folder / "fleet", forkserver=forkserver) as fleet:
        await fleet.add(ZONES)
        assert (await fleet.over(deadline_s=120.0)).outcome is Outcome.COMPLETE, fleet.record()
        return results(fleet)


@pytest.mark.parametrize("mode", [RedundancyMode.NONE, RedundancyMode.REPLICA])
async def test_loaders_and_agents_are_killed_and_the_bits_are_equal(
    tmp_path: Path, forkserver: ForkServerProcess, mode: RedundancyMode
) -> None:
    spec = job(tmp_path / "a", workers=1, mode=mode)
    async with LocalFleet(spec, tmp_path / "a/fleet", forkserver=forkserver) as fleet:
        await fleet.add(ZONES)
        await fleet.planned(lambda plan: len(plan.live) == 4, "whole grid")
        assert all(loaders(fleet, agent)[1] for agent in ZONES)
        killer = asyncio.create_task(kill_loaders(fleet, random.Random(3)))
        await fleet.committed(2)
        ends = [os.pidfd_open(pid) for pids in loaders(fleet, "a-0") for pid in pids]
        fleet.kill_worker("a-0")
        over = await fleet.over(deadline_s=120.0)
        assert not killer.done()
        killer.cancel()
        assert over.outcome is Outcome.COMPLETE, fleet.record()
        for end in ends:  # of an agent that has been killed
            assert select.select([end], [], [], 60.0)[0]
            os.close(end)
        assert [agent for agent, code in fleet.exits.items() if code] == ["a-0"], fleet.exits
        assert not fleet.recorded(EventReason.RESTORING)
        assert fleet.divergences() == []
        weights, samples = results(fleet)
    expected, expected_samples = await undisturbed(tmp_path / "b", forkserver, mode)
    assert not [name for name in expected if not torch.equal(weights[name], expected[name])]
    assert samples == expected_samples
    assert len(samples) == STEPS * 24


async def test_a_sample_that_ends_the_loader_ends_the_job_as_one_that_raises(
    tmp_path: Path, forkserver: ForkServerProcess
) -> None:
    made, file = job(tmp_path, workers=1, mode=RedundancyMode.NONE), tmp_path / "deadly"
    args = {**made.data.args, "file": str(file)}
    data = DataSpec(f"{__name__}:deadly", args, made.data.validation, workers=1)
    spec = replace(made, data=data)
    bad = sample_indices(
        seed=spec.seed,
        step=STEP,
        microbatch=MICROBATCH,
        microbatches=24,
        size=2,
        samples=len(text.build(**made.data.args)),
    )[1]
    file.write_text(str(bad))
    async with LocalFleet(spec, tmp_path / "fleet", forkserver=forkserver) as fleet:
        await fleet.add(ZONES)
        over = await fleet.over(deadline_s=120.0)
        assert (over.outcome, over.reason) == (Outcome.FAILED, "UserCodeFailed"), fleet.record()
        assert (
            f"step {STEP}, micro-batch {MICROBATCH}: {data.factory}, sample {bad}: the data loader"
            " ended with exit code 3 while it read this sample, and did so again"
        ) in over.message
        assert f"; {STEP} committed steps in the checkpoint of step {STEP}" in over.message
        assert not fleet.recorded(EventReason.RESTORING)
