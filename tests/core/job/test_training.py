"""What users are told of the training while agents, leaders and attempts come and go."""

from __future__ import annotations

from dataclasses import replace

from bamboo_core.api.progress import TrainingProgress
from bamboo_core.arbiter.durable import Durable
from bamboo_core.arbiter.events import ArbiterPhase, ArbiterStatus
from bamboo_core.job.training import LastReported, follow
from bamboo_core.model.ids import Fence

SILENT = ArbiterStatus(
    phase=ArbiterPhase.WAITING, detail="", fence=Fence(), plan=None, members=(), connected=(),
    ready=(),
    standby=(), leaving=(), progress=TrainingProgress(), checkpoint=None,
)  # fmt: skip


def told(committed: int, **values: float) -> LastReported:
    return LastReported(progress=TrainingProgress(committed, **values))


def test_the_agents_word_comes_first() -> None:
    progress = TrainingProgress(7, loss=0.5, validation_loss=0.25, step_s=2.0)
    before = told(3, loss=2.0, validation_loss=1.0)
    found = follow(before, replace(SILENT, progress=progress), Durable(committed=3))
    assert found.progress == progress


def test_a_validation_loss_stays_until_there_is_a_newer_one() -> None:
    status = replace(SILENT, progress=TrainingProgress(7, loss=0.5))
    found = follow(told(3, loss=2.0, validation_loss=1.0), status, Durable(committed=3))
    assert found == told(7, loss=0.5, validation_loss=1.0)


def test_a_resumed_job_keeps_its_last_loss() -> None:
    """Suspended after step 6, whose checkpoint the new attempt loads: no agent has told a loss."""
    durable = Durable(attempt=1, plan=Fence(0, 1, 4), committed=6)
    before = told(6, loss=1.5, validation_loss=2.5)
    assert follow(before, SILENT, durable) == before


def test_steps_that_a_restore_has_undone_are_not_told_any_more() -> None:
    durable = Durable(attempt=1, plan=Fence(0, 1, 4), committed=5)
    undone = follow(told(9, loss=1.5), SILENT, durable)
    assert undone == told(5)
    begun = replace(durable, plan=Fence(1, 1, 6))
    assert follow(undone, SILENT, begun) == undone


def test_a_new_leader_tells_what_the_last_one_told_until_agents_do() -> None:
    """The durable facts name the commit at the last change of plan only."""
    durable = Durable(plan=Fence(0, 1, 4), committed=5)
    assert follow(told(9, loss=1.5), SILENT, durable) == told(9, loss=1.5)
    assert follow(told(2, loss=3.0), SILENT, durable) == told(5)
