"""Pods that end before their agents are heard, with statuses as kubelets and the scheduler write
them: how many pods are made, and what users see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bamboo_core.api.events import EventReason
from bamboo_core.controller.ends import GONE_S
from bamboo_core.controller.failure_limits import KEPT
from bamboo_operator.kube import api
from bamboo_operator.kube.timestamps import instant

from ..harness import PATH, Harness, failing
from ..objects import Object, node_object

MANY = {"runPolicy": {"backoffLimit": 1000, "nodeFailureLimit": 0}}
SEATS = 2


def ended(code: int, reason: str = "Error", message: str = "", name: str = "agent") -> Object:
    """The status of a container that has ended."""
    state: Object = {"exitCode": code, "reason": reason, "containerID": "containerd://1"}
    if message:
        state["message"] = message
    return {"name": name, "ready": False, "restartCount": 0, "state": {"terminated": state}}


def waits(name: str, reason: str, message: str = "") -> Object:
    """The status of a container that waits."""
    state = {"reason": reason} | ({"message": message} if message else {})
    return {"name": name, "ready": False, "restartCount": 0, "state": {"waiting": state}}


def runs(name: str) -> Object:
    """The status of a container that runs."""
    return {
        "name": name,
        "ready": True,
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    }


UNSEEN = ended(
    137, "ContainerStatusUnknown", "The container could not be located when the pod was terminated"
)
"""The kubelet's words for a container that it has not seen end before it ended the pod."""
INITIALIZING = [waits("agent", "PodInitializing")]
DISK = (
    "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 900Mi."
    " Container agent was using 5Gi, request is 0, has larger consumption of ephemeral-storage."
)
DISRUPTED = {
    "type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": DISK,
}  # fmt: skip

KINDS: Mapping[str, Object] = {
    "an init container that fails": {
        "phase": "Failed",
        "initContainerStatuses": [ended(1, message="no such bucket", name="fetch")],
        "containerStatuses": INITIALIZING,
    },
    "an init container without memory": {
        "phase": "Failed",
        "initContainerStatuses": [ended(137, "OOMKilled", name="fetch")],
        "containerStatuses": INITIALIZING,
    },
    "a device plugin that is not there after a reboot": {
        "phase": "Failed",
        "reason": "UnexpectedAdmissionError",
        "message": "Allocate failed due to no healthy devices present; cannot allocate unhealthy"
        " devices nvidia.com/gpu, which is unexpected",
    },
    "too few processors": {
        "phase": "Failed",
        "reason": "OutOfcpu",
        "message": "Node didn't have enough resource: cpu, requested: 4000, used: 7000",
    },
    "no room for one more pod": {
        "phase": "Failed",
        "reason": "OutOfpods",
        "message": "Node didn't have enough resource: pods, requested: 1, used: 110",
    },
    "a port of the node that another pod has": {
        "phase": "Failed",
        "reason": "NodePorts",
        "message": "Pod was rejected: Predicate NodePorts failed: node(s) didn't have free ports",
    },
    "processors and a device that are not near each other": {
        "phase": "Failed",
        "reason": "TopologyAffinityError",
        "message": "Resources cannot be allocated with Topology locality",
    },
    "a profile that the node has not": {
        "phase": "Failed",
        "reason": "AppArmor",
        "message": 'Cannot enforce AppArmor: profile "x" is not loaded',
    },
    "an init container of a webhook that fails": {
        "phase": "Failed",
        "initContainerStatuses": [ended(1, message="no rules", name="istio-init")],
        "containerStatuses": [waits("istio-proxy", "PodInitializing"), *INITIALIZING],
    },
    "an agent that ends beside a live sidecar of a webhook": {
        "phase": "Running",
        "containerStatuses": [runs("istio-proxy"), ended(127)],
    },
    "labels of another node": {
        "phase": "Failed",
        "reason": "NodeAffinity",
        "message": "Pod was rejected: Predicate NodeAffinity failed",
        "containerStatuses": [UNSEEN],
    },
    "too much of an empty volume": {
        "phase": "Failed",
        "reason": "Evicted",
        "message": 'Usage of EmptyDir volume "scratch" exceeds the limit "50Mi". ',
        "containerStatuses": [UNSEEN],
    },
    "too much disk of its own": {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi.",
        "containerStatuses": [ended(137)],
    },
    "too little disk on the node": {
        "phase": "Failed",
        "reason": "Evicted",
        "message": DISK,
        "conditions": [DISRUPTED],
        "containerStatuses": [ended(137)],
    },
    "a deadline of the pod": {
        "phase": "Failed",
        "reason": "DeadlineExceeded",
        "message": "Pod was active on the node longer than the specified deadline",
        "containerStatuses": [ended(143)],
    },
    "a command that ends at once": {
        "phase": "Succeeded",
        "containerStatuses": [ended(0, "Completed")],
    },
    "a command that is not there": {
        "phase": "Failed",
        "containerStatuses": [ended(128, "StartError", 'exec: "agnet": not found in $PATH')],
    },
    "a liveness probe": {"phase": "Failed", "containerStatuses": [ended(137)]},
    "an agent that ends beside a live sidecar": {
        "phase": "Running",
        "containerStatuses": [ended(127), runs("proxy")],
    },
    "an agent without memory beside a live sidecar": {
        "phase": "Running",
        "containerStatuses": [ended(137, "OOMKilled"), runs("proxy")],
    },
    "an agent that ends beside a sidecar without an image": {
        "phase": "Running",
        "containerStatuses": [ended(1), waits("proxy", "ImagePullBackOff")],
    },
}
"""Statuses of pods whose agents were never heard."""


def report(harness: Harness, name: str, status: Object, *, node: str = "node-a") -> None:
    """The kubelet writes a pod's status."""
    pod = harness.kube.objects[api.pod("ns", name)]
    pod["metadata"].setdefault("creationTimestamp", instant(harness.now))
    pod["spec"]["nodeName"] = node
    pod["status"] = status


async def live(harness: Harness, status: Object, seconds: int, every_s: int = 1) -> int:
    """Reconcile so often, while each new pod gets this status. The pods that were made."""
    seen: set[str] = set()
    for _ in range(0, seconds, every_s):
        await harness.reconcile()
        await harness.settle()
        for name in harness.pods():
            if name not in seen:
                seen.add(name)
                report(harness, name, status)
        harness.now += every_s
    return len(seen)


async def after(harness: Harness, status: Object, **spec: Any) -> Harness:
    """A job whose first pod has this status."""
    harness.apply(**spec)
    await harness.reconcile()
    report(harness, "job-p0-s0-i0", status)
    await harness.reconcile()
    return harness


@pytest.mark.parametrize("kind", KINDS)
async def test_a_start_that_fails_makes_few_pods_and_is_told(kind: str, harness: Harness) -> None:
    harness.apply(**MANY)
    made = await live(harness, KINDS[kind], 600, every_s=5)
    assert SEATS < made <= 6 * SEATS
    said = harness.condition("Stalled")
    assert (said["status"], said["reason"]) == ("True", "StartsFail")
    starts = harness.status["failures"]["starts"]
    assert (starts["rounds"], starts["slots"]) == (made // SEATS, "0-0 0-1")
    events = [x for x in harness.records if x.reason is EventReason.START_FAILED]
    assert len(events) == made // SEATS
    if "beside a live sidecar" not in kind and "beside a sidecar" not in kind:
        assert len(harness.pods()) == min(made, KEPT), "their logs are kept"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("an init container that fails", "container fetch ended with exit code 1: no such bucket"),
        ("an init container without memory", "exit code 137, OOMKilled"),
        ("too few processors", "OutOfcpu: Node didn't have enough resource: cpu"),
        ("no room for one more pod", "OutOfpods: Node didn't have enough resource: pods"),
        ("a profile that the node has not", 'AppArmor: Cannot enforce AppArmor: profile "x"'),
        ("an init container of a webhook that fails", "container istio-init ended with exit code"),
        ("an agent that ends beside a live sidecar of a webhook", "exit code 127"),
        ("too much disk of its own", "Evicted: Pod ephemeral local storage usage exceeds"),
        ("a command that is not there", 'StartError: exec: "agnet": not found in $PATH'),
        ("an agent that ends beside a live sidecar", "exit code 127"),
    ],
)
async def test_the_first_reconcile_tells_the_cause(kind: str, words: str, harness: Harness) -> None:
    await after(harness, KINDS[kind])
    assert words in harness.condition("Stalled")["message"]
    (event,) = (x for x in harness.records if x.reason is EventReason.START_FAILED)
    assert words in event.message


async def test_a_new_operator_keeps_the_pause(harness: Harness) -> None:
    harness.apply(**MANY)
    status = KINDS["too few processors"]
    before = await live(harness, status, 70)
    fresh = Harness()
    fresh.kube.objects, fresh.now = harness.kube.objects, harness.now
    await fresh.reconcile()
    assert fresh.status["failures"]["starts"] == harness.status["failures"]["starts"]
    assert before + await live(fresh, status, 530) - len(harness.pods()) <= 6 * SEATS


async def test_the_job_goes_on_once_the_cause_is_mended(harness: Harness) -> None:
    harness.apply(**MANY)
    await live(harness, KINDS["too few processors"], 30)
    for _ in range(60):
        await harness.reconcile()
        harness.now += 1.0
    for stage in range(SEATS):
        harness.hear(f"job-p0-s{stage}-i{harness.status['pods']['incarnation']}")
    await harness.reconcile()
    assert harness.condition("Stalled")["status"] == "False"
    assert harness.status["failures"]["starts"]["slots"] == ""


async def test_an_agent_that_ended_beside_a_sidecar_is_deleted_and_replaced(
    harness: Harness,
) -> None:
    """Its GPU would never be free. The new one comes after the pause."""
    await after(harness, KINDS["an agent that ends beside a live sidecar"])
    assert harness.pods() == ["job-p0-s1-i0"]
    harness.now += 5.0
    await harness.reconcile()
    assert harness.pods() == ["job-p0-s0-i1", "job-p0-s1-i0"]


async def test_memory_that_runs_out_beside_a_sidecar_is_a_failure_of_a_heard_agent(
    harness: Harness,
) -> None:
    harness.apply()
    await harness.reconcile()
    harness.hear("job-p0-s0-i0")
    report(harness, "job-p0-s0-i0", KINDS["an agent without memory beside a live sidecar"])
    await harness.reconcile()
    assert harness.status["failures"]["causes"] == [{"cause": "OOMKilled", "count": 1}]
    assert "starts" not in harness.status["failures"]


async def test_a_sidecar_of_the_kubelet_ends_by_itself(harness: Harness) -> None:
    """A restartable init container: the kubelet ends it after the agent, so the log stays."""
    status = {
        "phase": "Running",
        "initContainerStatuses": [runs("proxy")],
        "containerStatuses": [ended(1)],
    }
    await after(harness, status)
    assert "job-p0-s0-i0" in harness.pods()


async def changing(harness: Harness, changes: list[Object]) -> int:
    """Pods that are made in 120 s, while the spec changes every 2 s."""
    seen: set[str] = set()
    for number in range(60):
        harness.kube.objects[PATH]["spec"] |= changes[number % len(changes)]
        await harness.reconcile()
        for name in harness.pods():
            if name not in seen:
                seen.add(name)
                report(harness, name, KINDS["too few processors"])
        harness.now += 2.0
    return len(seen)


async def test_suspensions_do_not_end_the_pauses(harness: Harness) -> None:
    harness.apply(**MANY)
    assert SEATS < await changing(harness, [{"suspend": False}, {"suspend": True}]) <= 6 * SEATS


async def test_other_numbers_of_pipelines_do_not_end_the_pauses(harness: Harness) -> None:
    harness.apply(**MANY)
    counts: list[Object] = [{"pipelines": {"count": n, "stages": 2}} for n in (1, 8)]
    assert 8 * SEATS < await changing(harness, counts) <= 6 * 8 * SEATS


async def test_a_suspension_that_changes_the_pods_begins_anew(harness: Harness) -> None:
    harness.apply(**MANY)
    await live(harness, KINDS["too few processors"], 30)
    harness.kube.objects[PATH]["spec"]["suspend"] = True
    await harness.reconcile()
    assert harness.status["failures"]["starts"]["rounds"] == 3
    harness.kube.objects[PATH]["spec"]["worker"] = {"image": "agent:2"}
    await harness.reconcile()
    assert "starts" not in harness.status["failures"]


async def test_the_pause_of_an_operator_whose_clock_was_ahead_is_no_longer_than_others(
    harness: Harness,
) -> None:
    harness.apply(**MANY)
    harness.now += 3600.0
    await live(harness, KINDS["too few processors"], 30)
    fresh = Harness()
    fresh.kube.objects, fresh.now = harness.kube.objects, harness.now - 3600.0
    before = set(fresh.pods())
    await fresh.reconcile()
    fresh.now += 5.0 * 3**2 - 1.0  # the third pause
    await fresh.reconcile()
    assert set(fresh.pods()) == before
    fresh.now += 1.0
    await fresh.reconcile()
    assert set(fresh.pods()) > before


async def test_an_event_comes_although_the_status_could_not_be_written(harness: Harness) -> None:
    harness.apply()
    await harness.reconcile()
    report(harness, "job-p0-s0-i0", KINDS["too few processors"])
    harness.kube.fail = failing("apply", "/status", api.ApiError(500, "InternalError", "etcd"))
    with pytest.raises(api.ApiError):
        await harness.reconcile()
    assert harness.records == []
    harness.kube.fail = lambda verb, path: None
    for _ in range(2):
        await harness.reconcile()
    assert [x.reason for x in harness.records] == [EventReason.START_FAILED]


# ---------------------------------------------------------------- nodes that go


async def test_what_a_reboot_leaves_behind_costs_no_pause(harness: Harness) -> None:
    harness.apply()
    await harness.reconcile()
    report(harness, "job-p0-s0-i0", {"phase": "Pending"})
    await harness.reconcile()
    node = node_object("node-a", "a")
    node["status"]["nodeInfo"]["bootID"] = "boot-2"
    harness.kube.put(f"{api.nodes()}/node-a", node)
    harness.nodes.changed()
    report(harness, "job-p0-s0-i0", KINDS["a device plugin that is not there after a reboot"])
    await harness.reconcile()
    assert harness.status["failures"]["total"] == 0
    assert "job-p0-s0-i1" in harness.pods()


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Failed", "reason": "NodeLost", "message": "Node node-a which was running pod"},
        {
            "phase": "Failed",
            "reason": "Terminated",
            "message": "Pod was terminated in response to imminent node shutdown.",
            "containerStatuses": [ended(143)],
        },
        {
            "phase": "Failed",
            "conditions": [
                {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
            ],
        },
        {"phase": "Failed", "containerStatuses": [ended(137, "ContainerStatusUnknown")]},
    ],
)
async def test_pods_that_go_with_their_nodes_are_replaced_at_once(
    status: Object, harness: Harness
) -> None:
    await after(harness, status)
    assert harness.status["failures"]["total"] == 0
    assert "job-p0-s0-i1" in harness.pods()


def tainted(harness: Harness, key: str, zones: str = "a") -> None:
    """Somebody announces the ends of these nodes."""
    for zone in zones:
        node = node_object(f"node-{zone}", zone)
        node["spec"]["taints"] = [{"key": key, "effect": "NoSchedule"}]
        harness.kube.put(f"{api.nodes()}/node-{zone}", node)
    harness.nodes.changed()


async def test_a_node_that_is_out_of_service_is_about_to_go(harness: Harness) -> None:
    await after(harness, {"phase": "Pending"})
    harness.now += 5.0
    tainted(harness, "node.kubernetes.io/out-of-service")
    report(harness, "job-p0-s0-i0", KINDS["a liveness probe"])
    await harness.reconcile()
    assert harness.status["failures"]["total"] == 0


async def test_pods_that_tolerate_a_cordon_come_more_and_more_slowly(harness: Harness) -> None:
    key = "node.kubernetes.io/unschedulable"
    tainted(harness, key, "abc")
    tolerations = [{"key": key, "operator": "Exists"}]
    worker = {"image": "agent:1", "podTemplate": {"spec": {"tolerations": tolerations}}}
    harness.apply(**MANY, worker=worker)
    made = await live(harness, KINDS["a liveness probe"], 600, every_s=5)
    assert SEATS < made <= 6 * SEATS
    assert harness.condition("Stalled")["reason"] == "StartsFail"


@pytest.mark.parametrize("is_deleting", [True, False])
async def test_a_pod_that_is_preempted_while_its_image_is_pulled_is_no_failure(
    is_deleting: bool, harness: Harness
) -> None:
    """No container has run, so that only the event of the deletion says why, and no list does."""
    waiting = {"phase": "Pending", "containerStatuses": [waits("agent", "ContainerCreating")]}
    await after(harness, waiting)
    last = harness.kube.objects.pop(api.pod("ns", "job-p0-s0-i0"))
    if is_deleting:
        last["metadata"]["deletionTimestamp"] = instant(harness.now)
    last["status"]["conditions"] = [DISRUPTED | {"reason": "PreemptionByScheduler"}]
    harness.deleted_pods.deleted(last)
    for _ in range(5):
        await harness.reconcile()
        harness.now += 1.0
    assert harness.status["failures"]["total"] == 0
    assert "job-p0-s0-i1" in harness.pods()
    assert harness.forced == 0


async def test_a_refused_pod_that_is_deleted_at_once_tells_its_reason(harness: Harness) -> None:
    await after(harness, {"phase": "Pending"})
    report(harness, "job-p0-s0-i0", KINDS["too few processors"])
    harness.deleted_pods.deleted(harness.kube.objects.pop(api.pod("ns", "job-p0-s0-i0")))
    for _ in range(5):
        await harness.reconcile()
        harness.now += 1.0
    assert harness.status["failures"]["total"] == 1
    assert "OutOfcpu" in harness.condition("Stalled")["message"]


# ---------------------------------------------------------------- somebody deletes pods


async def test_pods_that_somebody_deletes_in_a_loop_come_more_and_more_slowly(
    harness: Harness,
) -> None:
    """As fast as they come, so that no list shows them."""
    harness.apply(**MANY)
    made: set[str] = set()
    for _ in range(600):
        await harness.reconcile()
        made.update(harness.pods())
        for name in harness.pods():
            del harness.kube.objects[api.pod("ns", name)]
        harness.now += 1.0
    assert SEATS < len(made) <= 6 * SEATS
    assert "somebody has deleted its pod" in harness.condition("Stalled")["message"]


@pytest.mark.parametrize(("late_s", "cause"), [(1.0, "OOMKilled"), (3.0, "StartFailed")])
async def test_a_deleted_pod_whose_end_is_shown_late_counts_once(
    late_s: float, cause: str, harness: Harness
) -> None:
    """The event of the deletion has the exit code, and comes a little later than a list."""
    harness.apply()
    await harness.reconcile()
    name = "job-p0-s0-i0"
    report(harness, name, KINDS["an agent without memory beside a live sidecar"])
    last = harness.kube.objects.pop(api.pod("ns", name))
    again_s = await harness.reconcile()
    assert again_s is not None
    assert again_s <= GONE_S
    assert harness.status["failures"]["total"] == 0
    assert harness.pods() == ["job-p0-s1-i0"], "its seat waits for the cause"
    harness.now += late_s
    await harness.reconcile()
    harness.deleted_pods.deleted(last)
    await harness.reconcile()
    assert harness.status["failures"]["causes"] == [{"cause": cause, "count": 1}]


async def test_pods_of_a_refused_spec_were_not_deleted_by_somebody(harness: Harness) -> None:
    harness.apply()
    await harness.reconcile()
    harness.kube.objects[PATH]["spec"]["model"] = {"factory": "m:b", "args": {"a b": 1}}
    await harness.reconcile()
    assert harness.pods() == []
    harness.kube.objects[PATH]["spec"]["model"] = {"factory": "m:build", "args": {"layers": 4}}
    await harness.reconcile()
    assert harness.status["failures"]["total"] == 0


async def test_pods_that_the_api_server_rejects_were_not_deleted(harness: Harness) -> None:
    harness.apply()
    forbidden = api.ApiError(403, "Forbidden", "exceeded quota")

    def fail(verb: str, path: str) -> None:
        if verb == "create" and path.endswith("/pods"):
            raise forbidden

    harness.kube.fail = fail
    for _ in range(30):
        await harness.reconcile()
        harness.now += 1.0
    assert harness.status["failures"]["total"] == 0


# ---------------------------------------------------------------- what is not there
