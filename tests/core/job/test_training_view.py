"""What users see of the training while agents, leaders and attempts come and go."""

from __future__ import annotations

from dataclasses import replace

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.progress import TrainingProgress
from bamboo_core.api.spec import RedundancyMode
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.controller.view import Losses
from bamboo_core.job.training_view import LastReported, ended, follow
from bamboo_core.model.ids import Fence
from bamboo_core.protocol.messages import Manifest

SILENT = TrainingProgress()


def test_reports_of_agents_take_precedence() -> None:
    progress = TrainingProgress(7, loss=0.5, validation_loss=0.25, step_s=2.0)
    before = TrainingProgress(3, loss=2.0, validation_loss=1.0)
    found = follow(before, progress, Durable(committed=3))
    assert found == progress


def test_a_validation_loss_stays_until_there_is_a_newer_one() -> None:
    before = TrainingProgress(3, loss=2.0, validation_loss=1.0)
    found = follow(before, TrainingProgress(7, loss=0.5), Durable(committed=3))
    assert found == TrainingProgress(7, loss=0.5, validation_loss=1.0)


def test_metrics_go_with_their_losses() -> None:
    before = TrainingProgress(3, 2.0, 1.0, metrics={"a": 1.0}, validation_metrics={"a": 2.0})
    durable = Durable(attempt=1, plan=Fence(0, 1, 4), committed=3)
    assert follow(before, SILENT, durable) == before
    undone = follow(before, SILENT, replace(durable, committed=2))
    assert (undone.metrics, undone.validation_metrics) == ({}, {"a": 2.0})
    newer = TrainingProgress(7, loss=0.5, metrics={"a": 3.0})
    found = follow(before, newer, durable)
    assert (found.metrics, found.validation_metrics) == ({"a": 3.0}, {"a": 2.0})


def test_a_resumed_job_keeps_its_last_loss() -> None:
    """Suspended after step 6. The new attempt loads it, and no agent has reported a loss yet."""
    durable = Durable(attempt=1, plan=Fence(0, 1, 4), committed=6)
    before = TrainingProgress(6, loss=1.5, validation_loss=2.5)
    assert follow(before, SILENT, durable) == before


def test_undone_steps_are_no_longer_shown() -> None:
    durable = Durable(attempt=1, plan=Fence(0, 1, 4), committed=5)
    undone = follow(TrainingProgress(9, loss=1.5), SILENT, durable)
    assert undone == TrainingProgress(5)
    begun = replace(durable, plan=Fence(1, 1, 6))
    assert follow(undone, SILENT, begun) == undone


def test_a_new_leader_keeps_the_progress_until_agents_report() -> None:
    """The durable facts name the commit at the last change of plan only."""
    durable = Durable(plan=Fence(0, 1, 4), committed=5)
    assert follow(TrainingProgress(9, loss=1.5), SILENT, durable) == TrainingProgress(9, loss=1.5)
    assert follow(TrainingProgress(2, loss=3.0), SILENT, durable) == TrainingProgress(5)


def test_skipped_steps_are_the_newest_known() -> None:
    """A new leader and a restore keep the number until an agent says the true one."""
    before, durable = TrainingProgress(9, loss=1.5, skipped=7), Durable(plan=Fence(0, 1, 4))
    assert follow(before, SILENT, durable).skipped == 7
    restored = replace(durable, attempt=1, committed=5)
    assert follow(before, SILENT, restored) == TrainingProgress(5, skipped=7)
    for skipped in (8, 2, 0):
        said = TrainingProgress(10, loss=1.0, skipped=skipped)
        assert follow(before, said, durable) == said


def test_the_view_of_a_job_that_has_ended() -> None:
    last = Manifest(0, 8, "/c/8", "")
    durable = Durable(
        plan=Fence(0, 1, 4),
        manifests=(last,),
        mode=RedundancyMode.REPLICA,
        outcome=Outcome.COMPLETE,
        reason="StepsReached",
    )
    progress, losses = TrainingProgress(9, loss=1.5, skipped=4), Losses(2, 1)
    view = ended(durable, LastReported(losses, progress, "agent x: disk full"))
    assert (view.epoch, view.outcome, view.reason) == (4, Outcome.COMPLETE, "StepsReached")
    assert (view.checkpoint_step, view.checkpoint_path) == (8, "/c/8")
    assert view.mode is RedundancyMode.REPLICA, "what Auto has taken is asked when it is over"
    assert (view.progress, view.losses) == (progress, losses)
    assert (view.checkpoint_error, view.checkpoint_caveat) == ("agent x: disk full", "")
    caveats = {"/c/8": "seen from one node only", "/c/4": "a file is not seen from node b"}
    known = ended(durable, LastReported(checkpoint_caveats=caveats))
    assert known.checkpoint_caveat == "seen from one node only"
    resting = ended(replace(durable, outcome=Outcome.SUSPENDED, manifests=()), LastReported())
    assert (resting.outcome, resting.checkpoint_step) == (None, -1)
