"""A reconcile that meets errors, conflicts, late writes and jobs that vanish meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from bamboo_core.arbiter import durable as codec
from bamboo_core.arbiter.durable import Durable
from bamboo_core.arbiter.events import Persist
from bamboo_core.model.ids import Fence
from bamboo_operator import facts
from bamboo_operator.api import ApiError
from bamboo_operator.metrics import Metrics
from bamboo_operator.workers import Workers
from bamboo_operator.workqueue import WorkQueue

from .desk import AGENTS, PATH, Desk, failing


async def test_one_jobs_error_is_shown_and_tried_again(desk: Desk) -> None:
    """Unreadable facts are a defect that only this job has."""
    desk.apply()
    await desk.reconcile()
    await desk.jobs.close()
    desk.status["arbiter"] = {"cut": 3}
    queue: WorkQueue[tuple[str, str]] = WorkQueue()
    workers = Workers(queue, desk.reconciler, Metrics(list))
    await workers._one(("ns", "job"))
    stalled = desk.condition("Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "ReconcileError")
    assert queue._schedule.next_at() is not None


async def test_an_error_at_the_first_look_is_shown_too(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AttributeError("'str' object has no attribute 'get'")

    desk.apply()
    workers = Workers(WorkQueue(), desk.reconciler, Metrics(list))
    with monkeypatch.context() as patched:
        patched.setattr("bamboo_core.api.spec.from_manifest", fail)
        await workers._one(("ns", "job"))
    accepted, stalled = desk.condition("Accepted"), desk.condition("Stalled")
    assert (accepted["status"], accepted["reason"]) == ("Unknown", "ReconcileError")
    assert "AttributeError: 'str' object has no attribute 'get'" in accepted["message"]
    assert stalled["status"] == "True"
    desk.apply(model={"factory": "m:b", "args": {"a b": 1}})
    await workers._one(("ns", "job"))
    assert desk.condition("Accepted")["reason"] == "SpecInvalid"
    desk.apply()
    await workers._one(("ns", "job"))
    assert desk.condition("Accepted")["status"] == "True"
    assert desk.condition("Stalled")["status"] == "False"


async def test_a_refused_job_that_meets_an_error_is_refused_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.apply(model={"factory": "m:b", "args": {"a b": 1}})
    workers = Workers(WorkQueue(), desk.reconciler, Metrics(list))
    await workers._one(("ns", "job"))
    with monkeypatch.context() as patched:
        patched.setattr("bamboo_core.api.spec.from_manifest", lambda _: 1 / 0)
        await workers._one(("ns", "job"))
    assert desk.condition("Stalled")["reason"] == "ReconcileError"
    await workers._one(("ns", "job"))
    assert [c["type"] for c in desk.status["conditions"]] == ["Accepted", "Running"]
    assert desk.condition("Accepted")["reason"] == "SpecInvalid"


async def test_an_api_server_that_goes_on_failing_is_shown(desk: Desk) -> None:
    desk.apply()
    desk.kube.fail = failing("list", "/pods", ApiError(500, "InternalError", "no etcd"))
    workers = Workers(WorkQueue(), desk.reconciler, Metrics(list))
    for _ in range(2):
        await workers._one(("ns", "job"))
    assert desk.status == {}
    await workers._one(("ns", "job"))
    assert "no etcd" in desk.condition("Stalled")["message"]


async def test_badly_typed_pod_templates_are_refused(desk: Desk) -> None:
    template = {"spec": {"containers": [{"name": "agent", "securityContext": "x"}]}}
    desk.apply(worker={"image": "agent:1", "podTemplate": template})
    await desk.reconcile()
    accepted = desk.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecInvalid")
    assert "podTemplate.spec.containers[0].securityContext: is 'x'" in accepted["message"]


async def test_a_fault_that_cannot_be_noted_stops_nothing(desk: Desk) -> None:
    desk.apply()
    desk.kube.fail = failing("get", "bamboojobs", ApiError(500, "InternalError", "no etcd"))
    await desk.reconciler.note_fault("ns", "job", ValueError("x"))
    assert desk.status == {}


async def test_a_conflict_is_tried_again_at_once(desk: Desk) -> None:
    desk.apply()
    desk.kube.fail = failing("apply", "/status", ApiError(409, "Conflict", "changed"))
    queue: WorkQueue[tuple[str, str]] = WorkQueue()
    await Workers(queue, desk.reconciler, Metrics(list))._one(("ns", "job"))
    assert len(queue) == 1


def deleting(desk: Desk, verb: str) -> Callable[[str, str], None]:
    """Somebody deletes the job just before it is read or its status is written."""

    def fail(seen: str, path: str) -> None:
        if seen == verb and path.startswith(PATH):
            desk.kube.objects.pop(PATH, None)

    return fail


async def test_a_job_deleted_while_its_status_is_written_is_no_error(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.apply()
    desk.kube.fail = deleting(desk, "apply")
    queue: WorkQueue[tuple[str, str]] = WorkQueue()
    workers = Workers(queue, desk.reconciler, Metrics(list))
    await workers._one(("ns", "job"))
    assert len(queue) == 1
    await workers._one(("ns", "job"))
    assert desk.jobs.find("uid-1") is None
    assert not workers._failures
    desk.apply()
    await desk.reconciler.note_fault("ns", "job", ValueError("x"))
    assert PATH not in desk.kube.objects
    assert not [r for r in caplog.records if r.levelno > logging.INFO]


async def test_what_is_missing_again_is_told(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.apply()
    desk.kube.fail = failing("apply", "/status", ApiError(404, "NotFound", "no such thing"))
    workers = Workers(WorkQueue(), desk.reconciler, Metrics(list))
    for _ in range(2):
        await workers._one(("ns", "job"))
    assert [r.message for r in caplog.records if r.levelname == "WARNING"] == ["a reconcile failed"]


async def written(desk: Desk) -> None:
    """Until the actors' writes are done."""
    while tasks := [task for actor in desk.jobs.all() for task in actor._tasks]:
        await asyncio.gather(*tasks)


@pytest.mark.parametrize("term", [4, 5, 9])
async def test_a_late_write_of_the_old_leader_is_led_on_from(desk: Desk, term: int) -> None:
    """It lands between the new leader's read and its first write: a newer plan, other voters.

    Its arbiter may have begun anew in its process, which raises the term.
    """
    desk.apply()
    old = Durable(term=4, plan=Fence(0, 4, 7), members=AGENTS, voters=AGENTS)
    late = replace(old, term=term, plan=Fence(0, term, 8), members=AGENTS[:1], voters=AGENTS[:1])
    desk.kube.objects[PATH]["status"] = {"arbiter": codec.to_json(old)}
    is_late = True

    def hook(verb: str, path: str) -> None:
        nonlocal is_late
        if is_late and verb == "list":  # the first thing after the read
            is_late = False
            desk.status["arbiter"] = codec.to_json(late)

    desk.kube.fail = hook
    await desk.reconcile()
    first = desk.jobs.find("uid-1")
    await written(desk)
    assert facts.read(desk.kube.objects[PATH]) == late
    await desk.reconcile()
    await written(desk)
    second = desk.jobs.find("uid-1")
    assert first is not None
    assert second is not first
    assert facts.read(desk.kube.objects[PATH]) == replace(late, term=term + 1)
    await desk.reconcile()
    assert desk.jobs.find("uid-1") is second
    assert desk.status["planEpoch"] == 8


async def test_facts_that_became_unreadable_are_shown_not_overwritten(desk: Desk) -> None:
    desk.apply()
    await desk.reconcile()
    desk.status["arbiter"] = {"cut": 3}
    await written(desk)
    workers = Workers(WorkQueue(), desk.reconciler, Metrics(list))
    await workers._one(("ns", "job"))
    assert desk.condition("Stalled")["reason"] == "ReconcileError"
    assert desk.status["arbiter"] == {"cut": 3}


@pytest.mark.parametrize("verb", ["get", "apply"])
async def test_the_facts_of_a_deleted_job_are_dropped_silently(
    desk: Desk, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    desk.apply()
    await desk.reconcile()
    actor = desk.jobs.find("uid-1")
    assert actor is not None
    desk.kube.fail = deleting(desk, verb)
    actor._pending = Persist(Durable(term=9), version=99)
    await actor._persist()
    assert desk.kube.requests[-1][0] == verb
    assert not [r for r in caplog.records if r.levelno > logging.INFO]
