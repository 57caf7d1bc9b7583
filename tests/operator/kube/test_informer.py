"""How kopf's tasks are started, and which events say something new."""

from __future__ import annotations

import asyncio
import copy
import getpass
from typing import Any

import kopf
import pytest

from bamboo_operator.kube import informer

from ..objects import node_object, pod_object


async def test_a_user_without_a_name_can_run_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters choose a UID that the image's password file may not have."""

    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 1000660000")

    monkeypatch.setattr(getpass, "getuser", unknown)
    tasks = await informer.start(kopf.OperatorRegistry(), ["default"])
    for task in tasks:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert not any(isinstance(error, KeyError) for error in found)


# ---------------------------------------------------------------- events


class Seen:
    """Handlers as kopf calls them, and what they report."""

    def __init__(self) -> None:
        self.added: list[Any] = []
        self.nodes = 0
        registry = informer.registry(
            add=self.added.append,
            nodes_changed=self._node,
            seen=lambda resource: None,
            created=lambda job: None,
        )
        self._by_name = {h.fn.__name__: h.fn for h in registry._watching.get_all_handlers()}

    def _node(self) -> None:
        self.nodes += 1

    async def node(self, body: dict[str, Any], kind: str = "MODIFIED") -> None:
        await self._by_name["on_node"](event={"type": kind, "object": copy.deepcopy(body)})

    async def job(self, body: dict[str, Any], kind: str = "MODIFIED") -> None:
        event = {"type": kind, "object": copy.deepcopy(body)}
        await self._by_name["on_job"](namespace="ns", name="job", event=event)


async def test_a_report_of_a_kubelet_that_says_nothing_new_wakes_no_job() -> None:
    seen, node = Seen(), node_object("node-a", "a")
    await seen.node(node, "ADDED")
    node["metadata"]["resourceVersion"] = "2"
    node["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-01-01T00:05:00Z"
    await seen.node(node)
    assert seen.nodes == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda node: node["spec"].update(unschedulable=True),
        lambda node: node["spec"].update(taints=[{"key": "k", "effect": "NoSchedule"}]),
        lambda node: node["status"].update(allocatable={"cpu": "1"}),
        lambda node: node["status"]["conditions"][0].update(status="False"),
        lambda node: node["status"].update(nodeInfo={"bootID": "another"}),
        lambda node: node["metadata"].update(labels={}),
        lambda node: node["metadata"].update(uid="another"),
    ],
)
async def test_what_jobs_can_see_of_a_node_wakes_them(change: Any) -> None:
    seen, node = Seen(), node_object("node-a", "a")
    node.setdefault("spec", {})
    await seen.node(node, "ADDED")
    change(node)
    await seen.node(node)
    assert seen.nodes == 2


async def test_a_node_that_goes_and_comes_wakes_them_each_time() -> None:
    seen, node = Seen(), node_object("node-a", "a")
    for kind in ("ADDED", "DELETED", "ADDED"):
        await seen.node(node, kind)
    assert seen.nodes == 3


async def test_our_own_writes_of_the_status_wake_no_job() -> None:
    seen = Seen()
    body: dict[str, Any] = {"metadata": {"uid": "u", "generation": 1, "resourceVersion": "1"}}
    await seen.job(body, "ADDED")
    body |= {"status": {"phase": "Running"}}
    body["metadata"]["resourceVersion"] = "2"
    await seen.job(body)
    assert len(seen.added) == 1
    body["metadata"]["generation"] = 2
    await seen.job(body)
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    await seen.job(body)
    await seen.job(body, "DELETED")
    assert seen.added == [("ns", "job")] * 4


def test_kopf_copies_no_object() -> None:
    """Five copies of each pod at each event were half of the operator's processor time."""
    kept = informer.settings().persistence
    pod = pod_object()
    assert kept.diffbase_storage.build(body=pod) == {}
    assert kept.diffbase_storage.fetch(body=pod) is None
    assert kept.progress_storage.clear(essence=pod) is pod
