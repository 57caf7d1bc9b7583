"""``spec.training.steps`` is raised: nothing changes for the run that is under way.

A complete job goes on with new agents once those of its run are gone.
"""

from __future__ import annotations

from typing import Any

import pytest

from bamboo_core.api.identity import identity_hash
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter_state.durable import Durable, to_json
from bamboo_core.model.ids import Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol.messages import Manifest
from bamboo_core.validation.reading import from_manifest
from bamboo_operator.kube import api
from bamboo_operator.status import durable_facts

from ..harness import PATH, Harness
from .test_failed_starts import ended

FOLDER = {"uri": "file:///checkpoints/job"}
ONE_SEAT = {"count": 1, "stages": 1}
SCHEDULE = "bamboo_agent.schedules:cosine"


def complete(steps: int = 10, **changes: Any) -> dict[str, Any]:
    """The facts of a job that has committed these steps."""
    sealed = (Manifest(0, steps, f"/x/{steps}", "d"),)
    facts = Durable(
        term=1, plan=Fence(0, 1, 1), steps=steps, batch=BatchShape(32, 1, 32),
        outcome=Outcome.COMPLETE, reason="StepsReached", message=f"all {steps} steps are committed",
        committed=steps - 1, manifests=sealed,
    )  # fmt: skip
    return to_json(facts) | changes


def training(steps: int, **optimizer: Any) -> dict[str, Any]:
    made = {"factory": "torch.optim:SGD", "args": {"lr": 0.1}} | optimizer
    return {"steps": steps, "globalBatchSize": 64, "microBatchSize": 2, "optimizer": made}


def spec_of(harness: Harness) -> JobSpec:
    found = from_manifest(harness.kube.objects[PATH])
    assert isinstance(found, JobSpec)
    return found


def facts(harness: Harness) -> Durable:
    return durable_facts.read(harness.kube.objects[PATH])


async def done(harness: Harness, **spec: Any) -> None:
    """A complete job with these fields, whose agents are gone."""
    harness.apply(**{"checkpoint": FOLDER, "pipelines": ONE_SEAT, **spec})
    harness.kube.objects[PATH]["status"] = {"arbiter": complete(), "progress": {"steps": 10}}
    await harness.reconcile()
    assert harness.condition("Complete")["status"] == "True"
    assert harness.pods() == []


async def raised(harness: Harness, steps: int, **optimizer: Any) -> None:
    harness.edit(training=training(steps, **optimizer))
    await harness.reconcile()
    await harness.settle()


async def test_a_complete_job_goes_on_with_new_agents() -> None:
    harness = Harness()
    await done(harness)
    identity = harness.status["identity"]
    await raised(harness, 25)
    assert harness.status["phase"] == "Pending"
    assert harness.condition("Complete")["status"] == "False"
    assert harness.condition("Accepted")["status"] == "True"
    assert "completionTime" not in harness.status
    assert harness.status["progress"]["steps"] == 25
    assert harness.status["progress"]["step"] == 10
    assert harness.status["identity"] == identity_hash(spec_of(harness)) != identity
    assert harness.pods() == ["job-p0-s0-i0"]
    now = facts(harness)
    assert (now.steps, now.outcome, now.attempt) == (25, None, 1)
    assert now.manifest == Manifest(0, 10, "/x/10", "d")
    assert "spec.training.steps is raised to 25" in " ".join(r.message for r in harness.records)
    await harness.jobs.close()


async def test_a_complete_job_of_an_earlier_version_goes_on() -> None:
    harness = Harness()
    harness.apply(checkpoint=FOLDER, pipelines=ONE_SEAT)
    old = complete()
    del old["steps"]
    harness.kube.objects[PATH]["status"] = {"arbiter": old, "progress": {"steps": 10}}
    await harness.reconcile()
    assert harness.condition("Complete")["status"] == "True"
    await raised(harness, 11)
    assert harness.status["phase"] == "Pending"
    assert facts(harness).steps == 11
    await harness.jobs.close()


async def test_the_agents_of_the_old_run_leave_first() -> None:
    """Their ends are no failures of the new run."""
    harness = Harness()
    harness.apply(checkpoint=FOLDER, pipelines=ONE_SEAT)
    await harness.reconcile()
    (old,) = harness.pods()
    harness.kube.objects[PATH]["status"]["arbiter"] = complete()
    harness.edit(training=training(12))
    await harness.jobs.close()  # another operator comes
    harness = again(harness)
    await harness.reconcile()
    told = harness.condition("Complete")
    assert told["status"] == "True"
    assert "then it goes on to step 12, with new agents" in told["message"]
    assert harness.pods() == [old]
    status = {"phase": "Succeeded", "containerStatuses": [ended(0, "Completed")]}
    harness.kube.objects[api.pod("ns", old)]["status"] = status
    await harness.reconcile()
    await harness.reconcile()
    await harness.reconcile()
    await harness.settle()
    assert harness.pods() == ["job-p0-s0-i1"]
    assert harness.status["progress"]["steps"] == 12
    assert harness.status["failures"].get("total", 0) == 0
    await harness.jobs.close()


def again(before: Harness) -> Harness:
    """A new operator with the same API server."""
    harness = Harness()
    harness.kube.objects.update(before.kube.objects)
    return harness


@pytest.mark.parametrize("writes", [0, 1])
async def test_an_operator_that_ends_while_the_job_goes_on(writes: int) -> None:
    """One of the two writers of the status has written before it ended, the other has not."""
    harness = Harness()
    await done(harness)
    before = dict(harness.status)
    await raised(harness, 25)
    await harness.jobs.close()
    after, parts = dict(harness.status), ("arbiter",)
    mixed = {k: v for k, v in (before if writes else after).items() if k not in parts}
    mixed |= {k: (after if writes else before)[k] for k in parts}
    harness.kube.objects[PATH]["status"] = mixed
    for path in [p for p in harness.kube.objects if "/pods/" in p]:
        del harness.kube.objects[path]  # they come after the status
    harness = again(harness)
    for _ in range(3):
        await harness.reconcile()
        await harness.settle()
    assert harness.condition("Complete")["status"] == "False"
    assert harness.condition("Accepted")["status"] == "True"
    assert harness.status["progress"]["steps"] == 25
    assert (facts(harness).steps, facts(harness).outcome) == (25, None)
    assert len(harness.pods()) == 1
    await harness.jobs.close()


async def test_a_run_ends_where_it_was_to_end_when_it_began() -> None:
    harness = Harness()
    harness.apply(checkpoint=FOLDER, pipelines=ONE_SEAT)
    await harness.reconcile()
    await harness.settle()
    pods, actor = harness.pods(), harness.jobs.find("uid-1")
    await raised(harness, 25)
    assert harness.jobs.find("uid-1") is actor
    assert (harness.pods(), harness.status["progress"]["steps"]) == (pods, 10)
    assert facts(harness).steps == 10
    assert harness.condition("Accepted")["status"] == "True"
    await harness.jobs.close()


async def test_a_job_without_pods_takes_the_number_at_once() -> None:
    harness = Harness()
    harness.apply(suspend=True)
    await harness.reconcile()
    assert harness.status["progress"]["steps"] == 10
    await raised(harness, 25)
    assert harness.status["progress"]["steps"] == 25
    assert harness.condition("Accepted")["status"] == "True"
    await harness.jobs.close()


async def test_a_suspended_job_takes_the_number_at_once() -> None:
    harness = Harness()
    harness.apply(checkpoint=FOLDER, pipelines=ONE_SEAT, suspend=True)
    rests = complete(steps=10, outcome="Suspended", committed=5)
    rests["manifests"] = [[0, 6, "/x/6", "d"]]
    harness.kube.objects[PATH]["status"] = {"arbiter": rests, "progress": {"steps": 10}}
    await harness.reconcile()
    await raised(harness, 25)
    assert harness.status["phase"] == "Suspended"
    assert harness.status["progress"]["steps"] == 25
    harness.edit(suspend=False)
    await harness.reconcile()
    await harness.settle()
    assert (facts(harness).steps, facts(harness).outcome) == (25, None)
    await harness.jobs.close()


@pytest.mark.parametrize(
    ("spec", "steps", "why"),
    [
        ({"checkpoint": None}, 25, "without spec.checkpoint nothing is left to go on from"),
        ({}, 9, "spec.training.steps 9 is less than 10, with which the job has begun: set 10"),
        (
            {"schedule": {"factory": SCHEDULE, "args": {"total_steps": 8}}}, 25,
            "spec.training.steps 25 is not taken, 10 holds: spec.training.optimizer.schedule"
            f" {SCHEDULE} makes all rates 0 from args.total_steps 8 on",
        ),
    ],
)  # fmt: skip
async def test_a_number_that_cannot_be_taken_is_refused_and_the_result_stays(
    spec: dict[str, Any], steps: int, why: str
) -> None:
    harness = Harness()
    optimizer = {k: v for k, v in spec.items() if k == "schedule"}
    rest = {k: v for k, v in spec.items() if k != "schedule"}
    await done(harness, training=training(10, **optimizer), **rest)
    await raised(harness, steps, **optimizer)
    accepted = harness.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecChanged")
    assert why in accepted["message"]
    assert harness.condition("Complete")["status"] == "True"
    assert facts(harness).outcome is Outcome.COMPLETE
    assert harness.status["progress"]["steps"] == 10
    assert harness.pods() == []
    await harness.reconcile()
    await raised(harness, 10, **optimizer)
    assert harness.condition("Accepted")["status"] == "True"
    await harness.jobs.close()


@pytest.mark.parametrize("args", [{"total_steps": 11}, {"total_steps": 8, "final": 0.1}])
async def test_a_schedule_that_goes_on_is_no_obstacle(args: dict[str, float]) -> None:
    harness, schedule = Harness(), {"factory": SCHEDULE, "args": args}
    await done(harness, training=training(10, schedule=schedule))
    await raised(harness, 25, schedule=schedule)
    assert facts(harness).steps == 25
    await harness.jobs.close()


async def test_a_failed_job_does_not_go_on() -> None:
    harness = Harness()
    harness.apply(checkpoint=FOLDER, pipelines=ONE_SEAT)
    failed = complete() | {"outcome": "Failed", "reason": "CheckpointFailed", "message": "full"}
    harness.kube.objects[PATH]["status"] = {"arbiter": failed, "progress": {"steps": 10}}
    await harness.reconcile()
    await raised(harness, 25)
    assert "the job has failed: create a new BambooJob" in harness.condition("Accepted")["message"]
    assert harness.condition("Failed")["status"] == "True"
    assert harness.pods() == []


async def test_a_job_that_goes_on_is_not_deleted_after_its_time() -> None:
    harness = Harness()
    harness.apply(
        checkpoint=FOLDER, pipelines=ONE_SEAT, runPolicy={"ttlSecondsAfterFinished": 0},
        training=training(12),
    )  # fmt: skip
    harness.kube.objects[PATH]["status"] = {"arbiter": complete(), "progress": {"steps": 10}}
    await harness.reconcile()
    await harness.reconcile()
    await harness.settle()
    assert PATH in harness.kube.objects
    assert harness.status["progress"]["steps"] == 12
    await harness.jobs.close()


async def test_a_larger_number_does_not_count_while_something_else_is_refused() -> None:
    harness = Harness()
    await done(harness)
    harness.edit(training=training(25), model={"factory": "m:build", "args": {"layers": 5}})
    await harness.reconcile()
    assert harness.condition("Accepted")["reason"] == "SpecChanged"
    assert harness.condition("Complete")["status"] == "True"
    harness.edit(model={"factory": "m:build", "args": {"layers": 4}})
    await harness.reconcile()
    await harness.settle()
    assert harness.condition("Accepted")["status"] == "True"
    assert facts(harness).steps == 25
    assert harness.kube.objects.get(api.pod("ns", "job-p0-s0-i0"))
    await harness.jobs.close()


async def test_an_operator_without_room_keeps_what_was_taken() -> None:
    """The identity in the status is always that of the steps in it."""
    harness = Harness()
    await done(harness)
    hold = harness.jobs.held.hold
    harness.jobs.held.hold = lambda *_, **__: "there is no room"  # type: ignore[method-assign]
    await raised(harness, 25)
    assert harness.condition("Accepted")["reason"] == "OperatorFull"
    harness.jobs.held.hold = hold  # type: ignore[method-assign]
    harness.now += 20.0
    await harness.reconcile()
    await harness.settle()
    assert harness.condition("Accepted")["status"] == "True"
    assert harness.status["progress"]["steps"] == 25
    assert len(harness.pods()) == 1
    await harness.jobs.close()
