"""`bamboo train --local` with checkpoints in a bucket: a kill and a restore change no bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.local.runs import Run, job

from bamboo_agent.local.operator import JOB_UID
from bamboo_agent.storage.checkpoint import Checkpoints
from bamboo_core.api import local_run
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import CheckpointSpec, RedundancySpec, SourceSpec

pytestmark = pytest.mark.timeout(600)


def test_a_run_through_a_kill_and_a_restore_has_the_bits_of_one_with_a_folder(
    bucket: str, tmp_path: Path
) -> None:
    plain = Run(job(tmp_path / "plain", pipelines=1, stages=1), tmp_path / "plain")
    assert plain.to_end() == 0, plain.ended
    spec = replace(
        job(tmp_path, pipelines=1),
        redundancy=RedundancySpec(),  # nobody else has the lost layers
        checkpoint=CheckpointSpec(f"{bucket}/jobs", every_steps=2),
    )
    run = Run(spec, tmp_path / "bucket", "--kill", "1")
    assert run.to_end() == 0, run.ended
    assert len(run.all_of(local_run.Killed)) == 1
    assert run.ended.digest == plain.ended.digest
    assert run.ended.checkpoint.startswith(f"{bucket}/jobs/{JOB_UID}/attempt-")
    manifests = Checkpoints(f"{bucket}/jobs", JOB_UID).scan().good
    assert manifests[-1].attempt >= 1  # the restore


def test_a_run_in_a_folder_begins_with_a_checkpoint_in_a_bucket(
    bucket: str, tmp_path: Path
) -> None:
    """Through a kill, after which the layers are read from the bucket again."""
    first = job(tmp_path, pipelines=1, stages=1, steps=4)
    first = replace(first, checkpoint=CheckpointSpec(f"{bucket}/jobs"))
    run = Run(first, tmp_path / "first")
    assert run.to_end() == 0, run.ended
    source = SourceSpec(uri=f"{bucket}/jobs/{JOB_UID}")
    spec = job(tmp_path / "second", pipelines=1)
    spec = replace(
        spec,
        redundancy=RedundancySpec(),  # nobody else has the lost layers
        checkpoint=CheckpointSpec((tmp_path / "second" / "checkpoints").as_uri(), from_=source),
    )
    second = Run(spec, tmp_path / "second", "--check", "--kill", "1")
    assert second.to_end() == 0, second.ended
    assert min(x.step for x in second.all_of(local_run.Step)) == 4
    assert [x.differs for x in second.all_of(local_run.Compared)] == [""]


def test_a_bucket_that_is_not_there_ends_the_run_with_the_remedy(
    bucket: str, tmp_path: Path
) -> None:
    spec = replace(job(tmp_path, pipelines=1), checkpoint=CheckpointSpec("s3://no-such-bucket/p"))
    run = Run(spec, tmp_path)
    assert run.to_end() == 1
    assert run.ended.outcome is Outcome.FAILED
    assert "s3://no-such-bucket/p cannot be written" in run.ended.message
    assert "NoSuchBucket: The specified bucket does not exist: create the bucket" in (
        run.ended.message
    )
