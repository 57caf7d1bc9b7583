"""What administrators do with helm while others' jobs train."""

from __future__ import annotations

import json
import re
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
import yaml
from click.testing import CliRunner

from bamboo_cli.errors import CommandError
from bamboo_cli.main import cli
from bamboo_cli.quickstart.local_cluster import SYSTEM_NAMESPACE
from bamboo_sim.fleet.logs.event_logs import non_empty_logs, step_ends

from .conftest import CHART, RecordedCluster
from .jobs import Object, User, eventually, tiny_job

pytestmark = pytest.mark.timeout(300)

OTHER = "other-system"
KINDS = (
    "clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts,deployments,daemonsets,"
    "services,configmaps,secrets,poddisruptionbudgets,networkpolicies"
)
"""What the chart makes."""


def upgrade(local: RecordedCluster, *settings: str) -> None:
    """`helm upgrade` with further values in JSON; returns when the new pods are ready."""
    local.programs.helm(
        "upgrade", "bamboo", str(CHART), "--namespace", SYSTEM_NAMESPACE, "--reuse-values",
        *(f"--set-json={setting}" for setting in settings), "--wait", "--timeout", "90s",
    )  # fmt: skip


def of_release(local: RecordedCluster, release: str) -> list[str]:
    """The objects of a release, in all namespaces."""
    text = local.programs.kubectl(
        "get", KINDS, "--all-namespaces", "--output", "name",
        "--selector", f"app.kubernetes.io/instance={release}",
    )  # fmt: skip
    return text.split()


def lease(local: RecordedCluster) -> Object:
    """Return who leads, and the term."""
    text = local.programs.kubectl(
        "get", "lease", "bamboo-operator", "--namespace", SYSTEM_NAMESPACE, "--output", "json"
    )
    spec: Object = json.loads(text)["spec"]
    return spec


def uids(user: User, job: str) -> set[str]:
    """The job's pods."""
    return {pod["metadata"]["uid"] for pod in user.pods(job)}


STANDSTILL_S = 30.0
"""Agents that the operator has lost would take longer than this to train again."""


class Trainer:
    """A job that trains while something happens to its operator."""

    def __init__(self, user: User, name: str) -> None:
        self.user, self.name = user, name
        user.apply(tiny_job(name, training={"steps": 20_000}))
        user.until(name, lambda job: job.step > 0, timeout_s=90)
        self.pods, self.epoch = uids(user, name), user.job(name).plan_epoch

    def ends(self) -> list[float]:
        """When an agent ended its steps, in seconds of time.monotonic()."""
        return step_ends(non_empty_logs(self.user.record(self.user.job(self.name)))[0])

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Steps go on: a new leader stops training once, for its first plan. Prints how long."""
        began = time.monotonic()
        yield
        meanwhile = time.monotonic()
        eventually(lambda: self.ends()[-1] > meanwhile, timeout_s=30)
        gaps = [b - a for a, b in pairwise(self.ends()) if b > began]
        pause_s = max(gaps) - statistics.median(gaps)
        print(f"longest time between two steps, less a step: {pause_s:.2f} s")
        assert pause_s < STANDSTILL_S

    def check_taken_up(self) -> None:
        """Another operator leads the agents: the pods that were there from the start."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        job = self.user.until(
            self.name, lambda job: job.plan_epoch > epoch and job.has("Running"), timeout_s=90
        )
        assert (job.lost, job.attempt) == (0, 0), self.user.news(job)
        assert uids(self.user, self.name) == self.pods


def check_commands(local: RecordedCluster, user: User, job: str) -> None:
    """A user's commands say what is true of a job that trains."""

    def said(command: str, *arguments: str) -> str:
        done = CliRunner().invoke(
            cli,
            [command, job, "--namespace", user.namespace, "--kubeconfig",
             str(local.cluster.kubeconfig), *arguments],
            env={"COLUMNS": "240"},
        )  # fmt: skip
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    agent = f"{job}-p0-s1-i0"
    assert agent in said("top")
    assert re.search(r" p0-s0-i0 .*\| ", said("logs", "--tail", "1")), "with or without a step"
    assert agent in said("preempt", "--agent", agent, "--notice", "--yes", "--timeout", "60")
    status = user.until(job, lambda found: found.lost_noticed > 0 and found.pauses > 0)
    report = said("report")
    assert f"{status.lost} ({status.lost_noticed} with notice)" in report
    assert "Notice)" in report
    assert "agent-hours" in report


def test_a_second_release_for_the_same_namespaces_is_refused(local: RecordedCluster) -> None:
    with pytest.raises(CommandError) as refusal:
        local.programs.helm(
            "install", "other", str(CHART), "--namespace", "default", "--dry-run=server",
            "--set", "userRoles.create=false",
        )  # fmt: skip
    text = str(refusal.value)
    assert "release bamboo in namespace bamboo-system serves BambooJobs already" in text
    assert "give them different namespaces by the value `namespaces`" in text


def test_the_resource_definition_is_upgraded_as_the_notes_say(local: RecordedCluster) -> None:
    """Without --force-conflicts it would not be, since helm has made it."""
    definition = yaml.safe_load((CHART / "crds/bamboojobs.yaml").read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["description"] = "Another one."
    local.programs.kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--filename", "-",
        stdin=yaml.safe_dump(definition),
    )  # fmt: skip


def test_upgrades_and_a_new_installation_touch_no_agent(local: RecordedCluster, user: User) -> None:
    """Two replicas hand over, the release is uninstalled and comes back."""
    trainer = Trainer(user, "steady")
    before = lease(local)
    with trainer.undisturbed():
        upgrade(local, "replicas=2")
        upgrade(local, "workers=9")  # both pods are replaced, one after the other
        eventually(
            lambda: lease(local)["leaseTransitions"] > before["leaseTransitions"],
            timeout_s=60, explain=lambda: str(lease(local)),
        )  # fmt: skip
        trainer.check_taken_up()
    with trainer.undisturbed():
        local.programs.helm("uninstall", "bamboo", "--namespace", SYSTEM_NAMESPACE, "--wait")
        assert of_release(local, "bamboo") == []
        assert user.job("steady").ended is None
        assert len(user.get("poddisruptionbudgets")) == 1  # it belongs to the job
        local.install()
        trainer.check_taken_up()
    check_commands(local, user, "steady")
    user.kubectl("delete", "bamboojob", "steady")
    eventually(lambda: not user.get("poddisruptionbudgets"), timeout_s=30)


@pytest.fixture
def other(local: RecordedCluster, user: User) -> Iterator[str]:
    """A second release, for the user's namespace, while the first one serves another. As the
    development cluster has no Services, the test pod finds the operator by ``local.services``."""
    upgrade(local, 'namespaces=["default"]')
    programs = local.programs
    programs.helm(
        "install", "other", str(CHART), "--namespace", OTHER, "--create-namespace",
        "--values", str(CHART / "values/gke-spot.yaml"), "--wait", "--timeout", "90s",
        "--set", f"namespaces={{{user.namespace}}},userRoles.create=false",
        "--set", "resources.requests.cpu=50m,resources.requests.memory=64Mi",
        "--set", "notices.daemonSet.enabled=true,notices.daemonSet.nodeSelector.none=there",
    )  # fmt: skip
    yield "other"
    if OTHER in programs.helm("list", "--all-namespaces"):
        programs.helm("uninstall", "other", "--namespace", OTHER)
    upgrade(local, "namespaces=[]")


def test_helm_test_and_uninstall_of_a_release_without_jobs(
    local: RecordedCluster, other: str
) -> None:
    text = local.programs.kubectl(
        "get", "pods", "--namespace", OTHER, "--output", "jsonpath={.items[*].status.podIP}"
    )
    local.services.write_text(text)
    done = local.programs.helm("test", other, "--namespace", OTHER, "--timeout", "60s")
    assert "Phase:          Succeeded" in done, done
    assert of_release(local, other)
    local.programs.helm("uninstall", other, "--namespace", OTHER, "--wait")
    assert of_release(local, other) == []
