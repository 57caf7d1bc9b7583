"""Events about jobs."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import pytest
from tests.core.controller.builders import JOB

from bamboo_core.api.events import EventFact
from bamboo_operator.kube.api import ApiError
from bamboo_operator.kube.event_recorder import Recorder

from ..memory_api import MemoryApi


async def written(recorder: Recorder) -> None:
    task = asyncio.create_task(recorder.run())
    await recorder.flush(10)
    task.cancel()


async def test_repeated_events_are_counted() -> None:
    kube, now = MemoryApi(), 100.25
    recorder = Recorder(kube, identity="op-1", clock=lambda: now)
    for _ in range(3):
        recorder.record(JOB, severity="Warning", reason="AgentLost", message="x is lost")
    recorder.record(JOB, severity="Normal", reason="Planned", message="y" * 5000)
    await written(recorder)
    lost, planned = sorted(kube.objects.values(), key=lambda event: event["reason"])
    assert (lost["count"], lost["type"], lost["firstTimestamp"]) == (
        3,
        "Warning",
        "1970-01-01T00:01:40Z",
    )
    assert lost["eventTime"] == "1970-01-01T00:01:40.250000Z"
    assert lost["involvedObject"]["uid"] == JOB.uid
    assert planned["message"] == "y" * 1021 + "..."


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("层" * 700, "层" * 340 + "..."),
        ("x" * 1024, "x" * 1024),
        (os.fsdecode(b"/data/caf\xe9.jpg"), "/data/caf\\udce9.jpg"),
    ],
    ids=["too many bytes", "as many as may be", "not UTF-8"],
)
async def test_a_message_is_one_that_the_api_server_takes(message: str, expected: str) -> None:
    """The server refuses an event whose message has more than 1024 bytes of UTF-8."""
    kube = MemoryApi()
    recorder = Recorder(kube, identity="op-1")
    recorder.record(JOB, severity="Warning", reason="WorkerFailed", message=message)
    await written(recorder)
    (event,) = kube.objects.values()
    assert event["message"] == expected


async def test_facts_are_annotations() -> None:
    kube = MemoryApi()
    recorder = Recorder(kube, identity="op-1")
    facts = {EventFact.EPOCH: 7, EventFact.PAUSE_S: 0.25, EventFact.AGENTS: "a,b"}
    recorder.record(JOB, severity="Normal", reason="Resumed", message="x", facts=facts)
    await written(recorder)
    (event,) = kube.objects.values()
    assert event["metadata"]["annotations"] == {
        "bamboo.dev/epoch": "7",
        "bamboo.dev/pauseSeconds": "0.25",
        "bamboo.dev/agents": "a,b",
    }


async def test_a_repeated_event_has_the_newest_facts() -> None:
    kube = MemoryApi()
    recorder = Recorder(kube, identity="op-1")
    for step in (4, 8):
        facts = {EventFact.STEP: step}
        recorder.record(JOB, severity="Normal", reason="Waiting", message="x", facts=facts)
    await written(recorder)
    (event,) = kube.objects.values()
    assert (event["count"], event["metadata"]["annotations"]) == (2, {"bamboo.dev/step": "8"})


async def test_a_pause_in_which_agents_are_asked_again_has_one_event_of_each_kind() -> None:
    """A job of one pipeline that waits for its only holder of a layer."""
    kube, times = MemoryApi(), iter(range(1_000_000_000, 1_000_000_100))
    recorder = Recorder(kube, identity="op-1", clock=lambda: float(next(times)))

    def record(reason: str, message: str, **facts: int) -> None:
        named = {EventFact[name.upper()]: value for name, value in facts.items()}
        recorder.record(JOB, severity="Normal", reason=reason, message=message, facts=named)

    def pause(first: int) -> None:
        for epoch in range(first, first + 3):
            record("Stopped", f"epoch {epoch}: suspected agents are asked again", epoch=epoch)
            record("AgentLost", "a1: no report in time")
            record("Waiting", "no voter has reported")
        record("Stopped", f"epoch {first + 3}: a1 is here again", epoch=first + 3)
        record("Resumed", f"epoch {first + 3}: step 4 is committed", epoch=first + 3)

    pause(2)
    pause(6)
    await written(recorder)
    events = sorted(kube.objects.values(), key=lambda event: event["metadata"]["name"])
    assert [(event["reason"], event["count"]) for event in events] == 2 * [
        ("Stopped", 3), ("AgentLost", 3), ("Waiting", 3), ("Stopped", 1), ("Resumed", 1),
    ]  # fmt: skip
    asked, again = events[0], events[5]
    assert (asked["message"], asked["eventTime"]) == (
        "epoch 4: suspected agents are asked again", "2001-09-09T01:46:40.000000Z",
    )  # fmt: skip
    assert asked["metadata"]["annotations"] == {"bamboo.dev/epoch": "4"}
    assert again["message"].startswith("epoch 8: ")


async def test_names_are_in_order_of_time_since_kubectl_lists_by_name() -> None:
    kube, times = MemoryApi(), iter([100.25, 100.5, 100.75, 1.8e9])
    recorder = Recorder(kube, identity="op-1", clock=lambda: next(times))
    for reason in ("Stopped", "Planned", "Resumed", "Stopped"):
        recorder.record(JOB, severity="Normal", reason=reason, message="epoch 1: x")
    await written(recorder)
    listed = [event["reason"] for _, event in sorted(kube.objects.items())]
    assert listed == ["Stopped", "Planned", "Resumed", "Stopped"]


async def refused(error: ApiError) -> Recorder:
    """One whose only event could not be written."""
    kube = MemoryApi()

    def fail(verb: str, path: str) -> None:
        raise error

    kube.fail = fail
    recorder = Recorder(kube, identity="op-1")
    recorder.record(JOB, severity="Normal", reason="Planned", message="x")
    await written(recorder)
    assert recorder.dropped == 1
    return recorder


async def test_events_that_cannot_be_written_are_dropped_and_counted() -> None:
    recorder = await refused(ApiError(503, "Unavailable", "away"))
    for number in range(1001):
        job = replace(JOB, uid=f"uid-{number}")
        recorder.record(job, severity="Normal", reason="Planned", message=str(number))
    assert recorder.dropped == 2


async def test_a_job_takes_its_share_of_the_queue_and_no_more() -> None:
    kube, now = MemoryApi(), 100.0
    recorder = Recorder(kube, identity="op-1", clock=lambda: now)
    for number in range(2000):
        reason = f"Reason{number % 20}"
        recorder.record(JOB, severity="Normal", reason=reason, message=str(number))
    other = replace(JOB, uid="uid-other")
    recorder.record(other, severity="Normal", reason="Planned", message="of another job")
    await written(recorder)
    messages = [event["message"] for event in kube.objects.values()]
    assert len(messages) == 101
    assert "of another job" in messages
    recorder.record(JOB, severity="Normal", reason="Planned", message="there is room again")
    assert recorder.dropped == 1900


async def test_a_reason_has_a_rate_in_each_job() -> None:
    kube, now = MemoryApi(), [100.0]
    recorder = Recorder(kube, identity="op-1", clock=lambda: now[0])
    for number in range(70):
        recorder.record(JOB, severity="Normal", reason="BadCheckpoint", message=str(number))
    recorder.record(JOB, severity="Normal", reason="Planned", message="another reason")
    assert recorder.dropped == 10
    now[0] += 60.0
    recorder.record(JOB, severity="Normal", reason="BadCheckpoint", message="later")
    assert recorder.dropped == 10


async def test_events_of_a_namespace_that_is_gone_are_dropped_silently(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await refused(ApiError(404, "NotFound", 'namespaces "ns" not found'))
    assert not caplog.records


async def test_flush_has_a_time_limit() -> None:
    recorder = Recorder(MemoryApi(), identity="op-1")
    recorder.record(JOB, severity="Normal", reason="Planned", message="x")
    await recorder.flush(0.01)
