"""A complete job gets more steps: it goes on with new agents.

It ends with the bits of a job that asked for all of them at once.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from bamboo_cli.errors import ProgramError
from bamboo_cli.quickstart.final_state import final_hashes

from .jobs import Object, User, tiny_job

pytestmark = pytest.mark.timeout(600)
FIRST, LAST = 6, 14
START_S = 200.0  # for agents to start; several clusters may share the machine


def job(name: str, folder: str, steps: int) -> Object:
    return tiny_job(name, training={"steps": steps}, checkpoint={"uri": folder})


def set_steps(user: User, name: str, steps: int) -> None:
    patch = json.dumps({"spec": {"training": {"steps": steps}}})
    user.kubectl("patch", "bj", name, "--type=merge", "--patch", patch)


def test_a_complete_job_goes_on_to_the_bits_of_one_that_asked_at_once(
    user: User, spec: dict[str, Any]
) -> None:
    folder = spec["checkpoint"]["uri"]
    user.apply(job("once", folder, LAST))
    user.apply(job("more", folder, FIRST))
    done = user.until_ended("more", timeout_s=START_S)
    assert (done.ended, done.step, done.checkpoint_step) == ("Complete", FIRST, FIRST)
    with pytest.raises(ProgramError, match=f"but not lowered from {FIRST} to {FIRST - 1}"):
        set_steps(user, "more", FIRST - 1)
    old = {pod["metadata"]["name"] for pod in user.pods("more")}
    set_steps(user, "more", LAST)
    user.until("more", lambda job: job.ended is None and job.steps == LAST)
    done = user.until_ended("more", timeout_s=START_S)
    assert (done.ended, done.step, done.attempt) == ("Complete", LAST, 1)
    assert not old & {pod["metadata"]["name"] for pod in user.pods("more")}
    assert "0 committed steps repeated" in user.news(done)
    wanted = user.until_ended("once", timeout_s=START_S)
    assert (wanted.ended, wanted.attempt) == ("Complete", 0)
    assert final_hashes(done) == final_hashes(wanted)
