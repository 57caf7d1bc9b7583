"""The whole operator in this process, against a real API server, with the chart's rights only."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import generate_latest

from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.model.ids import AgentId, Fence
from bamboo_devcluster.kube.client import KubeApi
from bamboo_operator.app import LEASE, App
from bamboo_operator.election.other_releases import ACCOUNT, SERVES
from bamboo_operator.kube import api, object_views
from bamboo_operator.kube.client import connect
from bamboo_operator.pods.disruption_budgets import Budgets
from bamboo_operator.process.event_loop import LoopHearing
from bamboo_operator.status import durable_facts
from bamboo_operator.trust import authentication, seals, tls
from bamboo_operator.trust.bundle import CA_CONFIG_MAP

from .operators import Running, bound_token, conflict, until


async def test_a_job_gets_pods_and_nothing_is_forbidden(operator: Running) -> None:
    body = await operator.apply()

    async def four() -> bool:
        return len(await operator.pods()) == 4

    await until(four)
    for pod in await operator.pods():
        (owner,) = pod["metadata"]["ownerReferences"]
        assert owner["uid"] == body["metadata"]["uid"]
    status = (await operator.job())["status"]
    assert status["selector"] == "bamboo.dev/job=job,bamboo.dev/stage=0"
    assert status["identity"]
    assert (await operator.condition("Accepted"))["status"] == "True"
    trust = await operator.admin.get(api.config_map(operator.namespace, CA_CONFIG_MAP))
    assert trust is not None
    assert [o["uid"] for o in trust["metadata"]["ownerReferences"]] == [body["metadata"]["uid"]]
    await operator.admin.delete(api.job(operator.namespace, "job"))

    async def none() -> bool:
        return not await operator.pods()

    await until(none)
    text = generate_latest(operator.app.metrics.registry).decode()
    assert 'code="403"' not in text
    assert 'code="201",resource="pods"' in text
    assert await operator.stop() == 0


async def test_an_agent_that_fails_is_counted_even_if_its_pod_is_deleted_at_once(
    operator: Running, devcluster_api: KubeApi
) -> None:
    await operator.apply()

    async def first() -> dict[str, Any] | None:
        return next(iter(await operator.pods()), None)

    pod = await until(first)
    path = api.pod(operator.namespace, pod["metadata"]["name"])
    ended = {"exitCode": 137, "reason": "OOMKilled"}
    state = {"name": "agent", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    status = {"phase": "Failed", "containerStatuses": [state | {"state": {"terminated": ended}}]}
    await devcluster_api.patch(f"{path}/status", {"status": status})
    await operator.admin.delete(path, grace_s=0)

    async def causes() -> Any:
        return ((await operator.job()).get("status") or {}).get("failures", {}).get("causes")

    assert await until(causes) == [{"cause": "OOMKilled", "count": 1}]
    uid = pod["metadata"]["uid"]

    async def is_known() -> bool:
        """By its deletion or by a list before."""
        reconciler = operator.app._reconciler
        assert reconciler is not None
        return uid in reconciler._ports.deleted_pods._counted

    await until(is_known)
    assert await causes() == [{"cause": "OOMKilled", "count": 1}]


async def test_the_agents_of_a_job_that_is_deleted_without_them_are_released(
    operator: Running, devcluster_api: KubeApi
) -> None:
    """By ``kubectl delete --cascade=orphan``: the garbage collector takes the job off its pods."""
    await operator.apply()

    async def some() -> bool:
        return bool(await operator.pods())

    await until(some)
    path = api.job(operator.namespace, "job")
    body = await operator.job()
    await Budgets(operator.admin).keep(object_views.job_view(body), 2)  # as of a job that trains
    await devcluster_api.delete(path, {"propagationPolicy": "Orphan"})
    budgets = api.disruption_budgets(operator.namespace)
    trust = api.config_map(operator.namespace, CA_CONFIG_MAP)

    async def are_gone() -> bool:
        left = await operator.pods() or await operator.admin.list(budgets)
        return not (left or [p for p in (path, trust) if await operator.admin.get(p)])

    await until(are_gone)


async def test_a_bad_spec_is_reported(operator: Running) -> None:
    await operator.apply(model={"args": {"not a name": 1}})

    async def refused() -> bool:
        return (await operator.condition("Accepted")).get("status") == "False"

    await until(refused)
    found = await operator.condition("Accepted")
    assert found["reason"] == "SpecInvalid"
    assert "spec.model.args: 'not a name' is not a Python identifier" in found["message"]


async def test_a_grid_without_enough_nodes_is_reported(operator: Running) -> None:
    """Six nodes with four GPUs each; the pods wait, since nodes may come."""
    whole_node = {"resources": {"limits": {"nvidia.com/gpu": 4}}}
    await operator.apply(pipelines={"count": 4, "stages": 2}, worker=whole_node)

    async def short() -> bool:
        found = await operator.condition("ZoneSpreadSatisfied")
        return len(await operator.pods()) == 8 and found.get("status") == "Unknown"

    await until(short)
    found = await operator.condition("ZoneSpreadSatisfied")
    assert found["reason"] == "WaitingForNodes"
    assert "4 x 2 needs 8 agents; usable by zone: zone-a: 2, zone-b: 2" in found["message"]
    assert "the next node helps most in zone zone-" in found["message"]
    assert (await operator.job())["status"]["feasiblePipelines"] == 3
    assert (await operator.condition("Degraded"))["status"] == "Unknown"


async def test_agents_too_large_for_any_node_are_reported(operator: Running) -> None:
    await operator.apply(worker={"resources": {"limits": {"nvidia.com/gpu": 5}}})

    async def too_small() -> bool:
        return (await operator.condition("CapacityAvailable")).get("reason") == "NodesTooSmall"

    await until(too_small)
    text = (await operator.condition("CapacityAvailable"))["message"]
    assert text.endswith(
        "spec.worker.resources asks for nvidia.com/gpu 5"
    )  # no suspension is needed


async def test_rejected_pods_are_reported(operator: Running) -> None:
    template = {"spec": {"containers": [{"name": "agent", "imagePullPolicy": "Sometimes"}]}}
    await operator.apply(worker={"podTemplate": template})

    async def refused() -> bool:
        return (await operator.condition("Accepted")).get("reason") == "PodRejected"

    await until(refused)
    assert "imagePullPolicy" in (await operator.condition("Accepted"))["message"]


async def suspend(operator: Running, *, wanted: bool) -> None:
    await operator.admin._request(
        "PATCH", api.job(operator.namespace, "job"), body={"spec": {"suspend": wanted}},
        content_type="application/merge-patch+json",
    )  # fmt: skip


async def test_suspend_before_the_start_and_resume(operator: Running) -> None:
    await operator.apply(suspend=True)

    async def suspended() -> bool:
        return (await operator.condition("Suspended")).get("status") == "True"

    await until(suspended)
    assert await operator.pods() == []
    await suspend(operator, wanted=False)

    async def back() -> bool:
        return len(await operator.pods()) == 4

    await until(back)


async def test_a_deadline_ends_the_job(operator: Running) -> None:
    await operator.apply(runPolicy={"pendingDeadlineSeconds": 2})

    async def failed() -> bool:
        return (await operator.condition("Failed")).get("status") == "True"

    await until(failed)
    assert (await operator.condition("Failed"))["reason"] == "PendingDeadlineExceeded"


async def test_a_token_of_a_real_pod_is_reviewed(operator: Running) -> None:
    """Issued by the API server, bound to a pod of the job, checked with the operator's rights."""
    await operator.apply()

    async def some() -> list[dict[str, Any]]:
        return await operator.pods()

    pod = (await until(some))[0]
    token = await bound_token(operator, pod)
    kube = operator.app._kube
    sealed = await seals.load(kube, operator.app._config.namespace, tls.SECRET)
    peer = await authentication.authenticate(kube, sealed, token)
    assert (peer.pod, peer.pod_uid) == (pod["metadata"]["name"], pod["metadata"]["uid"])
    assert peer.job_uid == pod["metadata"]["ownerReferences"][0]["uid"]
    assert peer.expires_at > 0
    with pytest.raises(authentication.UnauthenticatedError):
        await authentication.authenticate(
            kube, sealed, token[:-6] + base64.b64encode(b"x").decode()
        )


async def test_the_job_goes_on_from_a_late_write_of_the_old_leader(
    operator: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lands between the new leader's read and its first write; nothing of it is lost."""
    late = Durable(term=0, plan=Fence(0, 0, 3), members=(AgentId("job-p0-s0-i0"),))
    old = durable_facts.LeaderFacts(Durable())
    look = operator.app._kube.list
    written: list[Durable] = []

    async def list_late(path: str, *, labels: str = "") -> list[dict[str, Any]]:
        if path == api.pods(operator.namespace) and not written:
            written.append(late)
            view = object_views.job_view(await operator.job())
            await durable_facts.write(operator.admin, view, late, old)
        return await look(path, labels=labels)

    monkeypatch.setattr(operator.app._kube, "list", list_late)
    await operator.apply()

    async def led() -> Durable | None:
        found = durable_facts.read(await operator.job())
        return found if found.term > late.term else None

    assert await until(led) == replace(late, term=1, steps=10)
    assert written

    async def shown() -> bool:
        return bool((await operator.job())["status"].get("planEpoch") == 3)

    await until(shown)


async def test_only_a_leader_acts(operator: Running) -> None:
    """A second operator waits until the first has left, then leads with a higher term."""
    client = await connect()
    of_another_pod = replace(operator.app._config, pod_uid="uid-2")
    second = App(of_another_pod, client, LoopHearing())
    task = asyncio.create_task(second.run())
    await asyncio.sleep(3)
    assert not second.pulse.is_ready
    lease = await operator.admin.get(api.lease(operator.namespace, "bamboo-operator"))
    assert lease is not None
    assert lease["spec"]["holderIdentity"].startswith("op-1_uid-1_")
    await operator.stop()
    async with asyncio.timeout(30):
        while not second.pulse.is_ready:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.05)
    newer = await operator.admin.get(api.lease(operator.namespace, "bamboo-operator"))
    assert newer is not None
    assert newer["spec"]["leaseTransitions"] == lease["spec"]["leaseTransitions"] + 1
    second.stop.set()
    assert await asyncio.wait_for(task, 30) == 0
    await client.close()


async def test_a_lease_counts_as_a_release_if_its_account_may_serve(operator: Running) -> None:
    """By the API server's own authorization."""
    client, namespace = operator.app._kube, operator.namespace
    text = await conflict(client, "elsewhere", namespace)
    assert text.startswith(f"the release in namespace {namespace} serves namespaces {namespace}")
    claim = {
        "metadata": {"name": LEASE, "annotations": {SERVES: "*", ACCOUNT: "default"}},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": 3600},
    }
    rights = {
        "metadata": {"name": "all"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}],
    }  # fmt: skip
    bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings"
    await operator.admin.create(api.lease("default"), claim)
    await operator.admin.create(bindings, rights)  # a tenant can do that in his namespace
    try:
        assert await conflict(client, namespace, namespace) == ""
        assert await conflict(client, namespace, "default") == ""
    finally:
        await operator.admin.delete(api.lease("default", LEASE))
        await operator.admin.delete(f"{bindings}/all")
