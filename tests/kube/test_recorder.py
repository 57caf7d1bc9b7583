"""Events in the real API: what is stored, and which facts a program can read back."""

from __future__ import annotations

import asyncio

from bamboo_core.api.events import EventFact
from bamboo_operator.kube import api, object_views
from bamboo_operator.kube.client import Kube
from bamboo_operator.kube.event_recorder import Recorder

from .jobs import job


async def test_an_event_carries_its_facts(kube: Kube, devcluster_namespace: str) -> None:
    body = await kube.create(api.jobs(devcluster_namespace), job(devcluster_namespace))
    view = object_views.job_view(body)
    recorder = Recorder(kube, identity="op-1")
    facts = {EventFact.EPOCH: 7, EventFact.PAUSE_S: 0.25, EventFact.AGENTS: "job-p0-s0-i0"}
    for _ in range(2):
        recorder.record(
            view, severity="Normal", reason="Planned", message="epoch 7: step 3", facts=facts
        )
    writer = asyncio.create_task(recorder.run())
    await recorder.flush(10)
    writer.cancel()
    (event,) = await kube.list(api.events(devcluster_namespace))
    assert (event["reason"], event["count"], event["involvedObject"]["uid"]) == (
        "Planned",
        2,
        view.uid,
    )
    assert event["metadata"]["annotations"] == {
        "bamboo.dev/epoch": "7",
        "bamboo.dev/pauseSeconds": "0.25",
        "bamboo.dev/agents": "job-p0-s0-i0",
    }
