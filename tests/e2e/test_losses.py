"""Agents, a node and the operator are killed, nodes are emptied; the job completes, and no bit
differs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kube.grants import is_refused
from tests.rotation import in_turn

from bamboo_cli.job.events import read_events
from bamboo_cli.job.pods import Seat, seats
from bamboo_cli.job.state import Job
from bamboo_cli.quickstart.final_state import final_hashes
from bamboo_cli.quickstart.local_cluster import SYSTEM_NAMESPACE, LocalCluster
from bamboo_cli.run.recovery import recovery
from bamboo_core.controller.view import Slot
from bamboo_devcluster.controlplane import audit
from bamboo_sim.fleet.logs.event_logs import directives, non_empty_logs, whole_lines

from .jobs import STEPS, Gate, Object, User, eventually, tiny_job
from .operators import Operator

pytestmark = pytest.mark.timeout(300)


KARPENTER = "karpenter.sh/disrupted"


def check_equal(job: Job, calm: Job) -> None:
    """The job completed in one attempt, and every layer equals the undisturbed job's."""
    assert (job.ended, job.step, job.attempt) == ("Complete", STEPS, 0)
    assert final_hashes(job) == final_hashes(calm)


def check_record(folder: Path, *, killed: str) -> None:
    """There are logs, and the other agents resumed the victim's step. The user's fixture checks
    that all logs replay."""
    assert non_empty_logs(folder / "supervisors")
    victim, *others = sorted(non_empty_logs(folder), key=lambda path: path.stem != killed)
    assert victim.stem == killed
    assert len(whole_lines(victim)) > 20
    resumed = [d for path in others for d in directives(path) if d.fence.epoch > 1 and d.resume]
    assert any(0 < d.target < STEPS for d in resumed), resumed


def check_transport(status: Object, channel: str) -> None:
    """Status says what carried the tensors."""
    assert status["channel"] == channel
    assert status["encrypted"] is (channel == "Tcp")
    assert channel in status["reason"]
    if channel == "ProcessGroup":
        assert 0 < status["groupShare"] <= 1
    else:
        assert "groupShare" not in status


@pytest.fixture
def emptied(user: User) -> Iterator[list[str]]:
    """Nodes that the test taints and drains; they take pods again after the test."""
    names: list[str] = []
    yield names
    for name in names:
        spec = {"taints": None, "unschedulable": None}
        user.kubectl("patch", "node", name, "--patch", json.dumps({"spec": spec}))


@pytest.fixture
def operator(local: LocalCluster) -> Iterator[Operator]:
    """The operator; it runs again after the test."""
    operator = Operator(local)
    yield operator
    operator.scale(1)
    eventually(operator.is_ready, timeout_s=60, explain=lambda: str(operator.pods()))


class LossChecks:
    """Checks of the status, events and metrics of a job that loses agents."""

    def __init__(self, user: User, operator: Operator, name: str) -> None:
        self._user, self._operator, self._name = user, operator, name
        self._lost = {"true": 0, "false": 0}

    def seat(self, pipeline: int, stage: int) -> Seat:
        """The newest pod of a seat, and its node."""
        return seats(self._name, self._user.pods(self._name), {})[Slot(pipeline, stage)]

    def nodes(self) -> set[str]:
        """Where its pods are that have not ended."""
        found = self._user.pods(self._name)
        alive = [pod for pod in found if pod["status"]["phase"] in ("Pending", "Running")]
        return {pod["spec"].get("nodeName", "") for pod in alive}

    def log(self, pipeline: int, stage: int) -> str:
        """Return what the agent in a seat has logged."""
        return self._user.kubectl("logs", self.seat(pipeline, stage).pod)

    def await_first_step(self) -> None:
        """Wait for the event; the status shows progress only every few seconds."""
        self._user.until(self._name, lambda job: job.has("Running"))
        eventually(lambda: "Resumed" in {e["reason"] for e in self._events()}, timeout_s=30)

    def check(self, victim: str, *reasons: str, noticed: bool) -> None:
        """One more agent is lost: it is counted, events with these reasons name it, and training
        resumes. A busy machine may lose further agents; a fast one may reach the last step."""
        self._lost[str(noticed).lower()] += 1
        self._user.until(self._name, self._counts)
        eventually(
            lambda: self._is_reported(victim, *reasons), timeout_s=20,
            explain=lambda: self._user.kubectl("get", "events"),
        )  # fmt: skip
        self.check_metrics()

    def check_metrics(self) -> None:
        """The counters are not below the number of losses. A new operator shows them as soon as it
        leads and has read the job."""
        eventually(
            lambda: all(self._shown().get(x, -1) >= least for x, least in self._lost.items()),
            timeout_s=30, explain=lambda: str(self._shown()),
        )  # fmt: skip

    def _shown(self) -> dict[str, float]:
        figures = self._operator.figures(self._user.namespace, self._name)
        return {
            sample.labels["noticed"]: sample.value
            for sample in figures
            if sample.name == "bamboo_preemptions_total"
        }

    def _counts(self, job: Job) -> bool:
        silent = job.lost - job.lost_noticed
        is_counted = job.lost_noticed >= self._lost["true"] and silent >= self._lost["false"]
        return is_counted and (job.has("Running") or job.ended == "Complete")

    def _events(self) -> list[Object]:
        found: list[Object] = self._user.get("events")
        return [event for event in found if event["involvedObject"]["kind"] == "BambooJob"]

    def _is_reported(self, victim: str, *reasons: str) -> bool:
        events = self._events()
        about = {event.reason for event in read_events(events) if victim in event.agents}
        found = recovery([victim], events)
        return about >= set(reasons) and found is not None and found.resumed_at is not None


@pytest.mark.parametrize("channel", in_turn(2, ["Tcp", "ProcessGroup"]))
def test_faults_of_every_kind_change_no_bit(
    channel: str,
    user: User,
    local: LocalCluster,
    operator: Operator,
    lost_nodes: list[str],
    spec: dict[str, Any],
    gate: Gate,
    calm: Job,
) -> None:
    """An agent is killed, one is deleted, a node is lost, the operator is killed."""
    user.apply(tiny_job("hit", **gate.slowed(spec), transport={"channel": channel}))
    checks = LossChecks(user, operator, "hit")
    checks.await_first_step()
    if channel == "ProcessGroup":
        eventually(
            lambda: "goes over gloo" in checks.log(0, 0), timeout_s=30,
            explain=lambda: checks.log(0, 0),
        )  # fmt: skip

    killed = checks.seat(0, 1).pod
    local.cluster.kill_pod(user.namespace, killed)
    checks.check(killed, "AgentLost", noticed=False)

    deleted = checks.seat(1, 0).pod
    user.kubectl("delete", "pod", deleted, "--wait=false")  # SIGTERM, and 5 s of grace
    checks.check(deleted, "AgentLeaving", "AgentLeft", noticed=True)

    seat = checks.seat(1, 1)
    lost_nodes.append(seat.node)
    local.cluster.kill_node(seat.node)
    checks.check(seat.pod, "AgentLost", noticed=False)

    before = user.job("hit")
    assert before.ended is None, "the job ended before the operator was killed"
    operator.kill()
    checks.check_metrics()  # the counters survive a restart
    gate.open()

    hit = user.until_ended("hit")
    check_equal(hit, calm)
    check_transport(user.get("bamboojob", "hit")["status"]["transport"], channel)
    check_record(user.record(hit), killed=killed)


@pytest.mark.rotating(2)
def test_a_job_whose_spec_is_refused_meanwhile_is_led_on(
    user: User,
    local: LocalCluster,
    operator: Operator,
    spec: dict[str, Any],
    gate: Gate,
    calm: Job,
) -> None:
    """Somebody names a queue, although nobody asks Kueue, and the operator is killed."""
    user.apply(tiny_job("named", **gate.slowed(spec)))
    checks = LossChecks(user, operator, "named")
    checks.await_first_step()
    user.kubectl("label", "bamboojob", "named", "kueue.x-k8s.io/queue-name=team")
    user.until("named", lambda job: not job.has("Accepted"))
    operator.kill()
    killed = checks.seat(1, 0).pod
    local.cluster.kill_pod(user.namespace, killed)
    checks.check(killed, "AgentLost", noticed=False)
    before = user.job("named")
    assert before.ended is None, "the job ended before it was looked at"
    user.until("named", lambda job: job.step > before.step)

    def replacements() -> list[str]:
        names = [pod["metadata"]["name"] for pod in user.pods("named")]
        return [name for name in names if not name.endswith("-i0")]

    assert not replacements()
    user.kubectl("label", "bamboojob", "named", "kueue.x-k8s.io/queue-name-")
    user.until("named", lambda job: job.has("Accepted"))
    eventually(lambda: bool(replacements()), timeout_s=30)
    gate.open()
    check_equal(user.until_ended("named"), calm)


def test_nodes_are_emptied_without_a_rollback(
    user: User, operator: Operator, emptied: list[str], spec: dict[str, Any], gate: Gate, calm: Job
) -> None:
    """Karpenter taints one, and `kubectl drain` cordons one and evicts."""
    user.apply(tiny_job("moved", **gate.slowed(spec)))
    checks = LossChecks(user, operator, "moved")
    checks.await_first_step()
    tainted, drained = checks.seat(0, 1), checks.seat(1, 0)
    emptied += [tainted.node, drained.node]
    eventually(lambda: bool(user.get("pdb")), timeout_s=20)
    user.kubectl("taint", "node", tainted.node, f"{KARPENTER}:NoSchedule")
    options = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s")
    said = user.kubectl("drain", drained.node, *options, timeout_s=70)
    assert f"evicting pod {user.namespace}/{drained.pod}" in said
    for seat in (tainted, drained):
        checks.check(seat.pod, "AgentLeaving", "AgentLeft", noticed=True)
    eventually(
        lambda: not checks.nodes() & set(emptied), timeout_s=20,
        explain=lambda: str(user.pods("moved")),
    )  # fmt: skip
    gate.open()
    check_equal(user.until_ended("moved"), calm)
    account = f"system:serviceaccount:{SYSTEM_NAMESPACE}:bamboo-operator"
    known = audit.requests(operator.local.cluster.audit_log, account)
    asked = [request for request in known if request.namespace == user.namespace]
    assert asked
    assert [request for request in asked if is_refused(request)] == []


def test_deleted_without_the_operator_a_job_leaves_nothing(user: User, operator: Operator) -> None:
    user.apply(tiny_job("orphan", training={"steps": 4000}))
    user.until("orphan", lambda job: job.step >= 2)
    operator.scale(0)
    eventually(lambda: not operator.pods(), timeout_s=30, explain=lambda: str(operator.pods()))
    user.kubectl("delete", "bj", "orphan", "--timeout=10s")
    eventually(lambda: not user.pods("orphan"), timeout_s=30, explain=lambda: str(user.get("pods")))
