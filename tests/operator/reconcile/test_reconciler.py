"""One reconcile against an API in memory: what is read, written and done, in which order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.core.controller.builders import manifest, spec

from bamboo_core.api.spec import WorkerSpec
from bamboo_core.controller.reconcile import FAILED_FAREWELL_S
from bamboo_core.controller.view import JobView
from bamboo_operator.kube import api
from bamboo_operator.kube.api import ApiError
from bamboo_operator.pods.deleted_pods import MOST, DeletedPods
from bamboo_operator.pods.node_cache import MAX_AGE_S
from bamboo_operator.reconcile.job_pods import REFUSED_PAUSE_S
from bamboo_operator.status.writer import PROGRESS_S
from bamboo_operator.trust.bundle import AGAIN_S, CA_CONFIG_MAP, MAX_OWNERS, TOGETHER_S, Trust

from ..harness import PATH, Harness, failing
from ..objects import node_object, pod_object


async def test_a_new_job_status_first_then_trust_then_pods(harness: Harness) -> None:
    harness.apply()
    await harness.reconcile()
    assert harness.pods() == ["job-p0-s0-i0", "job-p0-s1-i0"]
    writes = [path for verb, path in harness.kube.requests if verb in ("apply", "create")]
    trust = api.config_map("ns", CA_CONFIG_MAP)
    mine = [w for w in writes if w != api.job_status("ns", "job") or w is writes[0]]
    assert mine[:2] == [api.job_status("ns", "job"), trust]
    assert harness.status["pods"]["incarnation"] == 0
    assert harness.kube.objects[trust]["data"] == {"ca.crt": "bundle", "address": "op:1"}
    assert harness.condition("Accepted")["status"] == "True"


async def test_nothing_new_nothing_written(harness: Harness) -> None:
    harness.apply()
    await harness.reconcile()
    await harness.reconcile()
    harness.kube.requests.clear()
    await harness.reconcile()
    assert {verb for verb, _ in harness.kube.requests} <= {"get", "list"}


async def test_a_pod_on_a_node_that_is_newer_than_our_list_stays(harness: Harness) -> None:
    """Events of pods and of nodes may arrive in any order."""
    harness.apply()
    await harness.reconcile()
    harness.kube.put(f"{api.nodes()}/node-new", node_object("node-new", "a"))
    harness.kube.put(api.pod("ns", "job-p0-s0-i0"), pod_object(node="node-new"))
    await harness.reconcile()
    assert harness.pods() == ["job-p0-s0-i0", "job-p0-s1-i0"]
    actor = harness.jobs.find("uid-1")
    assert actor is not None
    assert actor._leadership._reported_lost == set()


async def test_a_pod_whose_node_is_gone_is_deleted_after_one_more_look(harness: Harness) -> None:
    def lists() -> int:
        return harness.kube.requests.count(("list", api.nodes()))

    harness.apply()
    await harness.reconcile()
    del harness.kube.objects[f"{api.nodes()}/node-a"]
    harness.nodes.changed()
    await harness.reconcile()  # lists the nodes, without it
    for name in ("job-p0-s0-i0", "job-p0-s1-i0"):
        harness.kube.put(api.pod("ns", name), pod_object(name, node="node-a"))
    before = lists()
    harness.kube.fail = failing("delete", "/pods/", ApiError(500, "", "not now"))
    for _ in range(3):
        with pytest.raises(ApiError, match="not now"):
            await harness.reconcile()
    assert lists() == before + 1
    harness.kube.fail = lambda verb, path: None
    await harness.reconcile()
    assert "job-p0-s0-i0" not in harness.pods()


async def test_a_job_that_is_gone_is_forgotten(harness: Harness) -> None:
    harness.apply()
    await harness.reconcile()
    assert harness.jobs.find("uid-1") is not None
    del harness.kube.objects[PATH]
    assert await harness.reconcile() is None
    assert harness.jobs.find("uid-1") is None
    assert harness.reconciler.shown.figures == {}
    assert harness.pods() == []


async def test_a_job_that_was_never_accepted_is_forgotten_too(harness: Harness) -> None:
    harness.apply(model={"factory": "m:b", "args": {"a b": 1}})
    await harness.reconcile()
    del harness.kube.objects[PATH]
    await harness.reconcile()
    assert (harness.reconciler._known, harness.reconciler._uids) == ({}, {})


async def test_a_job_of_the_same_name_is_another_one(harness: Harness) -> None:
    harness.apply()
    await harness.reconcile()
    body = manifest()
    body["metadata"] |= {"uid": "uid-2"}
    harness.kube.put(PATH, body)
    await harness.reconcile()
    assert harness.jobs.find("uid-1") is None
    assert harness.jobs.find("uid-2") is not None


async def test_a_bad_spec_is_reported_and_gets_no_pods(harness: Harness) -> None:
    harness.apply(model={"factory": "m:b", "args": {"a b": 1}})
    await harness.reconcile()
    accepted = harness.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecInvalid")
    assert "spec.model.args" in accepted["message"]
    assert harness.pods() == []
    harness.kube.requests.clear()
    await harness.reconcile()
    assert [verb for verb, _ in harness.kube.requests] == ["get"]
    harness.apply()
    await harness.reconcile()
    assert harness.condition("Accepted")["status"] == "True"


async def test_a_spec_that_is_nested_too_deeply_is_refused(harness: Harness) -> None:
    nest: object = 1
    for level in range(97):
        nest = [nest] if level % 2 else {"a": nest}
    harness.apply(model={"factory": "m:b", "args": {"a": nest}})
    await harness.reconcile()
    assert harness.condition("Accepted")["status"] == "True"
    harness.apply(model={"factory": "m:b", "args": {"a": [nest]}})
    await harness.reconcile()
    accepted = harness.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecInvalid")
    assert accepted["message"].startswith("spec: is nested 101 levels deep; at most 100")


async def test_args_that_change_are_refused(harness: Harness) -> None:
    harness.apply()
    await harness.reconcile()
    body = harness.kube.objects[PATH]
    body["spec"]["model"]["args"]["layers"] = 5
    await harness.reconcile()
    assert harness.condition("Accepted")["reason"] == "SpecChanged"
    assert harness.condition("Complete")["status"] == "False"


async def test_pods_that_the_api_server_rejects(harness: Harness) -> None:
    harness.apply()
    harness.kube.fail = failing("create", "/pods", ApiError(422, "Invalid", "bad image name"))
    await harness.reconcile()
    assert harness.again == [REFUSED_PAUSE_S]
    await harness.reconcile()
    accepted = harness.condition("Accepted")
    assert accepted["reason"] == "PodRejected"
    assert "bad image name: remove what forbids them; or change spec.worker" in accepted["message"]
    waiting = harness.condition("CapacityAvailable")["message"]
    assert "no pod yet for 2 of 2 agents (none is made before" in waiting
    assert ": the last ones were refused; see condition Accepted)" in waiting
    assert [v for v, p in harness.kube.requests if v == "create"] == ["create"]
    harness.kube.fail = lambda verb, path: None
    harness.now += REFUSED_PAUSE_S
    await harness.reconcile()
    await harness.reconcile()
    assert len(harness.pods()) == 2
    assert harness.condition("Accepted")["status"] == "True"


@pytest.mark.parametrize("change", [{"pipelines": {"count": 1, "stages": 2}}, {"suspend": True}])
async def test_a_rejection_is_over_once_the_job_wants_no_further_pod(
    change: dict[str, Any], harness: Harness
) -> None:
    harness.apply()
    await harness.reconcile()
    harness.kube.objects[PATH]["spec"]["pipelines"]["count"] = 2
    harness.kube.fail = failing("create", "/pods", ApiError(403, "Forbidden", "exceeded quota"))
    await harness.reconcile()
    await harness.reconcile()
    assert harness.condition("Accepted")["reason"] == "PodRejected"
    harness.kube.objects[PATH]["spec"] |= change
    harness.now += REFUSED_PAUSE_S
    await harness.reconcile()
    assert harness.condition("Accepted")["status"] == "True"


async def test_progress_is_written_from_time_to_time(harness: Harness) -> None:
    harness.apply()
    await harness.reconcile()
    await harness.reconcile()
    harness.status["progress"]["step"] = 3
    harness.now += 1
    assert await harness.reconcile() == PROGRESS_S - 1
    assert harness.status["progress"]["step"] == 3
    harness.now += PROGRESS_S
    await harness.reconcile()
    assert harness.status["progress"]["step"] == 0


async def test_a_pod_on_a_missing_node_is_force_deleted(harness: Harness) -> None:
    harness.apply()
    await harness.reconcile()
    harness.kube.objects[api.pod("ns", "job-p0-s0-i0")]["spec"]["nodeName"] = "node-z"
    await harness.reconcile()
    assert harness.forced == 1
    assert harness.pods() == ["job-p0-s1-i0"]
    await harness.reconcile()
    assert harness.pods() == ["job-p0-s0-i1", "job-p0-s1-i0"]


def fail(harness: Harness, name: str, code: int, message: str) -> None:
    """End a pod as a kubelet does."""
    body = harness.kube.objects[api.pod("ns", name)]
    body["spec"]["nodeName"] = "node-a"
    ended = {"terminated": {"exitCode": code, "reason": "Error", "message": message}}
    body["status"] = {
        "phase": "Failed",
        "containerStatuses": [{"name": "agent", "state": ended}],
    }


async def test_two_ends_with_exit_code_2_fail_the_job_for_good(harness: Harness) -> None:
    harness.apply()
    await harness.reconcile()
    fail(harness, "job-p0-s0-i0", 2, "UserCodeFailed: no such module")
    await harness.reconcile()
    assert harness.status["phase"] == "Pending"
    fail(harness, "job-p0-s1-i0", 2, "UserCodeFailed: no such module")
    await harness.reconcile()
    assert harness.status["phase"] == "Failed"
    assert "no such module" in harness.condition("Failed")["message"]
    harness.now += FAILED_FAREWELL_S
    await harness.reconcile()
    assert harness.pods() == ["job-p0-s0-i0", "job-p0-s1-i0"]
    fresh = Harness()
    fresh.kube.objects = harness.kube.objects
    await fresh.reconcile()
    assert fresh.status["phase"] == "Failed"
    assert fresh.pods() == ["job-p0-s0-i0", "job-p0-s1-i0"]
    assert fresh.jobs.find("uid-1") is None


async def test_failures_survive_the_operator_and_new_pods_avoid_their_node(
    harness: Harness,
) -> None:
    harness.apply(placement={"adjacency": "Cluster"})
    for number in range(2):
        await harness.reconcile()
        harness.hear(f"job-p0-s0-i{number}")
        fail(harness, f"job-p0-s0-i{number}", 1, "TaskFailed: CUDA error")
        await harness.reconcile()
        harness.now += 10
    known = harness.status["failures"]
    assert (known["total"], known["unforgiven"]) == (2, 2)
    assert known["causes"] == [{"cause": "TaskFailed", "count": 2}]
    assert (known["last"]["node"], known["last"]["agent"]) == ("node-a", "p0-s0-i1")
    assert known["avoided"][0]["machine"] == "uid-node-a/boot-1"
    fresh = Harness()
    fresh.kube.objects, fresh.now = harness.kube.objects, harness.now
    await fresh.reconcile()
    body = fresh.kube.objects[api.pod("ns", "job-p0-s0-i2")]
    assert body["metadata"]["annotations"]["bamboo.dev/avoids"] == "node-a"
    assert "new agents avoid node-a until" in fresh.condition("CapacityAvailable")["message"]
    assert fresh.status["failures"] == known


async def test_a_pod_that_was_deleted_at_its_end_counts_once(harness: Harness) -> None:
    """An agent that is killed for its memory has no last words, and is dismissed at once."""
    harness.apply()
    await harness.reconcile()
    for name in harness.pods():
        harness.hear(name)
    fail(harness, "job-p0-s0-i0", 1, "")
    last = harness.kube.objects.pop(api.pod("ns", "job-p0-s0-i0"))
    await harness.reconcile()
    assert harness.status["failures"]["total"] == 0
    harness.deleted_pods.deleted(last)
    await harness.reconcile()
    assert harness.status["failures"]["total"] == 1
    harness.deleted_pods.deleted(last)
    await harness.reconcile()
    fail(harness, "job-p0-s1-i0", 1, "")
    await harness.reconcile()
    assert harness.status["failures"]["total"] == 2
    listed = harness.kube.objects.pop(api.pod("ns", "job-p0-s1-i0"))
    await harness.reconcile()
    harness.deleted_pods.deleted(listed)
    await harness.reconcile()
    assert harness.status["failures"]["total"] == 2


async def test_pods_that_end_otherwise_or_elsewhere_are_not_shown(harness: Harness) -> None:
    pods = harness.deleted_pods
    pods.deleted(pod_object())
    assert pods.of("ns", "bamboo.dev/job=job", []) == []
    ended = pod_object(phase="Failed", state={"terminated": {"exitCode": 1}})
    pods.deleted(ended)
    assert pods.of("ns", "bamboo.dev/job=other", []) == []
    assert pods.of("other", "bamboo.dev/job=job", []) == []
    assert pods.of("ns", "bamboo.dev/job=job", [ended]) == []
    assert pods.of("ns", "bamboo.dev/job=job", []) == [ended]


def test_deleted_pods_are_bounded() -> None:
    pods = DeletedPods()
    for number in range(MOST + 9):
        name = f"job-p0-s0-i{number}"
        pods.deleted(pod_object(name, state={"terminated": {"exitCode": 1}}))
    left = pods.of("ns", "bamboo.dev/job=job", [])
    assert (len(left), left[0]["metadata"]["name"]) == (MOST, "job-p0-s0-i9")


async def test_a_finished_job_is_deleted_after_its_time(harness: Harness) -> None:
    harness.apply(runPolicy={"ttlSecondsAfterFinished": 60})
    harness.kube.objects[PATH]["status"] = {"arbiter": {"outcome": "Complete", "reason": "X"}}
    left_s = await harness.reconcile()
    assert left_s is not None
    harness.now += 61
    await harness.reconcile()
    assert PATH not in harness.kube.objects


async def test_nodes_are_listed_once_for_many_jobs(harness: Harness) -> None:
    def lists() -> int:
        return sum(path == api.nodes() for _, path in harness.kube.requests)

    await harness.nodes.list()
    await harness.nodes.list()
    assert lists() == 1
    harness.nodes.changed()
    await harness.nodes.list()
    harness.now += MAX_AGE_S + 1
    await harness.nodes.list()
    assert lists() == 3
    harness.nodes.changed()
    harness.kube.fail = failing("list", "nodes", ApiError(500, "", "oops"))
    with pytest.raises(ApiError):
        await harness.nodes.list()
    harness.kube.fail = lambda verb, path: None
    assert len(await harness.nodes.list()) == 3


async def test_jobs_with_equal_requests_share_the_node_views(harness: Harness) -> None:
    small, big = (spec(worker=WorkerSpec("i", {"limits": {"cpu": n}})) for n in (1, 4))
    first = await harness.nodes.views(small)
    assert await harness.nodes.views(replace(small, seed=9)) is first
    assert [node.agents for node in first] == [8, 8, 8]
    assert [node.agents for node in await harness.nodes.views(big)] == [2, 2, 2]
    del harness.kube.objects[f"{api.nodes()}/node-a"]
    harness.nodes.changed()
    assert [node.zone for node in await harness.nodes.views(small)] == ["b", "c"]


async def test_a_deleted_ca_bundle_is_published_again(harness: Harness) -> None:
    harness.apply()
    await harness.reconcile()
    trust = api.config_map("ns", CA_CONFIG_MAP)
    del harness.kube.objects[trust]
    harness.now += AGAIN_S + 1
    await harness.reconcile()
    assert trust in harness.kube.objects


async def test_all_jobs_of_a_namespace_own_its_ca_bundle(harness: Harness) -> None:
    """It must not outlive them, nor go with the first of them."""
    trust = Trust(harness.kube, "bundle", "op:1", clock=lambda: harness.now)
    views = [JobView("ns", f"job-{i}", f"uid-{i}", 1, 0.0) for i in range(MAX_OWNERS + 2)]

    def owners() -> list[str]:
        path = api.config_map("ns", CA_CONFIG_MAP)
        references = harness.kube.objects[path]["metadata"]["ownerReferences"]
        assert not any(reference.get("controller") for reference in references)
        return [reference["uid"] for reference in references]

    for view in views:
        await trust.publish(view)
    assert owners() == ["uid-0"]
    harness.now += TOGETHER_S
    await trust.publish(views[0])
    assert owners() == [f"uid-{i}" for i in range(MAX_OWNERS)]
    await trust.forget("ns", ["uid-0", "uid-never"])
    await trust.publish(views[-1])
    assert owners() == [f"uid-{i}" for i in [*range(1, MAX_OWNERS), MAX_OWNERS + 1]]
    applied = len(harness.kube.applied)
    await trust.publish(views[-2])
    assert len(harness.kube.applied) == applied, "there is room for no more"
    await trust.forget("ns", [view.uid for view in views])
    assert not trust._owners
    assert not trust._has_news
    assert api.config_map("ns", CA_CONFIG_MAP) not in harness.kube.objects


async def test_new_owners_of_the_ca_bundle_are_written_together(harness: Harness) -> None:
    """With each of a hundred jobs, the config map would be written again. An owner that could not
    be written is written next time."""
    trust = Trust(harness.kube, "bundle", "op:1", clock=lambda: harness.now)
    views = [JobView("ns", f"job-{i}", f"uid-{i}", 1, 0.0) for i in range(4)]
    for view in views[:3]:
        await trust.publish(view)
    assert len(harness.kube.applied) == 1
    harness.now += TOGETHER_S
    harness.kube.fail = failing("apply", "/configmaps", ApiError(503, "Down", "no"))
    with pytest.raises(ApiError):
        await trust.publish(views[0])
    harness.kube.fail = lambda verb, path: None
    for view in (views[0], views[3], views[1]):
        await trust.publish(view)
    assert len(harness.kube.applied) == 2
    harness.now += TOGETHER_S
    await trust.publish(views[1])
    references = harness.kube.applied[-1][1]["metadata"]["ownerReferences"]
    assert [reference["uid"] for reference in references] == [view.uid for view in views]
    applied = len(harness.kube.applied)
    harness.now += TOGETHER_S
    await trust.publish(views[2])
    assert len(harness.kube.applied) == applied


async def test_a_deleted_job_no_longer_owns_the_ca_bundle(harness: Harness) -> None:
    harness.apply()
    await harness.reconcile()
    path = api.config_map("ns", CA_CONFIG_MAP)
    (owner,) = harness.kube.objects[path]["metadata"]["ownerReferences"]
    assert owner == {
        "apiVersion": "bamboo.dev/v1alpha1", "kind": "BambooJob", "name": "job", "uid": "uid-1",
    }  # fmt: skip
    body = manifest()
    body["metadata"] |= {"uid": "uid-2"}
    harness.kube.put(PATH, body)
    await harness.reconcile()
    (owner,) = harness.kube.objects[path]["metadata"]["ownerReferences"]
    assert owner["uid"] == "uid-2"


async def test_a_pod_without_a_zone_has_that_of_its_node(harness: Harness) -> None:
    """The nodes suit no agent, so no zone is known."""
    for zone in "abc":
        node = harness.kube.objects[f"{api.nodes()}/node-{zone}"]
        node["metadata"]["labels"]["gpu"] = "old"
    selector = {"nodeSelector": {"gpu": "new"}}
    harness.apply(worker={"image": "agent:1", "podTemplate": {"spec": selector}})
    await harness.reconcile()
    assert harness.pods() == ["job-p0-s0-i0", "job-p0-s1-i0"]
    for name, zone in zip(harness.pods(), "ab", strict=True):
        body = harness.kube.objects[api.pod("ns", name)]
        assert "topology.kubernetes.io/zone" not in body["spec"]["nodeSelector"]
        assert "podAntiAffinity" in body["spec"]["affinity"]
        body["spec"]["nodeName"] = f"node-{zone}"
    await harness.reconcile()
    assert [found["zone"] for found in harness.status["agents"]] == ["a", "b"]
    assert harness.condition("ZoneSpreadSatisfied")["reason"] == "NeighboursSeparated"


async def test_dry_zones_survive_the_operator(harness: Harness) -> None:
    harness.apply(pipelines={"count": 1, "stages": 1})
    await harness.reconcile()
    (name,) = harness.pods()
    body = harness.kube.objects[api.pod("ns", name)]
    refusal = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
               "lastTransitionTime": "1970-01-01T00:00:01Z"}  # fmt: skip
    body["status"] = {"conditions": [refusal]}
    await harness.reconcile()
    (dry,) = harness.status["dryZones"]
    zone = body["spec"]["nodeSelector"]["topology.kubernetes.io/zone"]
    assert (dry["zone"], dry["times"], dry["since"]) == (zone, 1, "1970-01-01T00:16:40Z")
    fresh = Harness()
    fresh.kube.objects = harness.kube.objects
    await fresh.reconcile()
    (kept,) = fresh.status["dryZones"]
    assert kept == dry
    (new,) = fresh.pods()
    moved = fresh.kube.objects[api.pod("ns", new)]["spec"]["nodeSelector"]
    assert moved["topology.kubernetes.io/zone"] != zone
