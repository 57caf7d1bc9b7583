"""Agents beside containers that run on, as a mesh adds them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from .jobs import Gate, User, eventually, tiny_job

pytestmark = pytest.mark.timeout(300)

SOON_S = 80
AGENT = shlex.join([sys.executable, "-P", "-m", "bamboo_agent"])
FATAL = """
[ -e {word} ] && exec {agent}
{agent} & agent=$!
(until [ -e {word} ]; do sleep 0.1; done; kill -9 $agent) &
wait $agent
"""
"""The first agent is killed once the file is there; its container ends with 137."""


def test_the_only_agent_is_killed_beside_a_sidecar(user: User, gate: Gate, tmp_path: Path) -> None:
    """Its pod runs on until it is clear that the node stays. A new agent comes at once."""
    word = tmp_path / "kill"
    command = ["sh", "-c", FATAL.format(word=word, agent=AGENT)]
    proxy = {"name": "proxy", "image": "bamboo-agent:test", "command": ["sleep", "3000"]}
    template = {"containers": [{"name": "agent", "command": command}, proxy]}
    spec = {
        "training": {"steps": 60},
        "pipelines": {"count": 1, "stages": 1},
        "worker": {"podTemplate": {"spec": template}},
    }
    user.apply(tiny_job("alone", **gate.slowed(spec)))
    user.until("alone", lambda job: job.has("Running") and job.step > 0)
    (first,) = [pod["metadata"]["name"] for pod in user.pods("alone")]
    word.touch()

    def is_replaced() -> bool:
        phases = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in user.pods("alone")}
        return first not in phases and "Running" in phases.values()

    eventually(is_replaced, timeout_s=SOON_S, explain=lambda: user.news(user.job("alone")))
    gate.open()
    job = user.until_ended("alone")
    assert (job.ended, job.attempt, job.lost) == ("Complete", 1, 1), user.news(job)
