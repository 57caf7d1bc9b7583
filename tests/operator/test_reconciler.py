"""One reconcile against an API in memory: what is read, written and done, in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.controller.builders import manifest, spec

from bamboo_core.api.spec import WorkerSpec
from bamboo_core.controller.reconcile import FAILED_FAREWELL_S
from bamboo_core.controller.view import JobView
from bamboo_operator import api, manifests
from bamboo_operator.api import ApiError
from bamboo_operator.nodes import MAX_AGE_S
from bamboo_operator.reconciler import PROGRESS_S, REFUSED_PAUSE_S
from bamboo_operator.trust import AGAIN_S, MAX_OWNERS, Trust

from .desk import PATH, Desk, failing


async def test_a_new_job_status_first_then_trust_then_pods(desk: Desk) -> None:
    desk.apply()
    await desk.reconcile()
    assert desk.pods() == ["job-p0-s0-i0", "job-p0-s1-i0"]
    writes = [path for verb, path in desk.kube.requests if verb in ("apply", "create")]
    trust = api.config_map("ns", manifests.CA_CONFIG_MAP)
    mine = [w for w in writes if w != api.job_status("ns", "job") or w is writes[0]]
    assert mine[:2] == [api.job_status("ns", "job"), trust]
    assert desk.status["pods"]["incarnation"] == 0
    assert desk.kube.objects[trust]["data"] == {"ca.crt": "bundle", "address": "op:1"}
    assert desk.condition("Accepted")["status"] == "True"


async def test_nothing_new_nothing_written(desk: Desk) -> None:
    desk.apply()
    await desk.reconcile()
    await desk.reconcile()
    desk.kube.requests.clear()
    await desk.reconcile()
    assert {verb for verb, _ in desk.kube.requests} <= {"get", "list"}


async def test_a_job_that_is_gone_is_forgotten(desk: Desk) -> None:
    desk.apply()
    await desk.reconcile()
    assert desk.jobs.find("uid-1") is not None
    del desk.kube.objects[PATH]
    assert await desk.reconcile() is None
    assert desk.jobs.find("uid-1") is None
    assert desk.reconciler.figures == {}
    assert desk.pods() == []


async def test_a_job_that_was_never_accepted_is_forgotten_too(desk: Desk) -> None:
    desk.apply(model={"factory": "m:b", "args": {"a b": 1}})
    await desk.reconcile()
    del desk.kube.objects[PATH]
    await desk.reconcile()
    assert (desk.reconciler._known, desk.reconciler._uids) == ({}, {})


async def test_a_job_of_the_same_name_is_another_one(desk: Desk) -> None:
    desk.apply()
    await desk.reconcile()
    body = manifest()
    body["metadata"] |= {"uid": "uid-2"}
    desk.kube.put(PATH, body)
    await desk.reconcile()
    assert desk.jobs.find("uid-1") is None
    assert desk.jobs.find("uid-2") is not None


async def test_a_bad_spec_is_told_and_no_pods_are_made(desk: Desk) -> None:
    desk.apply(model={"factory": "m:b", "args": {"a b": 1}})
    await desk.reconcile()
    accepted = desk.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecInvalid")
    assert "spec.model.args" in accepted["message"]
    assert desk.pods() == []
    desk.kube.requests.clear()
    await desk.reconcile()
    assert [verb for verb, _ in desk.kube.requests] == ["get"]
    desk.apply()
    await desk.reconcile()
    assert desk.condition("Accepted")["status"] == "True"


async def test_a_spec_that_is_nested_too_deeply_is_refused(desk: Desk) -> None:
    nest: object = 1
    for level in range(97):
        nest = [nest] if level % 2 else {"a": nest}
    desk.apply(model={"factory": "m:b", "args": {"a": nest}})
    await desk.reconcile()
    assert desk.condition("Accepted")["status"] == "True"
    desk.apply(model={"factory": "m:b", "args": {"a": [nest]}})
    await desk.reconcile()
    accepted = desk.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecInvalid")
    assert accepted["message"].startswith("spec: is nested 101 levels deep; at most 100")


async def test_args_that_change_are_refused(desk: Desk) -> None:
    desk.apply()
    await desk.reconcile()
    body = desk.kube.objects[PATH]
    body["spec"]["model"]["args"]["layers"] = 5
    await desk.reconcile()
    assert desk.condition("Accepted")["reason"] == "SpecChanged"
    assert desk.condition("Complete")["status"] == "False"


async def test_pods_that_the_api_server_rejects(desk: Desk) -> None:
    desk.apply()
    desk.kube.fail = failing("create", "/pods", ApiError(422, "Invalid", "bad image name"))
    await desk.reconcile()
    assert desk.again == [REFUSED_PAUSE_S]
    await desk.reconcile()
    accepted = desk.condition("Accepted")
    assert accepted["reason"] == "PodRejected"
    assert "bad image name: create the job again with another spec.worker" in accepted["message"]
    assert [v for v, p in desk.kube.requests if v == "create"] == ["create"]
    desk.kube.fail = lambda verb, path: None
    desk.now += REFUSED_PAUSE_S
    await desk.reconcile()
    await desk.reconcile()
    assert len(desk.pods()) == 2
    assert desk.condition("Accepted")["status"] == "True"


async def test_progress_is_written_now_and_then(desk: Desk) -> None:
    desk.apply()
    await desk.reconcile()
    await desk.reconcile()
    desk.status["progress"]["step"] = 3
    desk.now += 1
    assert await desk.reconcile() == PROGRESS_S - 1
    assert desk.status["progress"]["step"] == 3
    desk.now += PROGRESS_S
    await desk.reconcile()
    assert desk.status["progress"]["step"] == 0


async def test_a_pod_on_a_node_that_is_gone_is_forced_away(desk: Desk) -> None:
    desk.apply()
    await desk.reconcile()
    desk.kube.objects[api.pod("ns", "job-p0-s0-i0")]["spec"]["nodeName"] = "node-z"
    await desk.reconcile()
    assert desk.forced == 1
    assert desk.pods() == ["job-p0-s1-i0"]
    await desk.reconcile()
    assert desk.pods() == ["job-p0-s0-i1", "job-p0-s1-i0"]


async def test_an_end_with_exit_code_2_fails_the_job_for_good(desk: Desk) -> None:
    desk.apply()
    await desk.reconcile()
    ended = {"terminated": {"exitCode": 2, "reason": "Error", "message": "no such module"}}
    desk.kube.objects[api.pod("ns", "job-p0-s0-i0")]["status"] = {
        "phase": "Failed",
        "containerStatuses": [{"name": "agent", "state": ended}],
    }
    await desk.reconcile()
    assert desk.status["phase"] == "Failed"
    assert "no such module" in desk.condition("Failed")["message"]
    desk.now += FAILED_FAREWELL_S
    await desk.reconcile()
    assert desk.pods() == ["job-p0-s0-i0"]
    fresh = Desk()
    fresh.kube.objects = desk.kube.objects
    await fresh.reconcile()
    assert fresh.status["phase"] == "Failed"
    assert fresh.pods() == ["job-p0-s0-i0"]
    assert fresh.jobs.find("uid-1") is None


async def test_a_finished_job_is_deleted_after_its_time(desk: Desk) -> None:
    desk.apply(runPolicy={"ttlSecondsAfterFinished": 60})
    desk.kube.objects[PATH]["status"] = {"arbiter": {"outcome": "Complete", "reason": "X"}}
    left_s = await desk.reconcile()
    assert left_s is not None
    desk.now += 61
    await desk.reconcile()
    assert PATH not in desk.kube.objects


async def test_nodes_are_listed_once_for_many_jobs(desk: Desk) -> None:
    def lists() -> int:
        return sum(path == api.nodes() for _, path in desk.kube.requests)

    await desk.nodes.list()
    await desk.nodes.list()
    assert lists() == 1
    desk.nodes.changed()
    await desk.nodes.list()
    desk.now += MAX_AGE_S + 1
    await desk.nodes.list()
    assert lists() == 3
    desk.nodes.changed()
    desk.kube.fail = failing("list", "nodes", ApiError(500, "", "oops"))
    with pytest.raises(ApiError):
        await desk.nodes.list()
    desk.kube.fail = lambda verb, path: None
    assert len(await desk.nodes.list()) == 3


async def test_jobs_that_ask_for_the_same_share_the_view_of_nodes(desk: Desk) -> None:
    small, big = (spec(worker=WorkerSpec("i", {"limits": {"cpu": n}})) for n in (1, 4))
    first = await desk.nodes.views(small)
    assert await desk.nodes.views(replace(small, seed=9)) is first
    assert [node.agents for node in first] == [8, 8, 8]
    assert [node.agents for node in await desk.nodes.views(big)] == [2, 2, 2]
    del desk.kube.objects[f"{api.nodes()}/node-a"]
    desk.nodes.changed()
    assert [node.zone for node in await desk.nodes.views(small)] == ["b", "c"]


async def test_trust_that_somebody_deleted_comes_back(desk: Desk) -> None:
    desk.apply()
    await desk.reconcile()
    trust = api.config_map("ns", manifests.CA_CONFIG_MAP)
    del desk.kube.objects[trust]
    desk.now += AGAIN_S + 1
    await desk.reconcile()
    assert trust in desk.kube.objects


async def test_the_jobs_of_a_namespace_own_the_trust_together(desk: Desk) -> None:
    """It must not outlive them, nor go with the first of them."""
    trust = Trust(desk.kube, "bundle", "op:1", clock=lambda: desk.now)
    views = [JobView("ns", f"job-{i}", f"uid-{i}", 1, 0.0) for i in range(MAX_OWNERS + 2)]

    def owners() -> list[str]:
        path = api.config_map("ns", manifests.CA_CONFIG_MAP)
        references = desk.kube.objects[path]["metadata"]["ownerReferences"]
        assert not any(reference.get("controller") for reference in references)
        return [reference["uid"] for reference in references]

    for view in views:
        await trust.publish(view)
    assert owners() == [f"uid-{i}" for i in range(MAX_OWNERS)]
    trust.forget("ns", ["uid-0", "uid-never"])
    await trust.publish(views[-1])
    assert owners() == [f"uid-{i}" for i in [*range(1, MAX_OWNERS), MAX_OWNERS + 1]]
    applied = len(desk.kube.applied)
    await trust.publish(views[-2])
    assert len(desk.kube.applied) == applied, "there is room for no more"
    trust.forget("ns", [view.uid for view in views])
    assert not trust._owners


async def test_a_deleted_job_does_not_own_the_trust_any_more(desk: Desk) -> None:
    desk.apply()
    await desk.reconcile()
    path = api.config_map("ns", manifests.CA_CONFIG_MAP)
    (owner,) = desk.kube.objects[path]["metadata"]["ownerReferences"]
    assert owner == {
        "apiVersion": "bamboo.dev/v1alpha1", "kind": "BambooJob", "name": "job", "uid": "uid-1",
    }  # fmt: skip
    body = manifest()
    body["metadata"] |= {"uid": "uid-2"}
    desk.kube.put(PATH, body)
    await desk.reconcile()
    (owner,) = desk.kube.objects[path]["metadata"]["ownerReferences"]
    assert owner["uid"] == "uid-2"
