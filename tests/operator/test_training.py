"""What users are told of the training while agents, leaders and attempts come and go."""

from __future__ import annotations

from dataclasses import replace

from bamboo_core.arbiter.durable import Durable
from bamboo_core.arbiter.events import ArbiterPhase, ArbiterStatus
from bamboo_core.model.ids import Fence
from bamboo_core.protocol.messages import CommitRecord
from bamboo_operator.training import LastReported, follow

SILENT = ArbiterStatus(
    phase=ArbiterPhase.WAITING, detail="", fence=Fence(), plan=None, members=(), connected=(),
    ready=(),
    standby=(), leaving=(), committed=None, validation_loss=None, step_s=0.0, checkpoint=None,
)  # fmt: skip


def test_the_agents_word_comes_first() -> None:
    status = replace(SILENT, committed=CommitRecord(7, loss=0.5), validation_loss=0.25)
    found = follow(
        LastReported(committed=3, loss=2.0, validation_loss=1.0), status, Durable(committed=3)
    )
    assert (found.committed, found.loss, found.validation_loss) == (7, 0.5, 0.25)


def test_a_resumed_job_keeps_its_last_loss() -> None:
    """Suspended after step 6, whose checkpoint the new attempt loads: no agent has told a loss."""
    durable = Durable(attempt=1, plan=Fence(0, 1, 4), committed=6)
    told = LastReported(committed=6, loss=1.5, validation_loss=2.5)
    assert follow(told, SILENT, durable) == told


def test_steps_that_a_restore_has_undone_are_not_told_any_more() -> None:
    told, durable = (
        LastReported(committed=9, loss=1.5),
        Durable(attempt=1, plan=Fence(0, 1, 4), committed=5),
    )
    undone = follow(told, SILENT, durable)
    assert (undone.committed, undone.loss) == (5, None)
    begun = replace(durable, plan=Fence(1, 1, 6))
    assert follow(undone, SILENT, begun) == undone


def test_a_new_leader_tells_what_the_last_one_told_until_agents_do() -> None:
    """The durable facts name the commit at the last change of plan only."""
    told = LastReported(committed=9, loss=1.5)
    assert follow(told, SILENT, Durable(plan=Fence(0, 1, 4), committed=5)) == told
    behind = follow(
        LastReported(committed=2, loss=3.0), SILENT, Durable(plan=Fence(0, 1, 4), committed=5)
    )
    assert (behind.committed, behind.loss) == (5, None)
