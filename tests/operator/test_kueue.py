"""Kueue, played by the test: a job's Workload from its creation to its end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.core.controller.builders import manifest

from bamboo_operator import api, handlers
from bamboo_operator.api import ApiError, Object
from bamboo_operator.config import ConfigError, from_env
from bamboo_operator.kueue import AGAIN_S, Kueue, job_of, workload_name
from bamboo_operator.observe import job_view
from bamboo_operator.reconciler import Reconciler

from .harness import PATH, Harness, failing
from .objects import SEALS
from .test_line import pods

VERSION = "v1beta2"
API = f"/apis/kueue.x-k8s.io/{VERSION}"
GPU = {"limits": {"nvidia.com/gpu": 1}}


@pytest.fixture
def queued(harness: Harness) -> Harness:
    """An operator that asks Kueue, and a job with 3 x 2 agents wanted, 1 x 2 at least."""
    kueue = Kueue(harness.kube, VERSION, clock=lambda: harness.now)
    harness.reconciler = Reconciler(replace(harness.reconciler._ports, kueue=kueue))
    apply(harness)
    return harness


def apply(harness: Harness, **spec: Any) -> None:
    grid = {"count": 3, "stages": 2, "min": 1}
    body = manifest(
        **({"pipelines": grid, "worker": {"image": "agent:1", "resources": GPU}} | spec)
    )
    body["metadata"] |= {
        "uid": "uid-1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"kueue.x-k8s.io/queue-name": "team"},
    }
    old = harness.kube.objects.get(PATH)
    if old is not None and "status" in old:
        body["status"] = old["status"]
    harness.kube.put(PATH, body)


def path(harness: Harness) -> str:
    job = job_view(harness.kube.objects[PATH])
    return f"{API}/namespaces/ns/workloads/{workload_name(job)}"


def workload(harness: Harness) -> Object | None:
    return harness.kube.objects.get(path(harness))


def say(harness: Harness, *, count: int | None = None, **conditions: bool) -> None:
    """Kueue writes the Workload's status."""
    body = workload(harness)
    assert body is not None
    status = body.setdefault("status", {})
    known = {c["type"]: c for c in status.get("conditions", [])}
    for kind, is_true in conditions.items():
        known[kind] = {
            "type": kind,
            "status": "True" if is_true else "False",
            "reason": "Preempted" if kind == "Evicted" else "Test",
            "message": f"Kueue says {kind}",
        }
    status["conditions"] = list(known.values())
    if count is not None:
        flavors = {"nvidia.com/gpu": "spot"}
        given = {"name": "agents", "count": count, "flavors": flavors}
        status["admission"] = {"clusterQueue": "cq", "podSetAssignments": [given]}
    harness.kube.put(path(harness), body)


async def admitted(harness: Harness, count: int = 4) -> None:
    await harness.reconcile()
    say(harness, count=count, QuotaReserved=True, Admitted=True)
    await harness.reconcile()


def said(harness: Harness, kind: str) -> tuple[str, str]:
    body = workload(harness)
    assert body is not None
    found = {c["type"]: c for c in body["status"]["conditions"]}
    return found[kind]["status"], found[kind]["reason"]


def drop_pods(harness: Harness) -> None:
    for name in harness.pods():
        del harness.kube.objects[api.pod("ns", name)]


async def test_a_queued_job_has_a_workload_and_no_pods(queued: Harness) -> None:
    assert await queued.reconcile() == AGAIN_S
    assert queued.pods() == []
    made = workload(queued)
    assert made is not None
    assert made["apiVersion"] == f"kueue.x-k8s.io/{VERSION}"
    assert job_of(made) == ("ns", "job")
    (agents,) = made["spec"]["podSets"]
    assert (made["spec"]["queueName"], agents["count"], agents["minCount"]) == ("team", 6, 2)
    (container,) = agents["template"]["spec"]["containers"]
    assert container == {"name": "agent", "image": "agent:1", "resources": GPU}
    await queued.reconcile()
    suspended = queued.condition("Suspended")
    assert (suspended["status"], suspended["reason"]) == ("True", "QueuedByKueue")
    assert suspended["message"] == "it waits in queue team until Kueue admits it"
    assert queued.condition("Running")["reason"] == "QueuedByKueue"


async def test_an_admitted_job_starts_with_what_it_has_quota_for(queued: Harness) -> None:
    flavor = {"spec": {"nodeLabels": {"pool": "spot"}, "tolerations": [{"key": "spot"}]}}
    queued.kube.put(f"{API}/resourceflavors/spot", flavor)
    for node in [p for p in queued.kube.objects if p.startswith(api.nodes())]:
        queued.kube.objects[node]["metadata"]["labels"]["pool"] = "spot"
    await admitted(queued, count=5)
    made = pods(queued, "job")
    assert len(made) == 4  # two pipelines; a fifth agent would have no seat
    spec = made[0]["spec"]
    assert spec["nodeSelector"]["pool"] == "spot"
    assert {"key": "spot"} in spec["tolerations"]
    assert queued.condition("Suspended")["status"] == "False"


async def test_an_evicted_job_leaves_then_gives_the_quota_back(queued: Harness) -> None:
    await admitted(queued)
    say(queued, Evicted=True)
    await queued.reconcile()  # nothing is trained yet, so the pods go at once
    assert said(queued, "QuotaReserved") == ("True", "Test")
    assert "Kueue has evicted it: Kueue says Evicted" in queued.condition("Running")["message"]
    await queued.reconcile()
    body = workload(queued)
    assert body is not None
    assert "admission" not in body["status"]
    assert said(queued, "QuotaReserved") == ("False", "Pending")
    assert said(queued, "Admitted") == ("False", "NoReservation")
    assert said(queued, "Requeued") == ("True", "Preempted")
    say(queued, count=2, QuotaReserved=True, Admitted=True, Evicted=False)
    await queued.reconcile()
    assert len(queued.pods()) == 2


async def test_a_job_that_the_user_suspends_gives_its_quota_back(queued: Harness) -> None:
    await admitted(queued)
    apply(queued, suspend=True)
    await queued.reconcile()
    assert workload(queued) is not None
    await queued.reconcile()
    assert workload(queued) is None
    assert queued.condition("Suspended")["reason"] == "UserRequested"
    apply(queued)
    await queued.reconcile()
    assert workload(queued) is not None
    assert queued.pods() == []


async def test_an_ended_job_finishes_its_workload(queued: Harness) -> None:
    apply(queued, runPolicy={"pendingDeadlineSeconds": 5})
    await admitted(queued)
    queued.now += 6
    await queued.reconcile()
    assert queued.condition("Failed")["status"] == "True"
    drop_pods(queued)
    await queued.reconcile()
    assert said(queued, "Finished") == ("True", "Failed")
    queued.kube.requests.clear()
    await queued.reconcile()
    assert ("replace", f"{path(queued)}/status") not in queued.kube.requests
    assert queued.condition("Failed")["reason"] == "PendingDeadlineExceeded"


async def test_a_changed_job_that_waits_is_queued_again(queued: Harness) -> None:
    await queued.reconcile()
    apply(queued, pipelines={"count": 2, "stages": 2})
    await queued.reconcile()
    await queued.reconcile()
    made = workload(queued)
    assert made is not None
    (agents,) = made["spec"]["podSets"]
    assert agents["count"] == 4


async def test_a_workload_of_another_job_does_not_count(queued: Harness) -> None:
    await queued.reconcile()
    body = workload(queued)
    assert body is not None
    body["metadata"]["ownerReferences"][0]["uid"] = "other"
    queued.kube.put(path(queued), body)
    say(queued, count=4, QuotaReserved=True, Admitted=True)
    await queued.reconcile()  # its creation conflicts, which is no error
    assert queued.pods() == []
    assert job_of({"metadata": {"namespace": "ns"}}) is None


async def test_an_error_of_the_api_is_not_swallowed(queued: Harness) -> None:
    queued.kube.fail = failing("create", "/workloads", ApiError(403, "Forbidden", "no"))
    with pytest.raises(ApiError):
        await queued.reconcile()


async def test_a_queue_without_kueue_is_refused(harness: Harness) -> None:
    apply(harness)
    await harness.reconcile()
    accepted = harness.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecInvalid")
    assert accepted["message"] == (
        "metadata.labels[kueue.x-k8s.io/queue-name]: names queue 'team', but the operator does not"
        " use Kueue: set the chart's value kueue.enabled to true, or remove the label"
    )
    assert harness.pods() == []


async def test_a_workload_wakes_its_job() -> None:
    added: list[object] = []
    registry = handlers.registry(
        add=added.append,
        nodes_changed=lambda: None,
        seen=lambda resource: None,
        deleted=lambda pod: None,
        created=lambda body: None,
        is_ours=SEALS.is_ours,
        kueue=VERSION,
    )
    found = {h.fn.__name__: h.fn for h in registry._watching.get_all_handlers()}
    owner = {"kind": "BambooJob", "name": "job", "controller": True}
    meta = {"namespace": "ns", "ownerReferences": [owner]}
    await found["on_workload"](event={"type": "ADDED", "object": {"metadata": meta}})  # type: ignore[call-arg]
    await found["on_workload"](event={"type": "ADDED", "object": {"metadata": {}}})  # type: ignore[call-arg]
    assert added == [("ns", "job")]


def test_the_version_is_one_that_is_known() -> None:
    assert from_env({"POD_IP": "10.0.0.1"}).kueue == ""
    assert from_env({"POD_IP": "10.0.0.1", "BAMBOO_KUEUE": "v1beta1"}).kueue == "v1beta1"
    with pytest.raises(ConfigError, match=r"BAMBOO_KUEUE 'v2' is not one of v1beta1, v1beta2"):
        from_env({"POD_IP": "10.0.0.1", "BAMBOO_KUEUE": "v2"})
