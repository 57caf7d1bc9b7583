"""A sample that cannot be read, or whose code ends its process, ends a real job with all that it
has computed in a checkpoint, from which a job with the repaired sample goes on to the same bits."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bamboo_agent.data.order import sample_indices
from bamboo_agent.datasets import text
from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import DataSpec, FactorySpec, JobSpec, RedundancyMode, SourceSpec
from bamboo_sim.fleet.local_fleet import ForkServerProcess, LocalFleet
from bamboo_sim.fleet.runs.jobs import tiny_gpt

pytestmark = pytest.mark.timeout(300)
STEPS, STEP, MICROBATCH, CODE = 9, 5, 3, 77
ZONES = {"a-0": "zone-a", "a-1": "zone-b", "a-2": "zone-a", "a-3": "zone-b"}


class Damaged:
    """The text, of which a file names the sample that cannot be read, as long as it is there.

    exits: its code ends the process then.
    """

    def __init__(self, windows: text.Windows, file: Path, *, exits: bool) -> None:
        self._windows, self._file, self._exits = windows, file, exits

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._file.is_file() and int(self._file.read_text()) == index:
            if self._exits:
                os._exit(CODE)
            raise ValueError(f"{index} is no text")
        return self._windows[index]


def damaged(*, file: str, context: int, limit_bytes: int, exits: bool = False) -> Damaged:
    return Damaged(text.build(context=context, limit_bytes=limit_bytes), Path(file), exits=exits)


def job(
    folder: Path, *, pipelines: int, mode: RedundancyMode, file: Path, exits: bool = False
) -> JobSpec:
    made = tiny_gpt(folder, pipelines=pipelines, stages=2, steps=STEPS, mode=mode)
    arguments = {**made.data.args, "file": str(file), "exits": exits}
    factory = FactorySpec(f"{__name__}:damaged", arguments)
    data = DataSpec(factory.factory, factory.args, made.data.validation)
    return replace(made, data=data)


def damage(file: Path, spec: JobSpec) -> int:
    """Damage a sample of the step. Its index."""
    training = spec.training
    found = sample_indices(
        seed=spec.seed,
        step=STEP,
        microbatch=MICROBATCH,
        microbatches=training.global_batch_size // training.micro_batch_size,
        size=training.micro_batch_size,
        samples=len(damaged(file=str(file), **spec_args(spec))),
    )
    file.write_text(str(found[-1]))
    return found[-1]


def spec_args(spec: JobSpec) -> dict[str, int]:
    return {name: spec.data.args[name] for name in ("context", "limit_bytes")}


@pytest.mark.parametrize(
    ("pipelines", "mode"), [(1, RedundancyMode.NONE), (2, RedundancyMode.REPLICA)]
)
async def test_no_step_is_lost(
    tmp_path: Path, forkserver: ForkServerProcess, pipelines: int, mode: RedundancyMode
) -> None:
    file = tmp_path / "damaged"
    first = job(tmp_path / "a", pipelines=pipelines, mode=mode, file=file)
    bad = damage(file, first)
    agents = dict(list(ZONES.items())[: 2 * pipelines])
    async with LocalFleet(first, tmp_path / "a/fleet", forkserver=forkserver) as fleet:
        await fleet.add(agents)
        over = await fleet.over(deadline_s=120.0)
        assert (over.outcome, over.reason) == (Outcome.FAILED, "UserCodeFailed"), fleet.record()
        assert f"step {STEP}" in over.message
        assert f"ValueError: {bad} is no text" in over.message
        assert over.message.endswith(
            f"; {STEP} committed steps in the checkpoint of step {STEP}:"
            " spec.checkpoint.from begins a job with it, and accept: [Code, Data] there, or one of"
            " them, takes what you have repaired"
        )
        assert not fleet.recorded(EventReason.RESTORING)
        assert fleet.divergences() == []
        folder = Path(first.checkpoint.uri.removeprefix("file://")) / "job-uid"
    file.unlink()
    second = job(tmp_path / "b", pipelines=3 - pipelines, mode=RedundancyMode.NONE, file=file)
    source = SourceSpec(uri=folder.as_uri())
    second = replace(second, checkpoint=replace(second.checkpoint, from_=source))
    async with LocalFleet(second, tmp_path / "b/fleet", forkserver=forkserver) as fleet:
        await fleet.add(dict(list(ZONES.items())[: 2 * (3 - pipelines)]))
        assert (await fleet.over(deadline_s=120.0)).outcome is Outcome.COMPLETE, fleet.record()
        found, committed = fleet.weights(), sorted(fleet.operator.commits)
    assert committed[0] == STEP, "what the first job has committed is not computed again"
    whole = job(tmp_path / "c", pipelines=1, mode=RedundancyMode.NONE, file=file)
    async with LocalFleet(whole, tmp_path / "c/fleet", forkserver=forkserver) as fleet:
        await fleet.add(dict(list(ZONES.items())[:2]))
        assert (await fleet.over(deadline_s=120.0)).outcome is Outcome.COMPLETE, fleet.record()
        expected = fleet.weights()
    assert not [name for name in expected if not torch.equal(found[name], expected[name])]


def broken(*, file: str) -> Callable[[int], float]:
    """A schedule that raises once the file is there."""

    def factor(step: int) -> float:
        if Path(file).is_file():
            raise ValueError("no factor")
        return 1.0

    return factor


async def test_a_schedule_that_raises_in_mid_job_loses_no_step(
    tmp_path: Path, forkserver: ForkServerProcess
) -> None:
    """All agents meet it at once, before anything of the step is changed."""
    file, mode = tmp_path / "broken", RedundancyMode.NONE
    spec = job(tmp_path / "a", pipelines=1, mode=mode, file=tmp_path / "none")
    schedule = FactorySpec(f"{__name__}:broken", {"file": str(file)})
    optimizer = replace(spec.training.optimizer, schedule=schedule)
    spec = replace(spec, training=replace(spec.training, optimizer=optimizer, steps=1000))
    async with LocalFleet(spec, tmp_path / "a/fleet", forkserver=forkserver) as fleet:
        await fleet.add(dict(list(ZONES.items())[:2]))
        await fleet.committed(STEP)
        file.touch()
        over = await fleet.over(deadline_s=120.0)
        assert (over.outcome, over.reason) == (Outcome.FAILED, "UserCodeFailed"), fleet.record()
        said = f"the function of {__name__}:broken raised ValueError: no factor for step "
        step = int(over.message.partition(said)[2].partition(";")[0])
        assert step >= STEP
        assert f"; {step} committed steps in the checkpoint of step {step}:" in over.message
        assert not fleet.recorded(EventReason.RESTORING)


@pytest.mark.parametrize("mode", [RedundancyMode.NONE, RedundancyMode.REPLICA])
async def test_code_that_ends_two_processes_at_one_place_ends_the_job(
    tmp_path: Path, forkserver: ForkServerProcess, mode: RedundancyMode
) -> None:
    """The layers go with the processes, but they are written before the second one ends. With
    copies, others hold them even then."""
    file, pipelines = tmp_path / "damaged", 2
    spec = job(tmp_path / "a", pipelines=pipelines, mode=mode, file=file, exits=True)
    bad = damage(file, spec)
    async with LocalFleet(spec, tmp_path / "a/fleet", forkserver=forkserver) as fleet:
        await fleet.add(ZONES)
        over = await fleet.over(deadline_s=120.0)
        assert (over.outcome, over.reason) == (Outcome.FAILED, "UserCodeFailed"), fleet.record()
        assert f"the worker ended with code {CODE}, in F[" in over.message
        assert f"m{MICROBATCH} @{STEP} reads sample {bad} of spec.data: " in over.message
        assert f"{STEP} committed steps in the checkpoint of step {STEP}" in over.message
        assert not fleet.recorded(EventReason.RESTORING)
