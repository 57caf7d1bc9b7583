"""A checkpoint folder that cannot be written: what the user sees, and when."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bamboo_cli.job.state import ConditionLine, Job
from bamboo_cli.quickstart.local_cluster import LocalCluster
from bamboo_core.arbiter_state.durable import Durable, from_json

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
    eventually(lambda: len(alive(user)) == 2, timeout_s=60, explain=lambda: str(user.pods("full")))
    user.until("full", lambda job: job.step == 60)
    assert len(user.pods("full")) == 4  # the released ones are not replaced, and keep their logs
    folder.unlink()
    aside.rename(folder)
    assert user.until_ended("full").ended == "Complete"
    assert (user.get("bj", "full")["status"].get("failures") or {}).get("total", 0) == 0


@pytest.mark.timeout(300)
def test_a_user_goes_back_while_the_folder_is_away(
    user: User, local: LocalCluster, tmp_path: Path
) -> None:
    """All agents die, and new ones do not see the folder. The order is obeyed before it is back."""
    folder, aside = tmp_path / "folder", tmp_path / "aside"
    checkpoint = {"uri": f"file://{folder}", "everySteps": 4}
    user.apply(tiny_job("away", training={"steps": 100000}, checkpoint=checkpoint))
    user.until("away", lambda job: job.step > 12)
    for pod in user.pods("away"):
        local.cluster.kill_pod(user.namespace, pod["metadata"]["name"])
    folder.rename(aside)  # nobody is left who could write another one
    job = user.until("away", lambda job: job.has("Stalled"), timeout_s=150)
    line = job.condition("Stalled")
    assert line is not None
    assert line.reason == "CheckpointUnreachable"
    assert "bamboo restore away --from-step N|start" in line.message
    *_, older, newest = (m.step for m in facts(user).manifests)
    said = bamboo(user, "restore", "away", "--from-step", str(older), "--yes")
    assert f"newer checkpoints are not used any more: {newest}." in said
    assert f"begins from the checkpoint of step {older}." in said
    (order,) = facts(user).restored
    assert (order.from_step, order.attempt) == (older, facts(user).attempt)
    if folder.exists():  # the new agents have tried whether they can write
        folder.rename(tmp_path / "other")
    aside.rename(folder)
    user.until("away", lambda job: job.step > newest + 4 and not job.has("Stalled"))
    assert facts(user).attempt == order.attempt
    user.kubectl("delete", "bj", "away")  # it is training


def facts(user: User) -> Durable:
    """Read what the arbiter knows for ever."""
    return from_json(user.get("bj", "away")["status"]["arbiter"])


def bamboo(user: User, *arguments: str) -> str:
    """Run the command; its output."""
    where = ["--namespace", user.namespace, "--kubeconfig", str(user.programs.kubeconfig)]
    program = Path(sys.executable).with_name("bamboo")
    done = subprocess.run(
        [program, *arguments, *where], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def alive(user: User) -> list[str]:
    pods = user.pods("full")
    return [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"]
