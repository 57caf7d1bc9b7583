"""A job that begins with another job's checkpoint has the bits of one that ran from the start."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.agent.local.runs import Run, job

from bamboo_agent.local.operator import JOB_UID
from bamboo_agent.storage.checkpoint import Checkpoints
from bamboo_core.api import local_run
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import JobSpec, SourceSpec

pytestmark = [pytest.mark.timeout(600), pytest.mark.rotating(4)]


def kept(spec: JobSpec, every: int, source: SourceSpec | None = None) -> JobSpec:
    assert spec.checkpoint is not None
    checkpoint = replace(spec.checkpoint, every_steps=every, keep=2, from_=source)
    return replace(spec, checkpoint=checkpoint)


def files(folder: Path) -> dict[str, str]:
    """Path -> hash of all files below."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of 6 steps on one pipeline of two agents, with the checkpoints of steps 4 and 6."""
    folder = tmp_path_factory.mktemp("first")
    run = Run(kept(job(folder, pipelines=1, steps=6), 2), folder)
    assert run.to_end() == 0, run.ended
    return folder / "checkpoints"


def test_it_has_the_bits_of_a_job_from_the_start_and_leaves_the_other_files(
    first: Path, tmp_path: Path
) -> None:
    """On another grid, through a kill, with validation in other steps, and while it prunes."""
    before = files(first)
    source = SourceSpec(uri=f"{first.as_uri()}/{JOB_UID}/attempt-0000/step-00000004")
    spec = kept(job(tmp_path / "b", pipelines=3, stages=1, steps=8), 1, source)
    spec = replace(spec, training=replace(spec.training, validate_every=3))
    run = Run(spec, tmp_path / "b", "--check", "--kill", "1")
    assert run.to_end() == 0, run.ended
    assert {x.step for x in run.all_of(local_run.Step)} == {4, 5, 6, 7}
    assert len(run.all_of(local_run.Killed)) == 1
    assert [x.differs for x in run.all_of(local_run.Compared)] == [""]  # a plain loop of 8 steps
    assert files(first) == before
    own = tmp_path / "b" / "checkpoints" / JOB_UID / "attempt-0000"
    assert not (own / "step-00000004").exists()  # pruned: it was only a manifest
    whole = Run(job(tmp_path / "c", pipelines=1, stages=1), tmp_path / "c")
    assert whole.to_end() == 0, whole.ended
    assert run.ended.digest == whole.ended.digest


def test_the_newest_checkpoint_counts_where_none_is_named(first: Path, tmp_path: Path) -> None:
    source = SourceSpec(uri=f"{first.as_uri()}/{JOB_UID}")
    run = Run(kept(job(tmp_path, pipelines=1, stages=1, steps=8), 0, source), tmp_path)
    assert run.to_end() == 0, run.ended
    assert [x.step for x in run.all_of(local_run.Step)] == [6, 7]
    scan = Checkpoints((tmp_path / "checkpoints").as_uri(), JOB_UID).scan()
    assert [m.step for m in scan.good] == [6, 8]
    # and a third job can begin with what the second one only points to
    source = SourceSpec(uri=f"{(tmp_path / 'checkpoints').as_uri()}/{JOB_UID}", step=6)
    third = Run(kept(job(tmp_path / "d", pipelines=1, stages=1), 0, source), tmp_path / "d")
    assert third.to_end() == 0, third.ended
    assert third.ended.digest == run.ended.digest


def changed(spec: JobSpec, what: str) -> JobSpec:
    training = spec.training
    optimizer: dict[str, Any] = dict(training.optimizer.args)
    match what:
        case "optimizer":
            optimizer["lr"] = 0.5
            training = replace(training, optimizer=replace(training.optimizer, args=optimizer))
        case "batch":
            training = replace(training, global_batch_size=2 * training.global_batch_size)
        case "seed":
            return replace(spec, seed=spec.seed + 1)
        case "data":
            args = {**spec.data.args, "limit_bytes": 19_000}
            return replace(spec, data=replace(spec.data, args=args))
        case "steps":
            training = replace(training, steps=4)
    return replace(spec, training=training)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("optimizer", "spec.training.optimizer.args.lr is 0.5, was "),
        ("batch", "spec.training.globalBatchSize is 32, was 16"),
        ("seed", "spec.seed is "),
        ("data", "spec.data.args.limit_bytes is 19000, was 20000"),
        ("steps", "is of step 4, and spec.training.steps is 4: nothing is left to train: raise"),
    ],
)
def test_another_kind_of_job_is_refused_by_name(
    first: Path, tmp_path: Path, what: str, words: str
) -> None:
    source = SourceSpec(uri=f"{first.as_uri()}/{JOB_UID}", attempt=0, step=4)
    spec = changed(kept(job(tmp_path, pipelines=1, stages=1), 0, source), what)
    run = Run(spec, tmp_path)
    assert run.to_end() == 1
    assert run.ended.outcome is Outcome.FAILED
    assert run.ended.message.startswith("spec.checkpoint.from: ")
    assert words in run.ended.message
    assert not run.all_of(local_run.Fleet)


def test_a_checkpoint_that_is_not_there_is_refused_by_name(first: Path, tmp_path: Path) -> None:
    source = SourceSpec(uri=f"{first.as_uri()}/{JOB_UID}", attempt=0, step=5)
    run = Run(kept(job(tmp_path, pipelines=1, stages=1), 0, source), tmp_path)
    assert run.to_end() == 1
    assert "attempt-0000/step-00000005 has no manifest" in run.ended.message
    assert not run.all_of(local_run.Fleet)
