"""The real Kueue admits jobs, makes them wait, and evicts them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bamboo_cli.errors import ProgramError
from bamboo_cli.job.state import Job
from bamboo_cli.quickstart import local_cluster
from bamboo_cli.quickstart.final_state import final_hashes
from bamboo_devcluster.cluster import Cluster
from bamboo_devcluster.programs import binaries

from . import kueue
from .conftest import RecordedCluster
from .jobs import STEPS, Object, User, eventually, tiny_job
from .operators import Operator

pytestmark = pytest.mark.timeout(900)
POOL = {"pool": "spot"}
GPU = "nvidia.com/gpu"
LONG = 100_000  # steps of a job that does not end by itself
WAIT_S = 240.0  # Kueue, an operator and agents share the machine
POLL_S = 0.5  # so that kubectl leaves it to them

# No Workload is admitted while an admitted one is not ready: every job has to say that it is.
SETTINGS = {"waitForPodsReady": {"timeout": "5m", "blockAdmission": True}}
URGENT = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "urgent"},
    "value": 1000,
    "preemptionPolicy": "Never",  # Kueue evicts, the scheduler does not
}
FLAVOR = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "ResourceFlavor",
    "metadata": {"name": "spot"},
    "spec": {"nodeLabels": POOL},
}


@pytest.fixture(scope="module")
def queues(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedCluster]:
    """Six GPU nodes in a pool, one node for the operator; Kueue runs, Bamboo's chart uses it."""
    kueue.files()
    binaries.ensure(print)
    home = tmp_path_factory.mktemp("e2e-kueue")
    system, *gpu = local_cluster.gpu_nodes(6, 3)
    nodes = [system, *(replace(spec, labels=POOL) for spec in gpu)]
    images = dict(local_cluster.image_map())
    for image in images["images"]:  # the pods run the code of this test
        image.setdefault("env", {})["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    with Cluster.up(home / "cluster", nodes=nodes, images=images) as cluster:
        programs = local_cluster.make_programs(cluster, home)
        with kueue.running(programs, home, SETTINGS):
            for body in (URGENT, FLAVOR):
                programs.kubectl("create", "--filename", "-", stdin=json.dumps(body))
            records, values = home / "records", home / "values.yaml"
            values.write_text(
                json.dumps(
                    {
                        "kueue": {"enabled": True},
                        "agents": {"eventLogDirectory": str(records)},
                    }
                )
            )
            found = RecordedCluster(
                cluster, programs, home / "checkpoints", records=records, values=(values,)
            )
            found.install()
            yield found


def waits(holds: Callable[[], bool], explain: Callable[[], str] = lambda: "") -> None:
    """AssertionError if it does not hold in time."""
    eventually(holds, timeout_s=WAIT_S, explain=explain, poll_s=POLL_S)


@dataclass(frozen=True)
class Team:
    """A user whose namespace has the LocalQueue ``team``, of a ClusterQueue of its own."""

    user: User
    checkpoints: Path

    def quota(self, gpus: int, **spec: Any) -> None:
        """The ClusterQueue has so much."""
        flavor = {"name": "spot", "resources": [{"name": GPU, "nominalQuota": gpus}]}
        body = {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "ClusterQueue",
            "metadata": {"name": self.user.namespace},
            "spec": {
                "namespaceSelector": {},
                "preemption": {"withinClusterQueue": "LowerPriority"},
                "resourceGroups": [{"coveredResources": [GPU], "flavors": [flavor]}],
                **spec,
            },
        }
        self.user.apply(body)

    def local_queue(self, name: str) -> None:
        """The namespace has this queue, which leads to the quota."""
        body = {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "LocalQueue",
            "metadata": {"name": name, "namespace": self.user.namespace},
            "spec": {"clusterQueue": self.user.namespace},
        }
        self.user.apply(body)

    def job(self, name: str, **spec: Any) -> Object:
        """A job that waits in the queue."""
        body = self.plain(name, **spec)
        body["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
        return body

    def plain(self, name: str, **spec: Any) -> Object:
        """The same job, without a queue."""
        checkpoint = {"uri": f"file://{self.checkpoints}"}
        return tiny_job(name, **({"checkpoint": checkpoint} | spec))

    def until_queued(self, name: str, text: str) -> Job:
        """Wait until Kueue's word keeps the job from having pods, and the job says so."""

        def says(job: Job) -> bool:
            found = job.condition("Suspended")
            return (
                found is not None
                and (found.status, found.reason) == ("True", "QueuedByKueue")
                and text in found.message
            )

        job = self.user.until(name, says, timeout_s=WAIT_S)
        waits(
            lambda: not self.user.pods(name),
            lambda: str([p["metadata"] for p in self.user.pods(name)]),
        )
        return job

    def until_working(self, name: str, pipelines: int) -> Job:
        """Wait until it has trained, and Kueue knows that it is ready."""
        job = self.user.until(name, lambda job: job.step >= 1, timeout_s=WAIT_S)
        assert job.active_pipelines == pipelines
        assert len(self.user.pods(name)) == pipelines * job.stages
        waits(
            lambda: self.said(name).get("PodsReady") == "True",
            lambda: f"{self.said(name)}, {self.user.job(name)}",
        )
        return job

    def workload(self, name: str) -> Object | None:
        """The job's."""
        found = self.user.get("workloads.kueue.x-k8s.io")
        return next(
            (w for w in found if w["metadata"]["name"].startswith(f"bamboojob-{name}-")), None
        )

    def said(self, name: str) -> dict[str, str]:
        """The conditions of its Workload."""
        body = self.workload(name) or {}
        return {c["type"]: c["status"] for c in (body.get("status") or {}).get("conditions") or []}


@pytest.fixture
def team(queues: RecordedCluster) -> Iterator[Team]:
    with queues.user() as user:
        found = Team(replace(user, poll_s=POLL_S), queues.checkpoints)
        found.quota(0)
        found.local_queue("team")
        yield found
        user.kubectl("delete", "bj", "--all", "--wait=false")


def test_a_job_has_as_many_pipelines_as_quota_and_others_wait(team: Team) -> None:
    team.quota(3)
    many = {"count": 2, "stages": 2, "min": 1}
    team.user.apply(team.job("first", training={"steps": LONG}, pipelines=many))
    team.until_working("first", pipelines=1)
    for pod in team.user.pods("first"):
        assert pod["spec"]["nodeSelector"]["pool"] == "spot"
    team.user.apply(team.job("second", training={"steps": LONG}))
    team.until_queued("second", f"insufficient unused quota for {GPU} in flavor spot")
    team.quota(5)
    team.until_working("second", pipelines=1)
    team.user.apply(team.job("third"))
    team.until_queued("third", "insufficient unused quota")
    team.user.kubectl("delete", "bj", "second")
    done = team.user.until_ended("third", timeout_s=WAIT_S)
    assert done.ended == "Complete"
    waits(lambda: team.said("third").get("Finished") == "True")
    waits(lambda: team.workload("second") is None)


def test_an_evicted_job_leaves_with_a_checkpoint_and_comes_back(team: Team) -> None:
    team.quota(4)
    spec = {"training": {"steps": STEPS}, "pipelines": {"count": 2, "stages": 2}}
    team.user.apply(team.job("drained", **spec))
    team.until_working("drained", pipelines=2)
    team.quota(4, stopPolicy="HoldAndDrain")
    stopped = team.until_queued("drained", "ClusterQueue")
    assert 1 <= stopped.step < STEPS
    assert team.user.job("drained").checkpoint_step == stopped.step
    waits(lambda: team.said("drained").get("QuotaReserved") == "False")
    team.quota(2)
    done = team.user.until_ended("drained", timeout_s=WAIT_S)
    assert (done.ended, done.step) == ("Complete", STEPS)
    team.user.apply(team.plain("calm", **spec))
    calm = team.user.until_ended("calm", timeout_s=WAIT_S)
    assert final_hashes(done) == final_hashes(calm)


def test_a_job_of_higher_priority_evicts_another(team: Team) -> None:
    team.quota(2)
    team.user.apply(team.job("low", training={"steps": STEPS}))
    team.until_working("low", pipelines=1)
    template = {"spec": {"priorityClassName": "urgent"}}
    team.user.apply(team.job("high", worker={"podTemplate": template}))
    assert team.user.until_ended("high", timeout_s=WAIT_S).ended == "Complete"
    assert "Preempted" in team.said("low")
    assert team.user.job("low").checkpoint_step
    done = team.user.until_ended("low", timeout_s=WAIT_S)
    assert (done.ended, done.step) == ("Complete", STEPS)


def test_an_administrator_stops_a_workload_and_a_user_gives_it_back(
    team: Team, queues: RecordedCluster
) -> None:
    """In between another operator leads. It reads in the Workload what the job may have."""
    team.quota(3)
    many = {"count": 2, "stages": 2, "min": 1}
    team.user.apply(team.job("stopped", training={"steps": LONG}, pipelines=many))
    before = team.until_working("stopped", pipelines=1)
    Operator(queues).kill()
    team.user.until("stopped", lambda now: now.step > before.step, timeout_s=WAIT_S)
    team.until_working("stopped", pipelines=1)

    def active(wanted: bool) -> None:
        (name,) = [w["metadata"]["name"] for w in team.user.get("workloads.kueue.x-k8s.io")]
        patch = json.dumps({"spec": {"active": wanted}})
        team.user.kubectl("patch", "workloads.kueue.x-k8s.io", name, "--type=merge", f"-p={patch}")

    active(False)
    job = team.until_queued("stopped", "spec.active of its Workload is false")
    waits(lambda: team.said("stopped").get("QuotaReserved") == "False")
    active(True)
    team.user.until("stopped", lambda now: now.step > job.step, timeout_s=WAIT_S)
    team.user.kubectl("patch", "bj", "stopped", "--type=merge", '-p={"spec":{"suspend":true}}')
    waits(lambda: team.workload("stopped") is None)
    assert not team.user.pods("stopped")


def test_a_queue_that_is_missing_is_named_and_may_come_later(team: Team) -> None:
    team.quota(2)
    body = team.job("lost")
    body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "late"
    team.user.apply(body)
    found = team.until_queued("lost", "LocalQueue late doesn't exist; create or start that queue")
    assert found.step == 0
    team.local_queue("late")
    assert team.user.until_ended("lost", timeout_s=WAIT_S).ended == "Complete"


def test_kueue_refuses_what_its_webhook_does_not_accept(team: Team) -> None:
    """The webhooks are asked: without them, the other tests would show less."""
    with pytest.raises(ProgramError, match=r'webhook "vclusterqueue.kb.io" denied the request'):
        team.quota(-1)
