"""Agents and the operator die; the job completes, with the bits that it would have had."""

from __future__ import annotations

from typing import Any

import pytest

from bamboo_cli.playground import SYSTEM_NAMESPACE, Playground
from bamboo_cli.weights import final_hashes

from .jobs import User, eventually, tiny_job

pytestmark = pytest.mark.timeout(300)
STEPS = 250  # enough for the blow to come before the end


@pytest.fixture
def spec(checkpoint: dict[str, Any]) -> dict[str, Any]:
    return {
        "training": {"steps": STEPS},
        "pipelines": {"count": 2, "stages": 2},
        "redundancy": {"mode": "Replica"},
        "checkpoint": checkpoint,
    }


def test_killed_agents_change_no_bit(user: User, ground: Playground, spec: dict[str, Any]) -> None:
    user.apply(tiny_job("hit", **spec))
    user.until("hit", lambda job: job.step >= 10)
    ground.cluster.kill_pod(user.namespace, "hit-p0-s1-i0")
    user.until("hit", lambda job: job.lost == 1)
    hit = user.until_ended("hit")
    assert (hit.ended, hit.step, hit.attempt) == ("Complete", STEPS, 0)

    user.apply(tiny_job("calm", **spec))
    calm = user.until_ended("calm")
    assert (calm.ended, calm.lost) == ("Complete", 0)
    assert final_hashes(hit) == final_hashes(calm)


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
def test_training_goes_on_without_the_operator(
    user: User, ground: Playground, spec: dict[str, Any]
) -> None:
    user.apply(tiny_job("alone", **spec))
    user.until("alone", lambda job: job.step >= 5)
    scale_operator(ground, 0)
    eventually(lambda: not operator_pods(ground), timeout_s=30)
    scale_operator(ground, 1)
    done = user.until_ended("alone")
    assert (done.ended, done.step, done.attempt, done.lost) == ("Complete", STEPS, 0, 0)


@pytest.mark.usefixtures("operator_comes_back")
def test_delete_leaves_nothing_even_without_the_operator(user: User, ground: Playground) -> None:
    user.apply(tiny_job("orphan", training={"steps": 4000}))
    user.until("orphan", lambda job: job.step >= 2)
    scale_operator(ground, 0)
    eventually(lambda: not operator_pods(ground), timeout_s=30)
    user.kubectl("delete", "bj", "orphan", "--timeout=10s")
    eventually(lambda: not user.get("pods"), timeout_s=30, explain=lambda: str(user.get("pods")))
