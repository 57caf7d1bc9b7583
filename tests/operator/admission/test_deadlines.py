"""Deadlines of jobs that wait: in Bamboo's line and in Kueue's, through whole reconciles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_operator.admission.kueue import Kueue
from bamboo_operator.kube import api
from bamboo_operator.kube.api import Object
from bamboo_operator.reconcile.reconciler import Reconciler

from ..harness import Harness
from .test_kueue import VERSION, admitted, apply, drop_pods, say, serve
from .test_line import look, pods, put

POLICIES = ({"activeDeadlineSeconds": 600}, {"pendingDeadlineSeconds": 600})


def failed(harness: Harness, name: str) -> str:
    """Why the job has failed; empty: it has not."""
    status: Object = harness.kube.objects[api.job("ns", name)]["status"]
    (found,) = (c for c in status["conditions"] if c["type"] == "Failed")
    return str(found["reason"]) if found["status"] == "True" else ""


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_job_without_a_turn_does_not_fail(harness: Harness, policy: dict[str, int]) -> None:
    put(harness, "old", second=1)
    put(harness, "mid", second=2)
    put(harness, "new", second=3, runPolicy=policy)
    for _ in range(2):
        for name in ("old", "mid", "new"):
            await look(harness, name)
    assert pods(harness, "new") == []
    for _ in range(3):
        harness.now += 590  # less than the time after which the job ahead stands aside
        found = await look(harness, "new")
        assert (found["reason"], failed(harness, "new")) == ("WaitsInLine", "")
    harness.line.leave("ns", "old")
    harness.line.leave("ns", "mid")
    await look(harness, "new")
    assert len(pods(harness, "new")) == 2
    harness.now += 600
    await look(harness, "new")
    assert failed(harness, "new").endswith("DeadlineExceeded")


async def test_an_eviction_by_kueue_stops_the_active_time(harness: Harness) -> None:
    serve(harness, "v1beta1", VERSION)
    kueue = Kueue(harness.kube, clock=lambda: harness.now)
    harness.reconciler = Reconciler(replace(harness.reconciler._ports, kueue=kueue))
    apply(harness, runPolicy={"activeDeadlineSeconds": 600})
    await harness.reconcile()
    harness.now += 10_000
    await admitted(harness)
    assert len(harness.pods()) == 4
    harness.now += 400
    say(harness, Evicted=True)
    await harness.reconcile()
    drop_pods(harness)
    await harness.reconcile()
    harness.now += 10_000
    await harness.reconcile()
    assert harness.condition("Suspended")["reason"] == "QueuedByKueue"
    assert failed(harness, "job") == ""
    say(harness, Evicted=False)
    await admitted(harness)
    harness.now += 199
    await harness.reconcile()
    assert failed(harness, "job") == ""
    harness.now += 1
    await harness.reconcile()
    assert failed(harness, "job") == "ActiveDeadlineExceeded"
