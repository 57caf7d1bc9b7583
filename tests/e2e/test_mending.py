"""A job that cannot start is mended by one update."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bamboo_cli.errors import ProgramError

from .jobs import Gate, User, tiny_job

WRONG = "bamboo-agnet:test"

pytestmark = pytest.mark.timeout(240)


def test_one_update_mends_a_wrong_image_until_there_is_a_plan(
    user: User, spec: dict[str, Any], gate: Gate
) -> None:
    right = tiny_job("mended", **gate.slowed(spec))
    wrong = tiny_job("mended", **gate.slowed(spec))
    wrong["spec"]["worker"]["image"] = WRONG
    user.apply(wrong)
    user.kubectl("wait", "--for=condition=Stalled", "bj/mended", "--timeout=60s")
    old = {pod["metadata"]["uid"] for pod in user.pods("mended")}
    user.apply(right)
    user.until("mended", lambda job: job.step >= 1)
    pods = user.pods("mended")
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {"bamboo-agent:test"}
    assert not old & {pod["metadata"]["uid"] for pod in pods}
    body = json.loads(user.kubectl("get", "bj", "mended", "--output", "json"))
    assert body["status"]["failures"]["total"] == 0
    assert "agents" in body["status"]["arbiter"]
    patch = json.dumps({"spec": {"worker": {"image": WRONG}}})
    said = "spec.worker cannot change while agents have a plan"
    with pytest.raises(ProgramError, match=said):
        user.kubectl("patch", "bj", "mended", "--type=merge", "--patch", patch)
    gate.open()
    assert user.until_ended("mended").ended == "Complete"


def test_a_whole_grid_that_cannot_start_waits_to_be_mended(
    user: User, spec: dict[str, Any], gate: Gate
) -> None:
    """All of its pods fail at once, in words that need four bytes for a character."""
    right = tiny_job("grid", **gate.slowed(spec))
    wrong = tiny_job("grid", **gate.slowed(spec))
    script = "echo no 😀 bucket > /dev/termination-log; exit 3"
    init = {"name": "fetch", "image": "bamboo-agent:test", "command": ["sh", "-c", script]}
    wrong["spec"]["worker"]["podTemplate"] = {"spec": {"initContainers": [init]}}
    user.apply(wrong)
    user.kubectl("wait", "--for=condition=Stalled", "bj/grid", "--timeout=60s")
    user.until("grid", lambda job: any("no 😀 bucket" in each.message for each in job.conditions))
    user.apply(right)
    user.until("grid", lambda job: job.step >= 1)
    gate.open()
    assert user.until_ended("grid").ended == "Complete"
