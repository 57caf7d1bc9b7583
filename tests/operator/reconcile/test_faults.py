"""A reconcile that meets errors, conflicts, late writes and jobs that vanish meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from bamboo_core.arbiter_state.durable import Durable, to_json
from bamboo_core.arbiter_state.events import Persist
from bamboo_core.model.ids import Fence
from bamboo_operator.kube.api import ApiError
from bamboo_operator.monitoring.registry import Metrics
from bamboo_operator.reconcile.queue_workers import Workers
from bamboo_operator.reconcile.workqueue import WorkQueue
from bamboo_operator.status import durable_facts

from ..harness import AGENTS, PATH, Harness, failing


async def test_an_error_of_one_job_is_shown_and_retried(harness: Harness) -> None:
    """Unreadable facts are a defect that only this job has."""
    harness.apply()
    await harness.reconcile()
    await harness.jobs.close()
    harness.status["arbiter"] = {"cut": 3}
    queue: WorkQueue[tuple[str, str]] = WorkQueue()
    workers = Workers(queue, harness.reconciler, Metrics(list))
    await workers._one(("ns", "job"))
    stalled = harness.condition("Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "ReconcileError")
    assert queue._schedule.next_at() is not None


async def test_an_error_of_the_first_reconcile_is_shown(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AttributeError("'str' object has no attribute 'get'")

    harness.apply()
    workers = Workers(WorkQueue(), harness.reconciler, Metrics(list))
    with monkeypatch.context() as patched:
        patched.setattr("bamboo_core.validation.reading.from_manifest", fail)
        await workers._one(("ns", "job"))
    accepted, stalled = harness.condition("Accepted"), harness.condition("Stalled")
    assert (accepted["status"], accepted["reason"]) == ("Unknown", "ReconcileError")
    assert "AttributeError: 'str' object has no attribute 'get'" in accepted["message"]
    assert stalled["status"] == "True"
    harness.apply(model={"factory": "m:b", "args": {"a b": 1}})
    await workers._one(("ns", "job"))
    assert harness.condition("Accepted")["reason"] == "SpecInvalid"
    harness.apply()
    await workers._one(("ns", "job"))
    assert harness.condition("Accepted")["status"] == "True"
    assert harness.condition("Stalled")["status"] == "False"


async def test_a_refused_job_that_meets_an_error_is_refused_again(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.apply(model={"factory": "m:b", "args": {"a b": 1}})
    workers = Workers(WorkQueue(), harness.reconciler, Metrics(list))
    await workers._one(("ns", "job"))
    with monkeypatch.context() as patched:
        patched.setattr("bamboo_core.validation.reading.from_manifest", lambda _: 1 / 0)
        await workers._one(("ns", "job"))
    assert harness.condition("Stalled")["reason"] == "ReconcileError"
    await workers._one(("ns", "job"))
    assert [c["type"] for c in harness.status["conditions"]] == ["Accepted", "Running"]
    assert harness.condition("Accepted")["reason"] == "SpecInvalid"


async def test_repeated_api_errors_are_shown(harness: Harness) -> None:
    harness.apply()
    harness.kube.fail = failing("list", "/pods", ApiError(500, "InternalError", "no etcd"))
    workers = Workers(WorkQueue(), harness.reconciler, Metrics(list))
    for _ in range(2):
        await workers._one(("ns", "job"))
    assert harness.status == {}
    await workers._one(("ns", "job"))
    assert "no etcd" in harness.condition("Stalled")["message"]


async def test_an_error_that_lasts_is_shown_without_a_break(harness: Harness) -> None:
    harness.apply()
    workers = Workers(queue := WorkQueue(), harness.reconciler, Metrics(list))
    harness.kube.fail = failing("apply", "/configmaps", ApiError(500, "InternalError", "no etcd"))
    for _ in range(3):
        await workers._one(("ns", "job"))
    shown = harness.condition("Stalled")
    assert shown["status"] == "True"
    harness.kube.applied.clear()
    for _ in range(3):
        harness.now += 60.0
        await workers._one(("ns", "job"))
    written = [
        body["status"]["conditions"] for path, body, _ in harness.kube.applied if "/status" in path
    ]
    assert [c for found in written for c in found if c["type"] == "Stalled" and c != shown] == []
    harness.kube.fail = lambda verb, path: None
    await workers._one(("ns", "job"))
    assert (await queue.get()) == ("ns", "job"), "it is looked at again at once"
    await workers._one(("ns", "job"))
    assert harness.condition("Stalled")["status"] == "False"


async def test_a_rejection_that_lasts_keeps_its_time(harness: Harness) -> None:
    harness.apply()
    harness.kube.fail = failing("create", "/pods", ApiError(403, "Forbidden", "exceeded quota"))
    await harness.reconcile()
    times = set[str]()
    for _ in range(3):
        harness.now += 60.0
        await harness.reconcile()
        accepted = harness.condition("Accepted")
        assert accepted["reason"] == "PodRejected"
        times.add(accepted["lastTransitionTime"])
    assert len(times) == 1


async def test_badly_typed_pod_templates_are_refused(harness: Harness) -> None:
    template = {"spec": {"containers": [{"name": "agent", "securityContext": "x"}]}}
    harness.apply(worker={"image": "agent:1", "podTemplate": template})
    await harness.reconcile()
    accepted = harness.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecInvalid")
    assert "podTemplate.spec.containers[0].securityContext: is 'x'" in accepted["message"]


async def test_an_error_that_cannot_be_shown_stops_nothing(harness: Harness) -> None:
    harness.apply()
    harness.kube.fail = failing("get", "bamboojobs", ApiError(500, "InternalError", "no etcd"))
    await harness.reconciler.note_fault("ns", "job", ValueError("x"))
    assert harness.status == {}


async def test_a_conflict_is_retried_at_once(harness: Harness) -> None:
    harness.apply()
    harness.kube.fail = failing("apply", "/status", ApiError(409, "Conflict", "changed"))
    queue: WorkQueue[tuple[str, str]] = WorkQueue()
    await Workers(queue, harness.reconciler, Metrics(list))._one(("ns", "job"))
    assert len(queue) == 1


def deleting(harness: Harness, verb: str) -> Callable[[str, str], None]:
    """Somebody deletes the job just before it is read or its status is written."""

    def fail(seen: str, path: str) -> None:
        if seen == verb and path.startswith(PATH):
            harness.kube.objects.pop(PATH, None)

    return fail


async def test_a_job_deleted_while_its_status_is_written_is_no_error(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.apply()
    harness.kube.fail = deleting(harness, "apply")
    queue: WorkQueue[tuple[str, str]] = WorkQueue()
    workers = Workers(queue, harness.reconciler, Metrics(list))
    await workers._one(("ns", "job"))
    assert len(queue) == 1
    await workers._one(("ns", "job"))
    assert harness.jobs.find("uid-1") is None
    assert not workers._failures
    harness.apply()
    await harness.reconciler.note_fault("ns", "job", ValueError("x"))
    assert PATH not in harness.kube.objects
    assert not [r for r in caplog.records if r.levelno > logging.INFO]


async def test_a_second_404_is_an_error(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    harness.apply()
    harness.kube.fail = failing("apply", "/status", ApiError(404, "NotFound", "no such thing"))
    workers = Workers(WorkQueue(), harness.reconciler, Metrics(list))
    for _ in range(2):
        await workers._one(("ns", "job"))
    assert [r.message for r in caplog.records if r.levelname == "WARNING"] == ["a reconcile failed"]


async def written(harness: Harness) -> None:
    """Until the actors' writes are done."""
    while tasks := [task for actor in harness.jobs.all() for task in actor._tasks]:
        await asyncio.gather(*tasks)


@pytest.mark.parametrize("term", [4, 5, 9])
async def test_the_job_goes_on_from_a_late_write_of_the_old_leader(
    harness: Harness, term: int
) -> None:
    """It lands between the new leader's read and its first write: a newer plan, other voters.

    Its arbiter may have restarted, which raises the term.
    """
    harness.apply()
    old = Durable(term=4, plan=Fence(0, 4, 7), members=AGENTS, voters=AGENTS)
    late = replace(old, term=term, plan=Fence(0, term, 8), members=AGENTS[:1], voters=AGENTS[:1])
    harness.kube.objects[PATH]["status"] = {"arbiter": to_json(old)}
    is_late = True

    def hook(verb: str, path: str) -> None:
        nonlocal is_late
        if is_late and verb == "list":  # the first thing after the read
            is_late = False
            harness.status["arbiter"] = to_json(late)

    harness.kube.fail = hook
    await harness.reconcile()
    first = harness.jobs.find("uid-1")
    await written(harness)
    assert durable_facts.read(harness.kube.objects[PATH]) == late
    await harness.reconcile()
    await written(harness)
    second = harness.jobs.find("uid-1")
    assert first is not None
    assert second is not first
    assert durable_facts.read(harness.kube.objects[PATH]) == replace(late, term=term + 1, steps=10)
    await harness.reconcile()
    assert harness.jobs.find("uid-1") is second
    assert harness.status["planEpoch"] == 8


async def test_facts_that_became_unreadable_are_shown_not_overwritten(harness: Harness) -> None:
    harness.apply()
    await harness.reconcile()
    harness.status["arbiter"] = {"cut": 3}
    await written(harness)
    workers = Workers(WorkQueue(), harness.reconciler, Metrics(list))
    await workers._one(("ns", "job"))
    assert harness.condition("Stalled")["reason"] == "ReconcileError"
    assert harness.status["arbiter"] == {"cut": 3}


@pytest.mark.parametrize("verb", ["get", "apply"])
async def test_the_facts_of_a_deleted_job_are_dropped_silently(
    harness: Harness, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    harness.apply()
    await harness.reconcile()
    actor = harness.jobs.find("uid-1")
    assert actor is not None
    harness.kube.fail = deleting(harness, verb)
    actor._writer.put(Persist(Durable(term=9), version=99))
    await actor._persist()
    assert harness.kube.requests[-1][0] == verb
    assert not [r for r in caplog.records if r.levelno > logging.INFO]


async def test_no_reconcile_goes_on_after_the_end(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator that has lost the Lease must not write beside the next leader."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hang(namespace: str, name: str) -> float | None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return None

    monkeypatch.setattr(harness.reconciler, "reconcile", hang)
    workers = Workers(queue := WorkQueue(), harness.reconciler, Metrics(list))
    working = asyncio.create_task(workers.work())
    queue.add(("ns", "job"))
    await asyncio.wait_for(begun.wait(), 10)
    await asyncio.wait_for(workers.close(0.0), 10)
    assert ended.is_set()
    assert working.cancelled()
