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

from .world import AGENTS, PATH, World, failing


async def test_an_error_of_one_job_is_shown_and_retried(world: World) -> None:
    """Unreadable facts are a defect that only this job has."""
    world.apply()
    await world.reconcile()
    await world.jobs.close()
    world.status["arbiter"] = {"cut": 3}
    queue: WorkQueue[tuple[str, str]] = WorkQueue()
    workers = Workers(queue, world.reconciler, Metrics(list))
    await workers._one(("ns", "job"))
    stalled = world.condition("Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "ReconcileError")
    assert queue._schedule.next_at() is not None


async def test_an_error_of_the_first_reconcile_is_shown(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AttributeError("'str' object has no attribute 'get'")

    world.apply()
    workers = Workers(WorkQueue(), world.reconciler, Metrics(list))
    with monkeypatch.context() as patched:
        patched.setattr("bamboo_core.api.spec.from_manifest", fail)
        await workers._one(("ns", "job"))
    accepted, stalled = world.condition("Accepted"), world.condition("Stalled")
    assert (accepted["status"], accepted["reason"]) == ("Unknown", "ReconcileError")
    assert "AttributeError: 'str' object has no attribute 'get'" in accepted["message"]
    assert stalled["status"] == "True"
    world.apply(model={"factory": "m:b", "args": {"a b": 1}})
    await workers._one(("ns", "job"))
    assert world.condition("Accepted")["reason"] == "SpecInvalid"
    world.apply()
    await workers._one(("ns", "job"))
    assert world.condition("Accepted")["status"] == "True"
    assert world.condition("Stalled")["status"] == "False"


async def test_a_refused_job_that_meets_an_error_is_refused_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.apply(model={"factory": "m:b", "args": {"a b": 1}})
    workers = Workers(WorkQueue(), world.reconciler, Metrics(list))
    await workers._one(("ns", "job"))
    with monkeypatch.context() as patched:
        patched.setattr("bamboo_core.api.spec.from_manifest", lambda _: 1 / 0)
        await workers._one(("ns", "job"))
    assert world.condition("Stalled")["reason"] == "ReconcileError"
    await workers._one(("ns", "job"))
    assert [c["type"] for c in world.status["conditions"]] == ["Accepted", "Running"]
    assert world.condition("Accepted")["reason"] == "SpecInvalid"


async def test_repeated_api_errors_are_shown(world: World) -> None:
    world.apply()
    world.kube.fail = failing("list", "/pods", ApiError(500, "InternalError", "no etcd"))
    workers = Workers(WorkQueue(), world.reconciler, Metrics(list))
    for _ in range(2):
        await workers._one(("ns", "job"))
    assert world.status == {}
    await workers._one(("ns", "job"))
    assert "no etcd" in world.condition("Stalled")["message"]


async def test_badly_typed_pod_templates_are_refused(world: World) -> None:
    template = {"spec": {"containers": [{"name": "agent", "securityContext": "x"}]}}
    world.apply(worker={"image": "agent:1", "podTemplate": template})
    await world.reconcile()
    accepted = world.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecInvalid")
    assert "podTemplate.spec.containers[0].securityContext: is 'x'" in accepted["message"]


async def test_an_error_that_cannot_be_shown_stops_nothing(world: World) -> None:
    world.apply()
    world.kube.fail = failing("get", "bamboojobs", ApiError(500, "InternalError", "no etcd"))
    await world.reconciler.note_fault("ns", "job", ValueError("x"))
    assert world.status == {}


async def test_a_conflict_is_retried_at_once(world: World) -> None:
    world.apply()
    world.kube.fail = failing("apply", "/status", ApiError(409, "Conflict", "changed"))
    queue: WorkQueue[tuple[str, str]] = WorkQueue()
    await Workers(queue, world.reconciler, Metrics(list))._one(("ns", "job"))
    assert len(queue) == 1


def deleting(world: World, verb: str) -> Callable[[str, str], None]:
    """Somebody deletes the job just before it is read or its status is written."""

    def fail(seen: str, path: str) -> None:
        if seen == verb and path.startswith(PATH):
            world.kube.objects.pop(PATH, None)

    return fail


async def test_a_job_deleted_while_its_status_is_written_is_no_error(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.apply()
    world.kube.fail = deleting(world, "apply")
    queue: WorkQueue[tuple[str, str]] = WorkQueue()
    workers = Workers(queue, world.reconciler, Metrics(list))
    await workers._one(("ns", "job"))
    assert len(queue) == 1
    await workers._one(("ns", "job"))
    assert world.jobs.find("uid-1") is None
    assert not workers._failures
    world.apply()
    await world.reconciler.note_fault("ns", "job", ValueError("x"))
    assert PATH not in world.kube.objects
    assert not [r for r in caplog.records if r.levelno > logging.INFO]


async def test_a_second_404_is_an_error(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.apply()
    world.kube.fail = failing("apply", "/status", ApiError(404, "NotFound", "no such thing"))
    workers = Workers(WorkQueue(), world.reconciler, Metrics(list))
    for _ in range(2):
        await workers._one(("ns", "job"))
    assert [r.message for r in caplog.records if r.levelname == "WARNING"] == ["a reconcile failed"]


async def written(world: World) -> None:
    """Until the actors' writes are done."""
    while tasks := [task for actor in world.jobs.all() for task in actor._tasks]:
        await asyncio.gather(*tasks)


@pytest.mark.parametrize("term", [4, 5, 9])
async def test_the_job_goes_on_from_a_late_write_of_the_old_leader(world: World, term: int) -> None:
    """It lands between the new leader's read and its first write: a newer plan, other voters.

    Its arbiter may have restarted, which raises the term.
    """
    world.apply()
    old = Durable(term=4, plan=Fence(0, 4, 7), members=AGENTS, voters=AGENTS)
    late = replace(old, term=term, plan=Fence(0, term, 8), members=AGENTS[:1], voters=AGENTS[:1])
    world.kube.objects[PATH]["status"] = {"arbiter": codec.to_json(old)}
    is_late = True

    def hook(verb: str, path: str) -> None:
        nonlocal is_late
        if is_late and verb == "list":  # the first thing after the read
            is_late = False
            world.status["arbiter"] = codec.to_json(late)

    world.kube.fail = hook
    await world.reconcile()
    first = world.jobs.find("uid-1")
    await written(world)
    assert facts.read(world.kube.objects[PATH]) == late
    await world.reconcile()
    await written(world)
    second = world.jobs.find("uid-1")
    assert first is not None
    assert second is not first
    assert facts.read(world.kube.objects[PATH]) == replace(late, term=term + 1)
    await world.reconcile()
    assert world.jobs.find("uid-1") is second
    assert world.status["planEpoch"] == 8


async def test_facts_that_became_unreadable_are_shown_not_overwritten(world: World) -> None:
    world.apply()
    await world.reconcile()
    world.status["arbiter"] = {"cut": 3}
    await written(world)
    workers = Workers(WorkQueue(), world.reconciler, Metrics(list))
    await workers._one(("ns", "job"))
    assert world.condition("Stalled")["reason"] == "ReconcileError"
    assert world.status["arbiter"] == {"cut": 3}


@pytest.mark.parametrize("verb", ["get", "apply"])
async def test_the_facts_of_a_deleted_job_are_dropped_silently(
    world: World, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    world.apply()
    await world.reconcile()
    actor = world.jobs.find("uid-1")
    assert actor is not None
    world.kube.fail = deleting(world, verb)
    actor._pending = Persist(Durable(term=9), version=99)
    await actor._persist()
    assert world.kube.requests[-1][0] == verb
    assert not [r for r in caplog.records if r.levelno > logging.INFO]
