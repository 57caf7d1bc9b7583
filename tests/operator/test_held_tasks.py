"""The plans of all jobs are bounded together: a job beyond that waits, and says why."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import pytest
from tests.core.controller.builders import JOB

from bamboo_core.api import limits
from bamboo_core.api.spec import FactorySpec
from bamboo_core.arbiter.events import ComputePlan, Planned
from bamboo_core.planning.requests import PlannerFault
from bamboo_operator import api
from bamboo_operator.held_tasks import HeldTasks, TaskLimits
from bamboo_operator.reconciler import FULL_PAUSE_S

from .harness import AGENTS, Harness
from .test_jobs import SlowPlanner, planned
from .test_servicer import refused, until

OTHER = replace(JOB, uid="uid-2", name="other")
FAR = replace(JOB, uid="uid-3", namespace="far")


def test_a_namespace_and_all_jobs_have_their_limits() -> None:
    held = HeldTasks(TaskLimits(all_jobs=150, namespace=100))
    assert held.hold(JOB, 60) == ""
    assert held.hold(OTHER, 41) == (
        "a step has 41 tasks; the jobs of namespace ns would have 101 together, and the operator"
        " holds at most 100 (the chart's value tasks.mostOfNamespace): use fewer micro-batches or"
        " pipelines, wait until another job ends, use another namespace, or have the operator's"
        " memory and the value raised"
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
    assert "the jobs of namespace ns would have" in accepted["message"]
    early = full.agent(AGENTS[0], token=full.add_pod(AGENTS[0]))
    code, text = await refused(early)
    assert (code, "no operator leads the job yet" in text) == (grpc.StatusCode.UNAVAILABLE, True)
    full.kube.objects.pop(api.pod("ns", AGENTS[0]))
    full.jobs.held.release(OTHER.uid)
    await full.reconcile()
    assert full.condition("Accepted")["status"] == "True"
    assert full.pods() == list(AGENTS)


async def test_a_suspended_job_needs_no_room(full: Harness) -> None:
    full.apply(suspend=True)
    await full.reconcile()
    assert full.condition("Accepted")["status"] == "True"


async def test_a_job_that_trained_under_an_earlier_operator_goes_on(full: Harness) -> None:
    full.kube.objects[api.job("ns", "job")]["status"] = {"phase": "Running"}
    await full.reconcile()
    assert full.condition("Accepted")["status"] == "True"


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
    assert "of namespace ns would have" in event.result.message
    assert len(slow.begun) == 1
    await actor.close()
    await until(lambda: slow.ended == [request])
