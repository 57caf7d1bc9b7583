"""A BambooJob behaves as a user of Jobs expects, with real kubectl."""

from __future__ import annotations

import re

import pytest

from bamboo_cli.errors import ProgramError

from .jobs import User, eventually, tiny_job

pytestmark = pytest.mark.timeout(180)


def test_from_apply_to_delete(user: User) -> None:
    assert "bamboojob.bamboo.dev/tiny created" in user.apply(tiny_job("tiny"))
    user.kubectl("wait", "--for=condition=Complete", "bj/tiny", "--timeout=90s", timeout_s=100)

    header, line = user.kubectl("get", "bj").splitlines()
    assert header.split()[:6] == ["NAME", "PHASE", "PIPELINES", "STEP", "LOSS", "LOST"]
    assert line.split()[:4] == ["tiny", "Complete", "0/1", "10"]  # nobody trains any more
    assert float(line.split()[4]) < 5.6  # 256 bytes, guessed evenly, cost 5.55

    job = user.job("tiny")
    assert (job.step, job.lost, job.attempt) == (10, 0, 0)
    assert job.validation_loss is not None

    told = user.kubectl("describe", "bj", "tiny")
    assert re.search(r"Reason:\s+StepsReached", told)
    assert "Events:" in told
    assert user.kubectl("explain", "bamboojob.spec.pipelines").count("stages")

    user.kubectl("delete", "bj", "tiny")
    eventually(lambda: not user.get("pods"), timeout_s=30, explain=lambda: str(user.get("pods")))
    with pytest.raises(ProgramError, match="not found"):
        user.kubectl("get", "bj", "tiny")


def test_logs_of_agents_while_they_train(user: User) -> None:
    user.apply(tiny_job("talk", training={"steps": 400}))
    user.until("talk", lambda job: job.step >= 2)
    first = user.pods("talk")[0]["metadata"]["name"]
    assert first == "talk-p0-s0-i0"
    assert f'"{first}"' in user.kubectl("logs", first)
    user.kubectl("delete", "bj", "talk")
    eventually(lambda: not user.get("pods"), timeout_s=30)


def test_neighbours_run_in_different_zones(user: User) -> None:
    user.apply(tiny_job("zones", training={"steps": 400}))
    user.until("zones", lambda job: job.has("Running"))
    zones = [
        pod["spec"]["nodeSelector"]["topology.kubernetes.io/zone"] for pod in user.pods("zones")
    ]
    assert len(zones) == 2
    assert zones[0] != zones[1]
    assert user.job("zones").has("ZoneSpreadSatisfied")


def test_the_same_job_may_be_applied_again(user: User) -> None:
    user.apply(tiny_job("again"))
    assert "unchanged" in user.apply(tiny_job("again"))
    assert user.until_ended("again").ended == "Complete"
