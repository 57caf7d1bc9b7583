"""What administrators do with helm while others' jobs train."""

from __future__ import annotations

import pytest

from bamboo_cli.errors import CommandError
from bamboo_cli.local_cluster import SYSTEM_NAMESPACE

from .conftest import CHECKOUT, RecordedCluster
from .jobs import User, tiny_job

CHART = str(CHECKOUT / "charts/bamboo")


def test_a_second_release_for_the_same_namespaces_is_refused(local: RecordedCluster) -> None:
    with pytest.raises(CommandError) as refusal:
        local.programs.helm(
            "install", "other", CHART, "--namespace", "default", "--dry-run=server",
            "--set", "userRoles.create=false",
        )  # fmt: skip
    text = str(refusal.value)
    assert "release bamboo in namespace bamboo-system serves BambooJobs already" in text
    assert "give them different namespaces by the value `namespaces`" in text


def test_an_upgrade_touches_no_agent(local: RecordedCluster, user: User) -> None:
    user.apply(tiny_job("steady", training={"steps": 60}))
    user.until("steady", lambda job: job.step > 0)
    before = {pod["metadata"]["uid"] for pod in user.pods("steady")}
    local.programs.helm(
        "upgrade", "bamboo", CHART, "--namespace", SYSTEM_NAMESPACE, "--reuse-values",
        "--set", "workers=9", "--wait", "--timeout", "90s",
    )  # fmt: skip
    job = user.until_ended("steady")
    assert (job.ended, job.lost) == ("Complete", 0), user.news(job)
    assert {pod["metadata"]["uid"] for pod in user.pods("steady")} == before
