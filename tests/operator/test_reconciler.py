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

from .world import PATH, World, failing


async def test_a_new_job_status_first_then_trust_then_pods(world: World) -> None:
    world.apply()
    await world.reconcile()
    assert world.pods() == ["job-p0-s0-i0", "job-p0-s1-i0"]
    writes = [path for verb, path in world.kube.requests if verb in ("apply", "create")]
    trust = api.config_map("ns", manifests.CA_CONFIG_MAP)
    mine = [w for w in writes if w != api.job_status("ns", "job") or w is writes[0]]
    assert mine[:2] == [api.job_status("ns", "job"), trust]
    assert world.status["pods"]["incarnation"] == 0
    assert world.kube.objects[trust]["data"] == {"ca.crt": "bundle", "address": "op:1"}
    assert world.condition("Accepted")["status"] == "True"


async def test_nothing_new_nothing_written(world: World) -> None:
    world.apply()
    await world.reconcile()
    await world.reconcile()
    world.kube.requests.clear()
    await world.reconcile()
    assert {verb for verb, _ in world.kube.requests} <= {"get", "list"}


async def test_a_job_that_is_gone_is_forgotten(world: World) -> None:
    world.apply()
    await world.reconcile()
    assert world.jobs.find("uid-1") is not None
    del world.kube.objects[PATH]
    assert await world.reconcile() is None
    assert world.jobs.find("uid-1") is None
    assert world.reconciler.figures == {}
    assert world.pods() == []


async def test_a_job_that_was_never_accepted_is_forgotten_too(world: World) -> None:
    world.apply(model={"factory": "m:b", "args": {"a b": 1}})
    await world.reconcile()
    del world.kube.objects[PATH]
    await world.reconcile()
    assert (world.reconciler._known, world.reconciler._uids) == ({}, {})


async def test_a_job_of_the_same_name_is_another_one(world: World) -> None:
    world.apply()
    await world.reconcile()
    body = manifest()
    body["metadata"] |= {"uid": "uid-2"}
    world.kube.put(PATH, body)
    await world.reconcile()
    assert world.jobs.find("uid-1") is None
    assert world.jobs.find("uid-2") is not None


async def test_a_bad_spec_is_reported_and_gets_no_pods(world: World) -> None:
    world.apply(model={"factory": "m:b", "args": {"a b": 1}})
    await world.reconcile()
    accepted = world.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecInvalid")
    assert "spec.model.args" in accepted["message"]
    assert world.pods() == []
    world.kube.requests.clear()
    await world.reconcile()
    assert [verb for verb, _ in world.kube.requests] == ["get"]
    world.apply()
    await world.reconcile()
    assert world.condition("Accepted")["status"] == "True"


async def test_a_spec_that_is_nested_too_deeply_is_refused(world: World) -> None:
    nest: object = 1
    for level in range(97):
        nest = [nest] if level % 2 else {"a": nest}
    world.apply(model={"factory": "m:b", "args": {"a": nest}})
    await world.reconcile()
    assert world.condition("Accepted")["status"] == "True"
    world.apply(model={"factory": "m:b", "args": {"a": [nest]}})
    await world.reconcile()
    accepted = world.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecInvalid")
    assert accepted["message"].startswith("spec: is nested 101 levels deep; at most 100")


async def test_args_that_change_are_refused(world: World) -> None:
    world.apply()
    await world.reconcile()
    body = world.kube.objects[PATH]
    body["spec"]["model"]["args"]["layers"] = 5
    await world.reconcile()
    assert world.condition("Accepted")["reason"] == "SpecChanged"
    assert world.condition("Complete")["status"] == "False"


async def test_pods_that_the_api_server_rejects(world: World) -> None:
    world.apply()
    world.kube.fail = failing("create", "/pods", ApiError(422, "Invalid", "bad image name"))
    await world.reconcile()
    assert world.again == [REFUSED_PAUSE_S]
    await world.reconcile()
    accepted = world.condition("Accepted")
    assert accepted["reason"] == "PodRejected"
    assert "bad image name: create the job again with another spec.worker" in accepted["message"]
    assert [v for v, p in world.kube.requests if v == "create"] == ["create"]
    world.kube.fail = lambda verb, path: None
    world.now += REFUSED_PAUSE_S
    await world.reconcile()
    await world.reconcile()
    assert len(world.pods()) == 2
    assert world.condition("Accepted")["status"] == "True"


async def test_progress_is_written_from_time_to_time(world: World) -> None:
    world.apply()
    await world.reconcile()
    await world.reconcile()
    world.status["progress"]["step"] = 3
    world.now += 1
    assert await world.reconcile() == PROGRESS_S - 1
    assert world.status["progress"]["step"] == 3
    world.now += PROGRESS_S
    await world.reconcile()
    assert world.status["progress"]["step"] == 0


async def test_a_pod_on_a_missing_node_is_force_deleted(world: World) -> None:
    world.apply()
    await world.reconcile()
    world.kube.objects[api.pod("ns", "job-p0-s0-i0")]["spec"]["nodeName"] = "node-z"
    await world.reconcile()
    assert world.forced == 1
    assert world.pods() == ["job-p0-s1-i0"]
    await world.reconcile()
    assert world.pods() == ["job-p0-s0-i1", "job-p0-s1-i0"]


async def test_an_end_with_exit_code_2_fails_the_job_for_good(world: World) -> None:
    world.apply()
    await world.reconcile()
    ended = {"terminated": {"exitCode": 2, "reason": "Error", "message": "no such module"}}
    world.kube.objects[api.pod("ns", "job-p0-s0-i0")]["status"] = {
        "phase": "Failed",
        "containerStatuses": [{"name": "agent", "state": ended}],
    }
    await world.reconcile()
    assert world.status["phase"] == "Failed"
    assert "no such module" in world.condition("Failed")["message"]
    world.now += FAILED_FAREWELL_S
    await world.reconcile()
    assert world.pods() == ["job-p0-s0-i0"]
    fresh = World()
    fresh.kube.objects = world.kube.objects
    await fresh.reconcile()
    assert fresh.status["phase"] == "Failed"
    assert fresh.pods() == ["job-p0-s0-i0"]
    assert fresh.jobs.find("uid-1") is None


async def test_a_finished_job_is_deleted_after_its_time(world: World) -> None:
    world.apply(runPolicy={"ttlSecondsAfterFinished": 60})
    world.kube.objects[PATH]["status"] = {"arbiter": {"outcome": "Complete", "reason": "X"}}
    left_s = await world.reconcile()
    assert left_s is not None
    world.now += 61
    await world.reconcile()
    assert PATH not in world.kube.objects


async def test_nodes_are_listed_once_for_many_jobs(world: World) -> None:
    def lists() -> int:
        return sum(path == api.nodes() for _, path in world.kube.requests)

    await world.nodes.list()
    await world.nodes.list()
    assert lists() == 1
    world.nodes.changed()
    await world.nodes.list()
    world.now += MAX_AGE_S + 1
    await world.nodes.list()
    assert lists() == 3
    world.nodes.changed()
    world.kube.fail = failing("list", "nodes", ApiError(500, "", "oops"))
    with pytest.raises(ApiError):
        await world.nodes.list()
    world.kube.fail = lambda verb, path: None
    assert len(await world.nodes.list()) == 3


async def test_jobs_with_equal_requests_share_the_node_views(world: World) -> None:
    small, big = (spec(worker=WorkerSpec("i", {"limits": {"cpu": n}})) for n in (1, 4))
    first = await world.nodes.views(small)
    assert await world.nodes.views(replace(small, seed=9)) is first
    assert [node.agents for node in first] == [8, 8, 8]
    assert [node.agents for node in await world.nodes.views(big)] == [2, 2, 2]
    del world.kube.objects[f"{api.nodes()}/node-a"]
    world.nodes.changed()
    assert [node.zone for node in await world.nodes.views(small)] == ["b", "c"]


async def test_a_deleted_ca_bundle_is_published_again(world: World) -> None:
    world.apply()
    await world.reconcile()
    trust = api.config_map("ns", manifests.CA_CONFIG_MAP)
    del world.kube.objects[trust]
    world.now += AGAIN_S + 1
    await world.reconcile()
    assert trust in world.kube.objects


async def test_all_jobs_of_a_namespace_own_its_ca_bundle(world: World) -> None:
    """It must not outlive them, nor go with the first of them."""
    trust = Trust(world.kube, "bundle", "op:1", clock=lambda: world.now)
    views = [JobView("ns", f"job-{i}", f"uid-{i}", 1, 0.0) for i in range(MAX_OWNERS + 2)]

    def owners() -> list[str]:
        path = api.config_map("ns", manifests.CA_CONFIG_MAP)
        references = world.kube.objects[path]["metadata"]["ownerReferences"]
        assert not any(reference.get("controller") for reference in references)
        return [reference["uid"] for reference in references]

    for view in views:
        await trust.publish(view)
    assert owners() == [f"uid-{i}" for i in range(MAX_OWNERS)]
    trust.forget("ns", ["uid-0", "uid-never"])
    await trust.publish(views[-1])
    assert owners() == [f"uid-{i}" for i in [*range(1, MAX_OWNERS), MAX_OWNERS + 1]]
    applied = len(world.kube.applied)
    await trust.publish(views[-2])
    assert len(world.kube.applied) == applied, "there is room for no more"
    trust.forget("ns", [view.uid for view in views])
    assert not trust._owners


async def test_a_deleted_job_no_longer_owns_the_ca_bundle(world: World) -> None:
    world.apply()
    await world.reconcile()
    path = api.config_map("ns", manifests.CA_CONFIG_MAP)
    (owner,) = world.kube.objects[path]["metadata"]["ownerReferences"]
    assert owner == {
        "apiVersion": "bamboo.dev/v1alpha1", "kind": "BambooJob", "name": "job", "uid": "uid-1",
    }  # fmt: skip
    body = manifest()
    body["metadata"] |= {"uid": "uid-2"}
    world.kube.put(PATH, body)
    await world.reconcile()
    (owner,) = world.kube.objects[path]["metadata"]["ownerReferences"]
    assert owner["uid"] == "uid-2"
