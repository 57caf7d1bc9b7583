"""Suspend and resume, also into another grid: the bits do not change."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bamboo_cli.job.state import Job
from bamboo_cli.quickstart.final_state import final_hashes

from .jobs import STEPS, Gate, User, eventually, tiny_job

pytestmark = pytest.mark.timeout(240)


def suspend(user: User, name: str, *, wanted: bool, **spec: Any) -> None:
    patch = json.dumps({"spec": {"suspend": wanted, **spec}})
    user.kubectl("patch", "bj", name, "--type=merge", "--patch", patch)


def test_created_suspended_and_resumed_into_another_grid(
    user: User, spec: dict[str, Any], gate: Gate, calm: Job
) -> None:
    user.apply(tiny_job("paused", suspend=True, **gate.slowed(spec)))
    user.kubectl("wait", "--for=condition=Suspended", "bj/paused", "--timeout=10s")
    assert not user.pods("paused")
    suspend(user, "paused", wanted=False)
    user.until("paused", lambda job: job.step >= 1)
    suspend(user, "paused", wanted=True)
    user.kubectl("wait", "--for=condition=Suspended", "bj/paused", "--timeout=30s")
    eventually(lambda: not user.pods("paused"), timeout_s=30)
    stopped = user.job("paused")
    assert stopped.phase == "Suspended"
    assert 1 <= stopped.step < STEPS
    assert stopped.checkpoint_step == stopped.step

    gate.open()
    suspend(user, "paused", wanted=False, pipelines={"count": 1, "stages": 3})
    done = user.until_ended("paused")
    assert (done.ended, done.step, done.stages) == ("Complete", STEPS, 3)
    assert final_hashes(done) == final_hashes(calm)
