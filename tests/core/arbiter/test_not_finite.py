"""Steps whose gradients are not finite change no layer: how many are tolerated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.events import EventFact, EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import JobSpec, OnNonFinite
from bamboo_core.arbiter_state import events as a
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import CommitRecord, Progress

from .fleet import Fleet, spec


def tolerant(skip: int) -> JobSpec:
    job = spec(stages=3, steps=400)
    return replace(job, training=replace(job.training, on_non_finite=OnNonFinite(skip)))


def running(skip: int, *, checkpoint: bool = True) -> Fleet:
    job = tolerant(skip)
    fleet = Fleet(job if checkpoint else replace(job, checkpoint=None), layers=3)
    fleet.add_grid(1, 3)
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    return fleet


def commit(fleet: Fleet, step: int, row: int = 1, *, total: int = 1, culprit: int = -1) -> None:
    """Every member commits the step, the ``row``-th in a row that changed nothing."""
    record = CommitRecord(step, finite=not row, culprit=culprit, skipped=total, skipped_in_row=row)
    for name in ("a0", "a1", "a2"):
        fleet.receive(AgentId(name), Progress(record, fleet.arbiter.fence))


def told(fleet: Fleet) -> list[int]:
    found = [r for r in fleet.records if r.reason is EventReason.STEP_SKIPPED]
    return [int(r.facts[EventFact.STEP]) for r in found]


def test_a_job_that_skips_too_many_steps_in_a_row_fails() -> None:
    fleet = running(skip=10)
    commit(fleet, 0, 0, total=0)
    for step in range(1, 11):
        commit(fleet, step, step, total=step, culprit=1)
    assert fleet.arbiter.status().outcome is None
    assert fleet.arbiter.status().progress.skipped == 10
    commit(fleet, 11, 11, total=11, culprit=2)
    text = (
        "the gradient of layer 2 is not finite in step 11; 11 steps in a row changed no layer,"
        " more than spec.training.onNonFinite.skip 10"
    )
    assert fleet.arbiter.durable.failing == text
    fleet.run()
    over, step = fleet.over, fleet.sealed[-1].step
    assert over is not None
    assert (over.outcome, over.reason) == (Outcome.FAILED, "NotFinite")
    assert over.message.startswith(f"{text}; ")
    assert f"in the checkpoint of step {step}: spec.checkpoint.from" in over.message


def test_it_fails_at_once_without_checkpoints() -> None:
    fleet = running(skip=0, checkpoint=False)
    commit(fleet, 0, 1, culprit=2)
    status = fleet.arbiter.status()
    assert (status.outcome, status.reason) == (Outcome.FAILED, "NotFinite")
    assert status.message == (
        "the gradient of layer 2 is not finite in step 0; 1 step in a row changed no layer, more"
        " than spec.training.onNonFinite.skip 0"
    )


def test_what_is_skipped_is_told_ever_more_rarely() -> None:
    fleet = running(skip=100)
    for step in range(20):
        commit(fleet, step, step + 1)
    assert told(fleet) == [0, 1, 3, 7, 15]
    assert "the norm of the gradients is not finite in step 0" in next(
        r.message for r in fleet.records if r.reason is EventReason.STEP_SKIPPED
    )


def test_a_batch_without_targets_is_told_as_such() -> None:
    fleet = running(skip=0, checkpoint=False)
    record = CommitRecord(0, finite=False, skipped=1, skipped_in_row=1, targets=0)
    fleet.receive(AgentId("a0"), Progress(record, fleet.arbiter.fence))
    status = fleet.arbiter.status()
    assert (status.outcome, status.reason) == (Outcome.FAILED, "NotFinite")
    assert status.message.startswith(
        "the global batch of step 0 has no targets: its loss counted none; 1 step in a row"
    )


def test_metrics_are_known_until_their_step_is_lost() -> None:
    fleet = running(skip=0)
    record = CommitRecord(
        0, loss=1.5, validation_loss=2.0, metrics={"a": 0.5}, validation_metrics={"a": 0.25}
    )
    fleet.receive(AgentId("a0"), Progress(record, fleet.arbiter.fence))
    progress = fleet.arbiter.status().progress
    assert (progress.metrics, progress.validation_metrics) == ({"a": 0.5}, {"a": 0.25})


def test_commits_that_were_not_heard_are_counted_by_the_agents() -> None:
    """A broken session loses progress. Steps 4 to 24 were finite, so step 25 is the first in a row;
    a new leader hears at once how many it were."""
    fleet = running(skip=10)
    commit(fleet, 3, 1, total=1)
    commit(fleet, 25, 1, total=2)
    assert fleet.arbiter.status().outcome is None
    assert fleet.arbiter.status().progress.skipped == 2
    commit(fleet, 40, 12, total=14)
    assert fleet.arbiter.durable.failing


@pytest.mark.parametrize("skip", [0, 1])
def test_no_step_may_be_skipped(skip: int) -> None:
    fleet = running(skip)
    commit(fleet, 0)
    assert bool(fleet.arbiter.durable.failing) is (skip == 0)
