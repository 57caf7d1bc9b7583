"""Kueue, played by the test: a job's Workload from its creation to its end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.core.controller.builders import manifest

from bamboo_operator.admission.kueue import (
    AGAIN_S,
    GROUP,
    PLURAL,
    VERSION_AGE_S,
    Kueue,
    workload_name,
)
from bamboo_operator.config import ConfigError, from_env
from bamboo_operator.kube import api, informer
from bamboo_operator.kube.api import ApiError, Object
from bamboo_operator.kube.labels import WISH_ANNOTATION
from bamboo_operator.kube.object_views import job_view
from bamboo_operator.kube.owners import job_of
from bamboo_operator.reconcile.reconciler import Reconciler

from ..harness import PATH, Harness, failing
from .test_line import add_class, pods

VERSION = "v1beta2"


def api_of(version: str) -> str:
    return f"/apis/{GROUP}/{version}"


API = api_of(VERSION)
GPU = {"limits": {"nvidia.com/gpu": 1}}


@pytest.fixture
def queued(harness: Harness) -> Harness:
    """An operator that asks Kueue, and a job with 3 x 2 agents wanted, 1 x 2 at least."""
    serve(harness, "v1beta1", VERSION)
    kueue = Kueue(harness.kube, clock=lambda: harness.now)
    harness.reconciler = Reconciler(replace(harness.reconciler._ports, kueue=kueue))
    apply(harness)
    return harness


def serve(harness: Harness, *versions: str) -> None:
    """The cluster has these versions of Kueue's API."""
    group = {"versions": [{"version": version} for version in versions]}
    harness.kube.put(f"/apis/{GROUP}", group)


def apply(harness: Harness, **spec: Any) -> None:
    grid = {"count": 3, "stages": 2, "min": 1}
    body = manifest(
        **({"pipelines": grid, "worker": {"image": "agent:1", "resources": GPU}} | spec)
    )
    body["metadata"] |= {
        "uid": "uid-1",
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"kueue.x-k8s.io/queue-name": "team"},
    }
    old = harness.kube.objects.get(PATH)
    if old is not None and "status" in old:
        body["status"] = old["status"]
    harness.kube.put(PATH, body)


def path(harness: Harness, root: str = API) -> str:
    job = job_view(harness.kube.objects[PATH])
    return f"{root}/namespaces/ns/workloads/{workload_name(job.name, job.uid)}"


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
    shown = [queued.status[name] for name in ("pipelinesSummary", "agentsSummary")]
    assert shown == ["0/3", "0/6"], "what it waits for"


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
    shown = [queued.status[name] for name in ("pipelinesSummary", "agentsSummary")]
    assert shown == ["0/2", "0/4"], "what it has quota for"


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("Preempted", "True"),
        ("NodeFailures", "True"),
        ("PodsReadyTimeout", "False"),  # Kueue itself says when it may queue again
        ("AdmissionCheck", "False"),
    ],
)
async def test_after_some_evictions_it_queues_at_once(
    queued: Harness, reason: str, word: str
) -> None:
    await admitted(queued)
    say(queued, Evicted=True)
    body = workload(queued)
    assert body is not None
    evicted = next(c for c in body["status"]["conditions"] if c["type"] == "Evicted")
    evicted["reason"] = reason
    await queued.reconcile()
    await queued.reconcile()
    assert said(queued, "Requeued") == (word, reason)


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
    say(queued, QuotaReserved=False)
    await queued.reconcile()
    assert queued.condition("Running")["message"] == (
        "it waits in queue team until Kueue admits it: Kueue says QuotaReserved"
    )
    say(queued, count=2, QuotaReserved=True, Admitted=True, Evicted=False)
    await queued.reconcile()
    assert len(queued.pods()) == 2


async def test_kueue_hears_whether_the_job_works(
    queued: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With waitForPodsReady, it evicts a job that never says so, or admits nothing beside it."""
    await admitted(queued)
    actor = queued.jobs.find("uid-1")
    assert actor is not None
    training = actor.view()
    monkeypatch.setattr(actor, "view", lambda: training)
    monkeypatch.setattr(type(actor), "has_state", True)
    found = []
    for planned in (True, False, True):
        training = replace(training, planned=planned)
        await queued.reconcile()
        found.append(said(queued, "PodsReady"))
    assert found == [("True", "Started"), ("False", "WaitForRecovery"), ("True", "Recovered")]
    queued.kube.requests.clear()
    await queued.reconcile()
    assert ("replace", f"{path(queued)}/status") not in queued.kube.requests
    training = replace(training, planned=False)
    say(queued, Evicted=True)
    drop_pods(queued)
    await queued.reconcile()
    assert said(queued, "QuotaReserved")[0] == "False"
    assert said(queued, "PodsReady") == ("False", "WaitForStart")


async def test_a_job_has_the_priority_of_a_class_that_is_new(queued: Harness) -> None:
    await queued.reconcile()  # the classes are listed
    add_class(queued, "urgent", 1000)
    made = workload(queued)
    assert made is not None
    assert made["spec"]["priority"] == 0
    del queued.kube.objects[path(queued)]
    template = {"spec": {"priorityClassName": "urgent"}}
    apply(queued, worker={"image": "agent:1", "resources": GPU, "podTemplate": template})
    await queued.reconcile()
    made = workload(queued)
    assert made is not None
    assert made["spec"]["priority"] == 1000


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


async def test_an_ended_job_is_forgotten_though_kueue_refuses_its_end(queued: Harness) -> None:
    apply(queued, runPolicy={"pendingDeadlineSeconds": 5})
    await admitted(queued)
    queued.now += 6
    await queued.reconcile()
    drop_pods(queued)
    queued.kube.fail = failing("replace", "/workloads/", ApiError(422, "Invalid", "no"))
    with pytest.raises(ApiError):
        await queued.reconcile()
    assert queued.jobs.find("uid-1") is None


async def test_a_changed_job_that_waits_is_queued_again(queued: Harness) -> None:
    await queued.reconcile()
    apply(queued, pipelines={"count": 2, "stages": 2})
    await queued.reconcile()
    await queued.reconcile()
    made = workload(queued)
    assert made is not None
    (agents,) = made["spec"]["podSets"]
    assert agents["count"] == 4


async def test_agents_that_ask_for_more_before_the_first_plan_are_queued_again(
    queued: Harness,
) -> None:
    """The quota was given for less. Another image asks for nothing else."""
    await admitted(queued)
    queued.edit(worker={"image": "agent:2", "resources": GPU})
    for _ in range(2):
        await queued.reconcile()
    kept = workload(queued)
    assert kept is not None
    assert len(queued.pods()) == 4
    more = {"limits": {"nvidia.com/gpu": 8}}
    queued.edit(worker={"image": "agent:2", "resources": more})
    for _ in range(3):
        await queued.reconcile()
    assert queued.pods() == []
    made = workload(queued)
    assert made is not None
    (container,) = made["spec"]["podSets"][0]["template"]["spec"]["containers"]
    assert container["resources"] == more
    assert "status" not in made
    assert queued.condition("Suspended")["reason"] == "QueuedByKueue"


async def test_a_workload_of_an_earlier_version_counts(queued: Harness) -> None:
    """It does not say what it was made for."""
    await admitted(queued)
    made = workload(queued)
    assert made is not None
    assert made["metadata"].pop("annotations").keys() == {WISH_ANNOTATION}
    queued.kube.put(path(queued), made)
    await queued.reconcile()
    assert len(queued.pods()) == 4


async def test_a_minimum_above_the_quota_stops_no_job(queued: Harness) -> None:
    await admitted(queued, count=4)
    before = queued.pods()
    apply(queued, pipelines={"count": 3, "stages": 2, "min": 3})
    for _ in range(3):
        await queued.reconcile()
    assert len(before) == 4
    assert queued.pods() == before
    assert queued.condition("Suspended")["status"] == "False"
    made = workload(queued)
    assert made is not None
    assert made["spec"]["podSets"][0]["minCount"] == 2


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


async def test_a_queue_that_takes_nothing_is_named_with_the_remedy(queued: Harness) -> None:
    await queued.reconcile()
    say(queued, QuotaReserved=False)
    body = workload(queued)
    assert body is not None
    (condition,) = body["status"]["conditions"]
    condition |= {"reason": "Inadmissible", "message": "LocalQueue team doesn't exist"}
    queued.kube.put(path(queued), body)
    await queued.reconcile()
    assert queued.condition("Suspended")["message"] == (
        "it waits in queue team until Kueue admits it: LocalQueue team doesn't exist; create or"
        " start that queue, or put another queue's name into the label kueue.x-k8s.io/queue-name"
    )


async def test_it_speaks_the_best_version_of_the_api(queued: Harness) -> None:
    """Also after an upgrade of Kueue, which forgets how to read the old one."""
    old = api_of("v1beta1")
    serve(queued, "v1beta1")
    await queued.reconcile()
    assert {path for verb, path in queued.kube.requests if GROUP in path and verb == "create"} == {
        f"{old}/namespaces/ns/workloads"
    }
    made = queued.kube.objects.pop(path(queued, old))
    assert made["apiVersion"] == f"{GROUP}/v1beta1"
    queued.kube.put(path(queued), made | {"apiVersion": f"{GROUP}/{VERSION}"})
    say(queued, count=4, QuotaReserved=True, Admitted=True)
    serve(queued, "v1beta1", VERSION)
    queued.now += VERSION_AGE_S + 1
    await queued.reconcile()
    assert len(queued.pods()) == 4


@pytest.mark.parametrize(
    ("served", "text"),
    [
        ([], "Kueue is not installed in the cluster: install it, or remove the job's label"),
        (
            ["v3", "v2"],
            "the cluster's Kueue has the API versions v3, v2, and Bamboo knows v1beta2, v1beta1:"
            " install another version of one of them, or remove the job's label",
        ),
    ],
)
async def test_a_cluster_without_a_kueue_that_we_know_is_named_with_the_remedy(
    queued: Harness, served: list[str], text: str
) -> None:
    """Until it has one: nothing has to be started again."""
    del queued.kube.objects[f"/apis/{GROUP}"]
    if served:
        serve(queued, *served)
    assert await queued.reconcile() == AGAIN_S
    assert queued.condition("Suspended")["message"] == text
    assert {path for _, path in queued.kube.requests if GROUP in path} == {f"/apis/{GROUP}"}
    serve(queued, VERSION)
    queued.now += VERSION_AGE_S + 1
    for _ in range(2):
        await queued.reconcile()
    assert queued.condition("Suspended")["message"] == (
        "it waits in queue team until Kueue admits it"
    )


async def test_a_job_that_the_user_suspends_needs_no_kueue(queued: Harness) -> None:
    del queued.kube.objects[f"/apis/{GROUP}"]
    apply(queued, suspend=True)
    assert await queued.reconcile() is None
    assert queued.condition("Suspended")["reason"] == "UserRequested"


async def test_a_label_that_cannot_name_a_queue_is_refused(queued: Harness) -> None:
    body = queued.kube.objects[PATH]
    body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "Team_A"
    await queued.reconcile()
    accepted = queued.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecInvalid")
    assert accepted["message"] == (
        "metadata.labels[kueue.x-k8s.io/queue-name]: 'Team_A' cannot be the name of a LocalQueue:"
        " use lower-case letters, digits, dots and hyphens, first and last a letter or a digit"
    )
    assert workload(queued) is None


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
    registry = informer.registry(
        add=added.append,
        nodes_changed=lambda: None,
        seen=lambda resource: None,
        created=lambda body: None,
        queued=(GROUP, PLURAL),
    )
    found = {h.fn.__name__: h.fn for h in registry._watching.get_all_handlers()}
    owner = {"kind": "BambooJob", "name": "job", "controller": True}
    meta = {"namespace": "ns", "ownerReferences": [owner]}
    await found["on_workload"](event={"type": "ADDED", "object": {"metadata": meta}})  # type: ignore[call-arg]
    await found["on_workload"](event={"type": "ADDED", "object": {"metadata": {}}})  # type: ignore[call-arg]
    assert added == [("ns", "job")]


def test_kueue_is_asked_only_if_the_chart_says_so() -> None:
    assert from_env({"POD_IP": "10.0.0.1"}).kueue is False
    assert from_env({"POD_IP": "10.0.0.1", "BAMBOO_KUEUE": "true"}).kueue is True
    with pytest.raises(ConfigError, match=r"BAMBOO_KUEUE 'v1beta2' is not true or false"):
        from_env({"POD_IP": "10.0.0.1", "BAMBOO_KUEUE": "v1beta2"})
