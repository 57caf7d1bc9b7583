"""Agents and the operator die; the job completes, with the bits that it would have had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.trace_validation.logs import begun, directives, divergences, whole_lines

from bamboo_cli.job import Job
from bamboo_cli.playground import SYSTEM_NAMESPACE, Playground
from bamboo_cli.weights import final_hashes

from .jobs import STEPS, User, eventually, tiny_job

pytestmark = pytest.mark.timeout(300)


def check_equal(job: Job, calm: Job) -> None:
    """It has trained all steps, in one attempt, and every layer has the undisturbed job's bits."""
    assert (job.ended, job.step, job.attempt) == ("Complete", STEPS, 0)
    assert final_hashes(job) == final_hashes(calm)


def check_record(folder: Path, *, killed: str) -> None:
    """All agents' logs replay; the victim's is there, and others went on with the same step."""
    assert divergences(folder) == []
    victim, *others = sorted(begun(folder), key=lambda path: path.stem != killed)
    assert victim.stem == killed
    assert len(whole_lines(victim)) > 100
    resumed = [d for path in others for d in directives(path) if d.fence.epoch > 1 and d.resume]
    assert any(0 < d.target < STEPS for d in resumed), resumed


def test_killed_agents_change_no_bit(
    user: User, ground: Playground, spec: dict[str, Any], calm: Job
) -> None:
    user.apply(tiny_job("hit", **spec))
    user.until("hit", lambda job: job.step >= 5)
    ground.cluster.kill_pod(user.namespace, "hit-p0-s1-i0")
    user.until("hit", lambda job: job.lost == 1)
    hit = user.until_ended("hit")
    check_equal(hit, calm)
    check_record(user.record(hit), killed="hit-p0-s1-i0")


def scale_operator(ground: Playground, replicas: int) -> None:
    """Stop or start the operator, as an administrator does."""
    ground.programs.kubectl(
        "scale", "deployment", "--all", f"--replicas={replicas}", "--namespace", SYSTEM_NAMESPACE
    )


def operator_pods(ground: Playground) -> list[str]:
    found = ground.programs.kubectl("get", "pods", "-n", SYSTEM_NAMESPACE, "--no-headers")
    return found.splitlines()


@pytest.fixture
def operator_comes_back(ground: Playground) -> Any:
    """Whatever the test does, the operator runs again afterwards."""
    yield
    scale_operator(ground, 1)
    eventually(lambda: any("1/1" in line for line in operator_pods(ground)), timeout_s=60)


@pytest.mark.usefixtures("operator_comes_back")
def test_without_the_operator(
    user: User, ground: Playground, spec: dict[str, Any], calm: Job
) -> None:
    """One job trains on and is completed by the next leader; deleting another leaves nothing."""
    user.apply(tiny_job("orphan", training={"steps": 4000}))
    user.apply(tiny_job("alone", **spec))
    for name in ("orphan", "alone"):
        user.until(name, lambda job: job.step >= 2)
    scale_operator(ground, 0)
    eventually(lambda: not operator_pods(ground), timeout_s=30)
    user.kubectl("delete", "bj", "orphan", "--timeout=10s")
    eventually(lambda: not user.pods("orphan"), timeout_s=30, explain=lambda: str(user.get("pods")))
    scale_operator(ground, 1)
    done = user.until_ended("alone")
    check_equal(done, calm)
    assert done.lost == 0, user.news(done)
