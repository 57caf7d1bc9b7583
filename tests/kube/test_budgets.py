"""Evictions, as by ``kubectl drain``, against a real disruption controller."""

from __future__ import annotations

from typing import Any

import pytest

from bamboo_core.controller.view import JobView
from bamboo_devcluster.kube.client import ApiError, KubeApi
from bamboo_devcluster.testing import wait_for
from bamboo_operator.kube import api
from bamboo_operator.kube.client import Kube
from bamboo_operator.pods.disruption_budgets import Budgets, budget_name

from .jobs import job


async def make_agents(devcluster_api: KubeApi, owner: dict[str, Any], count: int) -> list[str]:
    """Pods of the job without a node, ready as if they ran."""
    meta = owner["metadata"]
    names = [f"job-p{n // 2}-s{n % 2}-i0" for n in range(count)]
    for name in names:
        reference = {
            "apiVersion": api.API_VERSION, "kind": "BambooJob", "controller": True,
            "name": meta["name"], "uid": meta["uid"],
        }  # fmt: skip
        body = {
            "metadata": {
                "name": name,
                "labels": {"bamboo.dev/job": "job", "bamboo.dev/job-uid": meta["uid"]},
                "ownerReferences": [reference],
            },
            "spec": {
                "containers": [{"name": "agent", "image": "agent:1"}],
                "nodeSelector": {"no": "node"},
            },
        }  # fmt: skip
        await devcluster_api.post(api.pods(meta["namespace"]), body)
        ready = {"type": "Ready", "status": "True"}
        status = {"status": {"phase": "Running", "conditions": [ready]}}
        await devcluster_api.patch(f"{api.pod(meta['namespace'], name)}/status", status)
    return names


async def test_a_drain_takes_one_agent_at_a_time(
    devcluster_api: KubeApi, kube: Kube, devcluster_namespace: str
) -> None:
    """A budget with maxUnavailable 1 counted the scale's two pipelines, and took three of four."""
    namespace = devcluster_namespace
    body = await kube.create(api.jobs(namespace), job(namespace, suspend=True))
    names = await make_agents(devcluster_api, body, 4)
    view = JobView(namespace, "job", body["metadata"]["uid"], 1, 0.0)
    budgets = Budgets(kube)
    path = api.disruption_budget(namespace, budget_name(view.name, view.uid))

    async def evict(name: str) -> None:
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        await devcluster_api.post(f"{api.pod(namespace, name)}/eviction", eviction)

    async def allow(least: int, allowed: int) -> None:
        await budgets.keep(view, least)
        await wait_for(
            devcluster_api,
            path,
            lambda found: (
                (found.get("status") or {}).get("disruptionsAllowed") == allowed
                and found["status"]["observedGeneration"] == found["metadata"]["generation"]
            ),
        )

    await allow(3, 1)
    await evict(names[0])
    with pytest.raises(ApiError) as refusal:
        await evict(names[1])
    assert refusal.value.code == 429
    await allow(2, 1)
    await evict(names[1])
    with pytest.raises(ApiError):
        await evict(names[2])
