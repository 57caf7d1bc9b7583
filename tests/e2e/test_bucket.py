"""Checkpoints in a bucket of a real S3 server, with keys from a Secret: a job comes back from it
with equal bits, and a bucket that cannot be used is told in the status."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bamboo_cli.job.pods import seats
from bamboo_cli.job.state import Job
from bamboo_cli.quickstart.final_state import final_hashes
from bamboo_cli.quickstart.local_cluster import LocalCluster
from bamboo_core.controller.view import Slot
from bamboo_devcluster.object_store import ObjectStore

from .buckets import SECRET, give_keys
from .jobs import STEPS, Gate, User, eventually, tiny_job

pytestmark = [pytest.mark.timeout(300), pytest.mark.rotating(2)]


def sealed(folder: Path) -> list[int]:
    """Steps of the checkpoints of a bucket's folder."""
    return sorted(int(x.parent.name.removeprefix("step-")) for x in folder.rglob("manifest.json"))


def is_back(job: Job) -> bool:
    """Whether it trains in its second attempt."""
    return job.attempt == 1 and job.has("Running")


def test_a_job_comes_back_from_a_bucket_with_equal_bits(
    user: User,
    local: LocalCluster,
    store: ObjectStore,
    lost_nodes: list[str],
    spec: dict[str, Any],
    gate: Gate,
    calm: Job,
) -> None:
    """A node is lost, then all agents at once."""
    uri = store.make_bucket("training")
    worker = give_keys(user, store.environment)
    checkpoint = {"uri": f"{uri}/team", "everySteps": 8}
    user.apply(
        tiny_job("cloudy", **(gate.slowed(spec) | {"checkpoint": checkpoint}), worker=worker)
    )
    folder = store.data / "training"
    eventually(lambda: bool(sealed(folder)), timeout_s=90, explain=lambda: str(user.job("cloudy")))

    node = seats("cloudy", user.pods("cloudy"), {})[Slot(1, 1)].node
    lost_nodes.append(node)
    local.cluster.kill_node(node)
    user.until("cloudy", lambda job: job.lost >= 1 and job.has("Running"))
    before = sealed(folder)[-1]
    eventually(lambda: sealed(folder)[-1] > before, timeout_s=60)
    assert user.job("cloudy").attempt == 0, "a node took every copy of a layer"

    for pod in user.pods("cloudy"):
        if pod["status"]["phase"] == "Running" and pod["spec"]["nodeName"] != node:
            local.cluster.kill_pod(user.namespace, pod["metadata"]["name"])
    job = user.until("cloudy", is_back, timeout_s=150)
    assert job.ended is None
    gate.open()
    job = user.until_ended("cloudy")
    assert (job.ended, job.step, job.attempt) == ("Complete", STEPS, 1), user.news(job)
    here = store.data / job.checkpoint_path.removeprefix("s3://")  # the server keeps plain files
    assert final_hashes(replace(job, checkpoint_path=str(here))) == final_hashes(calm)
    (reached,) = {x.parents[1].name for x in folder.rglob(f"step-{STEPS:08d}/manifest.json")}
    assert reached == "attempt-0001"


def test_a_bucket_that_cannot_be_used_is_told_and_nothing_is_lost(
    user: User, store: ObjectStore
) -> None:
    """One does not exist, and one belongs to another user."""
    uri = store.make_bucket("others")
    (store.data / "others/old").write_text("another team's")
    worker = give_keys(user, store.environment_of("guest", "a-secret-of-a-guest"))
    wanted = {"absent": ("s3://no-such-bucket/x", "NoSuchBucket"), "shut": (uri, "AccessDenied")}
    for name, (where, _) in wanted.items():
        user.apply(tiny_job(name, checkpoint={"uri": where}, worker=worker))
    remedies = {
        "absent": "create the bucket",
        "shut": f"allow the user of the keys in the Secret {SECRET}",
    }
    for name, (where, said) in wanted.items():
        job = user.until_ended(name)
        line = job.condition("Failed")
        assert line is not None
        assert (job.ended, line.reason, job.step) == ("Failed", "CheckpointFailed", 0)
        assert line.message.startswith(f"spec.checkpoint.uri {where} cannot be written: agent ")
        assert said in line.message
        assert remedies[name] in line.message
    assert [x.name for x in (store.data / "others").iterdir() if x.is_file()] == ["old"]
    assert (store.data / "others/old").read_text() == "another team's"
