"""The plans of all jobs are bounded together: a job beyond that waits, and says why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import pytest
from tests.core.controller.builders import JOB, manifest, spec

from bamboo_core.admission.quota import QUEUE_LABEL
from bamboo_core.api import limits
from bamboo_core.api.spec import FactorySpec
from bamboo_core.arbiter_state.events import ComputePlan, Planned
from bamboo_core.planning.requests import PlannerFault
from bamboo_operator import config
from bamboo_operator.admission.held_tasks import HeldTasks, TaskLimits
from bamboo_operator.app import App
from bamboo_operator.kube import api
from bamboo_operator.process.event_loop import LoopHearing
from bamboo_operator.reconcile.reconciler import FULL_PAUSE_S

from ..agent_client import refused, until
from ..arbiters.test_job_actor import SlowPlanner, planned
from ..harness import AGENTS, PATH, Harness
from ..memory_api import MemoryApi

OTHER = replace(JOB, uid="uid-2", name="other")
FAR = replace(JOB, uid="uid-3", namespace="far")


def test_a_namespace_and_all_jobs_have_their_limits() -> None:
    held = HeldTasks(TaskLimits(all_jobs=150, namespace=100))
    assert held.hold(JOB, 60) == ""
    assert held.hold(OTHER, 41) == (
        "a step has 41 tasks; the jobs of namespace ns would have 101 together, and the operator"
        " holds at most 100: wait until another job ends, ask the administrator to raise the"
        " chart's value tasks.mostOfNamespace together with the operator's memory, or create a new"
        " BambooJob with fewer micro-batches or pipelines, or in another namespace"
    )
    assert "all jobs would have 151 together, and the operator holds at most 150" in (
        held.hold(FAR, 91)
    )
    assert held.hold(FAR, 90) == ""
    held.release(JOB.uid)
    assert held.hold(OTHER, 41) == ""


def test_a_job_that_grows_counts_once_and_keeps_what_it_had() -> None:
    held = HeldTasks(TaskLimits(all_jobs=100, namespace=100))
    assert held.hold(JOB, 60) == ""
    assert held.hold(JOB, 100) == ""
    assert held.hold(JOB, 101) != ""
    assert held.hold(JOB, 10) == ""
    assert held.hold(OTHER, 1) != ""


def test_a_job_that_has_started_counts_in_any_case() -> None:
    held = HeldTasks(TaskLimits(all_jobs=100, namespace=100))
    assert held.hold(JOB, 101, is_started=True) == ""
    assert held.hold(OTHER, 1) != ""


def test_the_first_plan_after_another_operator_counts_with_its_validation_in_any_case() -> None:
    """The other operator has held it already. A later, larger plan has to fit."""
    held = HeldTasks(TaskLimits(all_jobs=100, namespace=100))
    assert held.hold(OTHER, 50) == ""
    assert held.hold(JOB, 50, is_started=True) == ""
    assert held.plan(OTHER, 60) != ""
    assert held.plan(JOB, 60) == ""
    assert held.plan(JOB, 60) == ""
    assert held.plan(JOB, 61) != ""


def test_a_namespace_has_a_little_even_if_others_have_taken_all() -> None:
    held = HeldTasks(TaskLimits(all_jobs=640, namespace=320))
    assert held.hold(JOB, 320) == ""
    assert held.hold(replace(FAR, uid="uid-4", namespace="away"), 320) == ""
    assert "all jobs would have" in held.hold(FAR, 11)
    assert held.hold(FAR, 10) == ""
    assert "all jobs would have" in held.hold(replace(FAR, uid="uid-5"), 1)


@pytest.fixture
async def full() -> AsyncIterator[Harness]:
    """Another job has taken everything."""
    harness = Harness()
    assert harness.jobs.held.hold(OTHER, TaskLimits().namespace) == ""
    harness.apply()
    await harness.serve()
    yield harness
    await harness.close()


async def test_a_job_waits_until_there_is_room(full: Harness) -> None:
    """Its agents are not heard, and it gets none, however often it is looked at."""
    assert await full.reconcile() == FULL_PAUSE_S
    assert full.pods() == []
    accepted = full.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "OperatorFull")
    assert accepted["message"].startswith("plans: a step has ")
    assert "the jobs of namespace ns would have" in accepted["message"]
    early = full.agent(AGENTS[0], token=full.add_pod(AGENTS[0]))
    code, text = await refused(early)
    assert (code, "no operator leads the job yet" in text) == (grpc.StatusCode.UNAVAILABLE, True)
    full.kube.objects.pop(api.pod("ns", AGENTS[0]))
    full.jobs.held.release(OTHER.uid)
    await full.reconcile()
    assert full.condition("Accepted")["status"] == "True"
    assert full.pods() == list(AGENTS)


async def test_a_job_that_was_starting_under_an_earlier_operator_keeps_its_pods(
    full: Harness,
) -> None:
    full.add_pod(AGENTS[0])
    full.kube.objects[PATH]["status"] = {"phase": "Starting"}
    await full.reconcile()
    assert full.condition("Accepted")["reason"] == "OperatorFull"
    assert full.pods() == [AGENTS[0]]


async def test_a_suspended_job_needs_no_room(full: Harness) -> None:
    full.apply(suspend=True)
    await full.reconcile()
    assert full.condition("Accepted")["status"] == "True"


async def test_a_job_at_rest_gives_its_tasks_back_once_its_agents_are_gone(
    harness: Harness,
) -> None:
    harness.apply()
    await harness.reconcile()
    own = harness.jobs.held.of(JOB.uid)
    assert own > 0
    harness.kube.objects[PATH]["spec"]["suspend"] = True
    await harness.reconcile()  # its pods are deleted
    before = harness.jobs.find(JOB.uid)
    assert before is not None
    assert harness.jobs.held.of(JOB.uid) == own  # its facts are not durable yet
    await until(lambda: before.has_written)
    await harness.reconcile()
    assert harness.jobs.held.of(JOB.uid) == 0
    await harness.reconcile()
    actor = harness.jobs.find(JOB.uid)
    assert actor is not None
    assert actor is not before
    await harness.reconcile()
    assert harness.jobs.find(JOB.uid) is actor
    harness.kube.objects[PATH]["spec"]["suspend"] = False
    await harness.reconcile()
    assert (harness.jobs.held.of(JOB.uid), harness.pods() != []) == (own, True)


async def test_a_job_that_trained_under_an_earlier_operator_goes_on(full: Harness) -> None:
    full.kube.objects[api.job("ns", "job")]["status"] = {"phase": "Running"}
    await full.reconcile()
    assert full.condition("Accepted")["status"] == "True"


async def test_jobs_that_have_trained_hold_their_tasks_before_those_that_wait(
    harness: Harness,
) -> None:
    """After a restart nobody knows whose reconcile comes first."""
    whole = limits.tasks(spec()) * 3 // 2
    held = HeldTasks(TaskLimits(all_jobs=whole, namespace=whole))
    harness.jobs._ports = replace(harness.jobs._ports, held=held)
    harness.apply()
    for name, labels in (("trained", {}), ("queued", {QUEUE_LABEL: "queue"}), ("ended", {})):
        body = manifest()
        body["metadata"] |= {"name": name, "uid": name, "labels": labels}
        harness.kube.put(api.job("ns", name), body | {"status": {"phase": "Running"}})
    ended = harness.kube.objects[api.job("ns", "ended")]["status"]
    ended["conditions"] = [{"type": "Failed", "status": "True", "reason": "UserCodeFailed"}]
    await harness.line.load(["ns"], held)
    assert [held.of(uid) for uid in ("trained", "queued", "ended", JOB.uid)] == [
        limits.tasks(spec()), limits.tasks(spec()), 0, 0,
    ]  # fmt: skip
    await harness.reconcile()
    assert harness.condition("Accepted")["reason"] == "OperatorFull"


async def test_a_job_that_goes_before_its_first_reconcile_gives_its_tasks_back() -> None:
    """Nobody forgets it, since nobody has led it."""
    kube = MemoryApi()
    given = config.from_env({"POD_IP": "127.0.0.1", "BAMBOO_NAMESPACES": "ns"})
    app = App(given, kube, LoopHearing())
    body = manifest()
    body["metadata"] |= {"uid": OTHER.uid}
    kube.put(api.job("ns", "other"), body)
    assert app.held.hold(JOB, 10, is_started=True) == ""
    assert app.held.hold(OTHER, 10, is_started=True) == ""
    assert app.held.hold(FAR, 10) == ""  # created after the list, perhaps
    resync = asyncio.create_task(app._resync())
    await until(lambda: app.held.of(JOB.uid) == 0)
    assert (app.held.of(OTHER.uid), app.held.of(FAR.uid)) == (10, 10)
    resync.cancel()


async def test_a_job_that_is_gone_gives_its_tasks_back(harness: Harness) -> None:
    harness.apply()
    await harness.reconcile()
    whole = TaskLimits().namespace
    assert harness.jobs.held.hold(OTHER, whole) != ""
    await harness.jobs.forget([JOB.uid])
    assert harness.jobs.held.hold(OTHER, whole) == ""


async def test_what_agents_say_of_the_validation_counts_before_it_is_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job is held, and its planner is asked again: see core/arbiter/rounds.py."""
    slow = SlowPlanner()
    told: list[Planned] = []
    actor = await planned(slow)
    (request,) = slow.begun
    held, own = actor._ports.held, limits.tasks(request.spec)
    assert held.hold(OTHER, TaskLimits().namespace - own) == ""
    validated = replace(request.spec.data, validation=FactorySpec("m:v"))
    larger = replace(request.spec, data=validated)
    monkeypatch.setattr(actor, "tell", told.append)
    actor._perform(ComputePlan(2, replace(request, spec=larger, validation_samples=1000)))
    await until(lambda: told != [])
    (event,) = told
    assert isinstance(event, Planned)
    assert isinstance(event.result, PlannerFault)
    assert not event.result.is_defect
    assert "of namespace ns would have" in event.result.message
    assert len(slow.begun) == 1
    await actor.close()
    await until(lambda: slow.ended == [request])


async def test_a_job_that_trains_and_grows_gets_its_agents_from_a_full_operator(
    harness: Harness,
) -> None:
    """As long as there is room for what its pipelines send each other."""
    harness.apply()
    await harness.reconcile()
    body = harness.kube.objects[PATH]
    body["status"] |= {"phase": "Running", "arbiter": {"batch": [32, 1, 1]}}
    own = harness.jobs.held.of(JOB.uid)
    more = 2 * (4**2 - 1)
    assert harness.jobs.held.hold(OTHER, TaskLimits().namespace - own - more) == ""
    body["spec"]["pipelines"]["count"] = 4
    await harness.reconcile()
    assert harness.condition("Accepted")["status"] == "True"
    assert len(harness.pods()) == 8
