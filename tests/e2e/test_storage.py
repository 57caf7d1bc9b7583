"""A checkpoint folder that cannot be written: what the user sees, and when."""

from __future__ import annotations

from pathlib import Path

import pytest

from bamboo_cli.job.state import ConditionLine, Job

from .jobs import User, eventually, tiny_job

pytestmark = [pytest.mark.timeout(120), pytest.mark.rotating(2)]


def checkpointed(job: Job) -> ConditionLine:
    line = job.condition("Checkpointed")
    assert line is not None
    return line


def test_a_job_that_cannot_save_does_not_train(user: User, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    uri = f"file://{tmp_path}/file"
    user.apply(tiny_job("doomed", checkpoint={"uri": uri}))
    job = user.until_ended("doomed")
    line = job.condition("Failed")
    assert line is not None
    assert (job.ended, line.reason, job.step) == ("Failed", "CheckpointFailed", 0)
    assert line.message.startswith(f"spec.checkpoint.uri {uri} cannot be written: agent doomed-p0-")
    assert "failed: Not a directory: nothing could be saved; mount a folder" in line.message


def test_a_folder_that_fails_during_the_job_is_reported_once(user: User, tmp_path: Path) -> None:
    folder, aside = tmp_path / "folder", tmp_path / "aside"
    checkpoint = {"uri": f"file://{folder}", "everySteps": 4}
    user.apply(tiny_job("hitch", training={"steps": 100000}, checkpoint=checkpoint))
    user.until("hitch", lambda job: job.has("Checkpointed"))
    folder.rename(aside)
    folder.write_text("in the way")
    job = user.until("hitch", lambda job: checkpointed(job).reason == "WriteFailed")
    text = checkpointed(job).message
    assert text.startswith(
        f"spec.checkpoint.uri file://{folder} cannot be written: agent hitch-p0-"
    )
    assert "failed: Not a directory; the newest complete one is step " in text
    user.until("hitch", lambda later: later.step >= job.step + 12)
    events = [e for e in user.get("events") if e["reason"] == "CheckpointBad"]
    assert sum(event["count"] for event in events) <= 2  # one for each agent that fails first
    folder.unlink()
    aside.rename(folder)
    user.until("hitch", lambda job: job.has("Checkpointed"))
    user.kubectl("delete", "bj", "hitch")  # it is training
    eventually(lambda: not user.pods("hitch"), timeout_s=30)


def test_a_finished_job_waits_for_its_folder_and_is_complete(user: User, tmp_path: Path) -> None:
    folder, aside = tmp_path / "folder", tmp_path / "aside"
    checkpoint = {"uri": f"file://{folder}", "everySteps": 4}
    grid = {"count": 2, "stages": 2}
    user.apply(tiny_job("full", training={"steps": 60}, pipelines=grid, checkpoint=checkpoint))
    user.until("full", lambda job: job.has("Checkpointed"))
    folder.rename(aside)
    folder.write_text("in the way")
    job = user.until("full", lambda job: job.has("Stalled"))
    line = job.condition("Stalled")
    assert line is not None
    assert line.reason == "LastWriteWaits"
    assert "all steps are committed, but the checkpoint of step 60 in" in line.message
    assert "failed: Not a directory; " in line.message
    eventually(lambda: len(alive(user)) == 2, timeout_s=30)
    user.until("full", lambda job: job.step == 60)
    assert len(user.pods("full")) == 4  # the released ones are not replaced, and keep their logs
    folder.unlink()
    aside.rename(folder)
    assert user.until_ended("full").ended == "Complete"
    assert (user.get("bj", "full")["status"].get("failures") or {}).get("total", 0) == 0


def alive(user: User) -> list[str]:
    pods = user.pods("full")
    return [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"]
