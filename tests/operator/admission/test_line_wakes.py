"""Who is woken when a job leaves the line of those that compete, or has got all its agents."""

from __future__ import annotations

import asyncio

import pytest

from bamboo_core.controller import turn as turns
from bamboo_operator.kube import api

from ..harness import Harness
from ..objects import placed
from .test_line import FOUR, TWO, bind, drop_gone, look, node_like, pods, put


async def gone(harness: Harness, name: str) -> None:
    """The job and its pods are deleted, and its reconcile sees it."""
    for pod in pods(harness, name):
        del harness.kube.objects[api.pod("ns", pod["metadata"]["name"])]
    del harness.kube.objects[api.job("ns", name)]
    await harness.reconciler.reconcile("ns", name)
    drop_gone(harness)


async def test_if_the_only_one_that_asks_leaves_one_that_waits_is_woken(harness: Harness) -> None:
    """One that is refused might make no pass."""
    put(harness, "old", second=1, pipelines=FOUR)
    for second, name in enumerate(("refused", "mid", "new"), start=2):
        put(harness, name, second=second)
    for name in ("old", "refused", "mid", "new"):
        await look(harness, name)
    assert [len(pods(harness, name)) for name in ("old", "mid", "new")] == [4, 0, 0]
    harness.line.refuse("ns", "refused")
    harness.line_woken.clear()
    await gone(harness, "old")
    assert harness.line_woken == [("ns", "mid")]
    await look(harness, "mid")
    assert len(pods(harness, "mid")) == 2
    assert ("ns", "new") in harness.line_woken


async def test_if_nobody_waits_any_more_those_that_may_grow_are_woken(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_nodes = lambda view, training: any(pod.node for pod in view.pods)  # noqa: E731
    monkeypatch.setattr(turns, "is_training", on_nodes)
    put(harness, "waits", second=1, pipelines=FOUR)
    put(harness, "grows", second=2)
    await look(harness, "waits")
    harness.line.leave("ns", "waits")  # so that the other one starts first
    await look(harness, "grows")
    for pod, node in zip(pods(harness, "grows"), ("node-a", "node-b"), strict=True):
        bind(harness, pod, node)
    await look(harness, "grows")
    job = harness.kube.objects[api.job("ns", "grows")]
    job["spec"]["pipelines"] = {"count": 2, "stages": 2, "min": 1}
    await look(harness, "waits")
    await look(harness, "grows")
    assert len(pods(harness, "grows")) == 2
    harness.line_woken.clear()
    await gone(harness, "waits")
    assert harness.line_woken == [("ns", "grows")]
    await look(harness, "grows")
    assert len(pods(harness, "grows")) == 4


async def test_if_the_one_that_asks_has_all_its_agents_the_next_one_is_woken(
    harness: Harness,
) -> None:
    """Its own reconcile makes no pass then."""
    harness.kube.put(f"{api.nodes()}/node-d", node_like(harness, "node-d"))
    for second, name in enumerate(("old", "mid", "new"), start=1):
        put(harness, name, second=second, pipelines=FOUR if name == "mid" else TWO)
        await look(harness, name)
    for name, free in (("old", ("node-a", "node-b")), ("mid", ("node-c", "node-d", "e", "f"))):
        await look(harness, name)
        for pod, node in zip(pods(harness, name), free, strict=True):
            bind(harness, pod, node)
        assert pods(harness, "new") == []
        harness.line_woken.clear()
        await look(harness, name)
    assert harness.line_woken == [("ns", "new")]
    await look(harness, "new")
    assert len(pods(harness, "new")) == 2  # now it asks


@pytest.mark.parametrize("how", ["left", "whole"])
async def test_a_timer_of_a_job_that_makes_no_pass_wakes_another_one(
    harness: Harness, how: str
) -> None:
    put(harness, "old", second=1, pipelines=FOUR)
    put(harness, "new", second=2)
    for name in ("old", "new"):
        await look(harness, name)
    loop = asyncio.get_running_loop()
    harness.line._not_before = loop.time() + 0.05
    harness.usage.put(placed("stranger", gpus=0))
    await look(harness, "old")
    assert harness.line._later is not None
    if how == "left":
        await gone(harness, "old")
    else:
        for pod, node in zip(pods(harness, "old"), "defg", strict=True):
            bind(harness, pod, node)
        await look(harness, "old")
    await look(harness, "new")  # too early for a pass
    harness.line_woken.clear()
    while not harness.line_woken:  # noqa: ASYNC110 - it ends with the time limit
        await asyncio.sleep(0.01)
    assert harness.line_woken == [("ns", "new")]
    await look(harness, "new")
    assert len(pods(harness, "new")) == 2
