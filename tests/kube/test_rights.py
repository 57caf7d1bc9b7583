"""The rights that the chart grants, against the API server's own audit log.

The operator and the node watcher work with their service accounts. Each request must be granted,
and each verb that is granted must be needed by a request.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from bamboo_core.admission.quota import QUEUE_LABEL
from bamboo_devcluster.cluster import Cluster
from bamboo_devcluster.controlplane.audit import Request
from bamboo_devcluster.kube.client import KubeApi
from bamboo_devcluster.testing import wait_for
from bamboo_operator.admission.kueue import GROUP, PLURAL, workload_name
from bamboo_operator.kube import api, object_views
from bamboo_operator.kube.client import Kube
from bamboo_operator.kube.event_recorder import Recorder
from bamboo_operator.pods.disruption_budgets import Budgets
from bamboo_operator.trust import authentication, seals, tls

from .grants import CLEAN, Audit, audited, compare, grants
from .jobs import job
from .operators import (
    Object,
    Running,
    account,
    at_work,
    bound_token,
    conflict,
    render,
    until,
)

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
KUEUE = f"/apis/{GROUP}/v1beta2"


@pytest_asyncio.fixture
async def home(devcluster_api: KubeApi) -> AsyncIterator[str]:
    """The release's namespace. Its jobs are in another one."""
    name = f"home-{uuid.uuid4().hex[:8]}"
    await devcluster_api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    await devcluster_api.delete(f"/api/v1/namespaces/{name}")


def environment(home: str, *settings: str) -> dict[str, str]:
    """The operator's environment in the chart's Deployment."""
    (deployment,) = render(home, ("deployment",), *settings)
    pod = deployment["spec"]["template"]["spec"]
    env = {each["name"]: each.get("value", "") for each in pod["containers"][0]["env"]}
    known = {"POD_NAMESPACE": home, "POD_SERVICE_ACCOUNT": pod["serviceAccountName"]}
    del env["POD_IP"]
    return env | known | {"BAMBOO_RESYNC_SECONDS": "1"}


@pytest_asyncio.fixture
async def kueue(devcluster_api: KubeApi) -> AsyncIterator[None]:
    """Kueue's resources. The API server stores them as they are; the test plays Kueue."""
    for plural, kind, scope in (
        (PLURAL, "Workload", "Namespaced"),
        ("resourceflavors", "ResourceFlavor", "Cluster"),
    ):
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {
            "name": "v1beta2", "served": True, "storage": True, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": schema},
        }  # fmt: skip
        names = {"plural": plural, "singular": kind.lower(), "kind": kind}
        spec = {"group": GROUP, "scope": scope, "names": names, "versions": [version]}
        # The API server wants the approval of the community for groups that end in k8s.io.
        approved = {"api-approved.kubernetes.io": "unapproved, of a test"}
        meta = {"name": f"{plural}.{GROUP}", "annotations": approved}
        await devcluster_api.post(CRDS, {"metadata": meta, "spec": spec})
    for plural in (PLURAL, "resourceflavors"):
        starting = frozenset({404, 429})
        await wait_for(devcluster_api, f"{KUEUE}/{plural}", bool, absent_codes=starting)
    yield
    for plural in (PLURAL, "resourceflavors"):
        await devcluster_api.delete(f"{CRDS}/{plural}.{GROUP}")


async def rare_things(operator: Running, body: Object) -> None:
    """Make the operator act on agents that train, a second release and an old certificate, by its
    own code and client."""
    client, home = operator.app._kube, operator.app._config.namespace

    async def placed() -> Object | None:
        return next((p for p in await operator.pods() if p["spec"].get("nodeName")), None)

    sealed = await seals.load(client, home, tls.SECRET)
    await authentication.authenticate(
        client, sealed, await bound_token(operator, await until(placed))
    )
    view, budgets = object_views.job_view(body), Budgets(client)
    assert operator.app._reconciler is not None
    trust = operator.app._reconciler._ports.trust
    # At the job's end the garbage collector may delete it first.
    await trust.forget(view.namespace, [view.uid])
    await trust.publish(view)
    await budgets.keep(view, 1)
    await budgets.keep(view, None)
    assert await conflict(client, "elsewhere", operator.namespace)
    recorder = Recorder(client, identity="test")
    recorder.record(view, severity="Normal", reason="Test", message="test")
    writing = asyncio.create_task(recorder.run())
    await recorder.flush(10)
    writing.cancel()
    await tls.load_authorities(client, home, now=datetime.now(UTC) + timedelta(days=3000))


async def life_of_a_job(operator: Running, cluster: KubeApi) -> None:
    """From its creation to its end and removal, with a pause."""
    path = api.job(operator.namespace, "job")
    body = await operator.apply(runPolicy={"ttlSecondsAfterFinished": 0})
    await rare_things(operator, body)

    async def without_pods() -> bool:
        return not await operator.pods()

    await cluster.patch(path, {"spec": {"suspend": True}})
    await until(without_pods)
    policy = {"runPolicy": {"pendingDeadlineSeconds": 1}}
    await cluster.patch(path, {"spec": {"suspend": False, **policy}})

    async def gone() -> bool:
        return await operator.admin.get(path) is None

    await until(gone, timeout_s=60)


async def life_in_a_queue(operator: Running, cluster: KubeApi) -> None:
    """Kueue admits a job and evicts it; then its user suspends it."""
    namespace = operator.namespace
    queued = job(namespace, "queued")
    queued["metadata"]["labels"] = {QUEUE_LABEL: "team"}
    body = await operator.admin.create(api.jobs(namespace), queued)
    name = workload_name("queued", body["metadata"]["uid"])
    path = f"{KUEUE}/namespaces/{namespace}/{PLURAL}/{name}"
    await wait_for(cluster, path, bool)

    async def say(**conditions: str) -> None:
        known = [{"type": kind, "status": status} for kind, status in conditions.items()]
        given = {"name": "agents", "count": 4, "flavors": {"nvidia.com/gpu": "spot"}}
        status = {"admission": {"podSetAssignments": [given]}, "conditions": known}
        await cluster.patch(f"{path}/status", {"status": status})

    await say(QuotaReserved="True", Admitted="True")
    await until(operator.pods)
    await say(QuotaReserved="True", Admitted="True", Evicted="True")

    def has_no_quota(found: Any) -> bool:
        return {c["type"]: c["status"] for c in found["status"]["conditions"]}[
            "QuotaReserved"
        ] == "False"

    await wait_for(cluster, path, has_no_quota)
    await cluster.patch(api.job(namespace, "queued"), {"spec": {"suspend": True}})
    await wait_for(cluster, path, lambda found: found is None)


async def work(
    devcluster: Cluster, admin: Kube, cluster: KubeApi, home: str, namespace: str, *settings: str
) -> None:
    """The operator as the chart makes it with these settings, from its start to its end."""
    rights = render(home, ("rbac", "serviceaccount"), *settings)
    async with account(devcluster, home, "op-operator", rights) as found:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KUBECONFIG", str(found.kubeconfig))
            async with at_work(admin, namespace, environment(home, *settings)) as operator:
                await life_of_a_job(operator, cluster)
                if operator.app._config.kueue:
                    await life_in_a_queue(operator, cluster)
        assert await audited(devcluster, found) == CLEAN


async def test_an_operator_of_all_namespaces(
    devcluster: Cluster, kube: Kube, devcluster_api: KubeApi, home: str, devcluster_namespace: str
) -> None:
    await work(devcluster, kube, devcluster_api, home, devcluster_namespace)


async def test_an_operator_of_one_namespace_with_kueue(
    devcluster: Cluster,
    kube: Kube,
    devcluster_api: KubeApi,
    home: str,
    devcluster_namespace: str,
    kueue: None,
) -> None:
    settings = (f"namespaces={{{devcluster_namespace}}}", "kueue.enabled=true")
    await work(devcluster, kube, devcluster_api, home, devcluster_namespace, *settings)


ROLE = {"kind": "Role", "metadata": {"name": "r", "namespace": "ns"}}
BINDING = {
    "kind": "RoleBinding",
    "metadata": {"name": "b", "namespace": "ns"},
    "roleRef": {"kind": "Role", "name": "r"},
}


def compared(rules: list[Object], *requests: Request) -> Audit:
    return compare(grants([ROLE | {"rules": rules}, BINDING]), requests)


def test_what_the_audit_finds() -> None:
    """A verb that nobody needs, one that another rule grants, too, and what is not granted."""
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "delete"]}
    one = pods | {"resourceNames": ["x"], "verbs": ["get"]}
    get = Request("u", "get", "", "pods", "ns", "x", code=200)
    delete = replace(get, verb="delete")
    assert compared([pods], get, delete) == CLEAN
    assert {grant.verb for grant in compared([pods], get).idle} == {"delete"}
    assert {grant.name for grant in compared([pods, one], get, delete).idle} == {"", "x"}
    cannot = 'pods "x" is forbidden: User "u" cannot get resource "pods" in the namespace "other"'
    elsewhere = replace(get, namespace="other", code=403, message=cannot)
    assert compared([one], get, elsewhere) == Audit([elsewhere], [elsewhere], set())
    over = replace(get, code=403, message='pods "x" is forbidden: exceeded quota: q')
    assert compared([one], over) == CLEAN
    discovery = Request("u", "get", path="/apis", code=200)
    assert compared([one], get, discovery) == CLEAN


def test_an_apply_may_be_a_creation() -> None:
    maps = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch", "create"]}
    patch = Request("u", "patch", "", "configmaps", "ns", "x", code=201)
    assert compared([maps], patch) == CLEAN
    assert {grant.verb for grant in compared([maps], replace(patch, code=200)).idle} == {"create"}
    named = maps | {"resourceNames": ["x"]}
    made = replace(patch, verb="create")
    assert compared([named], made).not_granted == [replace(made, name="")]  # by a POST
