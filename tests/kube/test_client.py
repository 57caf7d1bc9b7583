"""The operator's client against the real API: verbs, errors, pages, retries."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bamboo_core.placement.fitting import ONE
from bamboo_operator.kube import api
from bamboo_operator.kube.api import ApiError
from bamboo_operator.kube.client import Kube
from bamboo_operator.pods import node_usage
from bamboo_operator.pods.node_usage import Usage
from bamboo_operator.trust import seals

from .jobs import job


async def test_create_get_list_apply_delete(kube: Kube, devcluster_namespace: str) -> None:
    path = api.jobs(devcluster_namespace)
    one = api.job(devcluster_namespace, "job")
    assert await kube.get(one) is None
    made = await kube.create(path, job(devcluster_namespace))
    with pytest.raises(ApiError) as twice:
        await kube.create(path, job(devcluster_namespace))
    assert twice.value.is_conflict
    labelled = job(devcluster_namespace, "other")
    labelled["metadata"]["labels"] = {"a": "b"}
    await kube.create(path, labelled)
    assert len(await kube.list(path)) == 2
    assert [x["metadata"]["name"] for x in await kube.list(path, labels="a=b")] == ["other"]
    old = dict(made["metadata"])
    await kube.apply(
        api.job_status(devcluster_namespace, "job"),
        {"apiVersion": api.API_VERSION, "kind": "BambooJob", "status": {"phase": "Running"},
         "metadata": {"name": "job", "namespace": devcluster_namespace}},
        manager="test",
    )  # fmt: skip
    with pytest.raises(ApiError) as stale:
        await kube.replace(one, made | {"metadata": old})
    assert stale.value.is_conflict
    assert not await kube.delete(one, uid="another")
    assert await kube.delete(one, uid=made["metadata"]["uid"])
    assert not await kube.delete(one)


async def test_any_text_can_be_applied(kube: Kube, devcluster_namespace: str) -> None:
    """User code chooses the texts of errors. One that the server refused would keep its job from
    every further reconcile."""
    await kube.create(api.jobs(devcluster_namespace), job(devcluster_namespace))
    text = "\\ud83d \\ \x00\x1b\x7f\x85\xe9\u2028\ufeff\ufffe\uffff"
    text += " \U0001f600\U0001fffe\U0010ffff \ud83d"
    body = {
        "apiVersion": api.API_VERSION, "kind": "BambooJob", "status": {"agentsSummary": text},
        "metadata": {"name": "job", "namespace": devcluster_namespace},
    }  # fmt: skip
    await kube.apply(api.job_status(devcluster_namespace, "job"), body, manager="test")
    stored = await kube.get(api.job(devcluster_namespace, "job"))
    assert stored is not None
    assert stored["status"]["agentsSummary"] == text[:-1] + "\ufffd"


async def test_a_group_of_the_api_has_versions_or_is_missing(kube: Kube) -> None:
    """That is how the operator finds Kueue."""
    group = await kube.get(f"/apis/{api.GROUP}")
    assert group is not None
    assert [each["version"] for each in group["versions"]] == [api.VERSION]
    assert await kube.get("/apis/kueue.x-k8s.io") is None


async def test_refusals_differ_from_failures(kube: Kube, devcluster_namespace: str) -> None:
    bad = job(devcluster_namespace, training={"steps": 0})
    with pytest.raises(ApiError) as refusal:
        await kube.create(api.jobs(devcluster_namespace), bad)
    assert refusal.value.is_refusal
    assert refusal.value.reason == "Invalid"
    assert "spec.training.steps" in refusal.value.message


async def test_an_unknown_field_is_refused(kube: Kube, devcluster_namespace: str) -> None:
    containers = [{"name": "agent", "image": "x", "volumeMount": [{"name": "v"}]}]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    with pytest.raises(
        ApiError, match=r'unknown field "spec.containers\[0\].volumeMount"'
    ) as refusal:
        await kube.create(
            api.pods(devcluster_namespace), pod | {"spec": {"containers": containers}}
        )
    assert refusal.value.is_refusal


async def test_long_lists_come_in_pages(
    kube: Kube, devcluster_namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bamboo_operator.kube.client._PAGE", 2)
    path = api.jobs(devcluster_namespace)
    names = {f"job-{n}" for n in range(5)}
    await asyncio.gather(*(kube.create(path, job(devcluster_namespace, n)) for n in names))
    assert {x["metadata"]["name"] for x in await kube.list(path)} == names


async def test_requests_are_observed(kube: Kube, devcluster_namespace: str) -> None:
    seen: list[tuple[str, str, int]] = []
    kube.observe_with(lambda verb, resource, code, seconds: seen.append((verb, resource, code)))
    await kube.get(api.pod(devcluster_namespace, "none"))
    await kube.list(api.nodes())
    await kube.get(api.lease(devcluster_namespace, "none"))
    assert seen == [("GET", "pods", 404), ("GET", "nodes", 200), ("GET", "leases", 404)]


async def test_pods_on_nodes_are_listed_and_watched(kube: Kube, devcluster_namespace: str) -> None:
    """The field selector holds for lists and events; a pod that ends is an event, too."""
    gpu = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    path = api.pods(devcluster_namespace)

    async def create(name: str, **spec: str) -> None:
        body = {"containers": [{"name": "a", "image": "none:1", **gpu}], **spec}
        meta = {"name": name}
        await kube.create(path, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": body})

    async def until(gpus: int) -> None:
        async with asyncio.timeout(30):
            while usage.on("node-x").get("nvidia.com/gpu", 0) != gpus * ONE:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    await create("first", nodeName="node-x")
    await create("nowhere", schedulerName="nobody")
    usage = Usage(seals.Seals(b"").is_ours)
    watch = node_usage.watch(kube, usage, devcluster_namespace)
    task = asyncio.create_task(watch.run())
    try:
        await asyncio.wait_for(watch.listed.wait(), 30)
        assert len(usage._pods) == 1
        await create("second", nodeName="node-x")
        await until(2)
        await kube.delete(api.pod(devcluster_namespace, "first"), grace_s=0)
        await until(1)
        assert len(usage._pods) == 1
        assert not task.done()
    finally:
        task.cancel()


class _Broken:
    """Stands for a server that answers 503, or not at all."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)
        self.calls = 0

    async def param_serialize(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return "GET", "http://broken", {}, None, None

    async def call_api(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class _Answer:
    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text

    async def read(self) -> bytes:
        return self.text.encode()


async def test_reads_are_retried_but_not_writes_that_may_have_worked() -> None:
    away = _Broken(OSError("refused"), _Answer(503, "busy"), _Answer(200, '{"ok": true}'))
    assert await Kube(away).get("/api/v1/nodes") == {"ok": True}
    for broken in (_Broken(*[OSError("refused")] * 3), _Broken(*[_Answer(503, "no json")] * 3)):
        with pytest.raises(ApiError) as error:
            await Kube(broken).get("/api/v1/nodes")
        assert (error.value.code, broken.calls) in ((0, 3), (503, 3))
    once = _Broken(OSError("cut"))
    with pytest.raises(ApiError):
        await Kube(once).create("/api/v1/nodes", {})
    assert once.calls == 1
