"""What a change has cost is told once the first step after it is committed."""

from __future__ import annotations

from bamboo_core.api.events import EventReason
from bamboo_core.arbiter_state import events as a
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import CommitRecord, Progress

from .fleet import Fleet, spec


def resumptions(fleet: Fleet) -> list[str]:
    return [r.message for r in fleet.records if r.reason is EventReason.RESUMED]


def test_the_pause_is_reported_once_for_each_change() -> None:
    fleet = Fleet(spec(pipelines=2, stages=2, steps=40))
    fleet.tell(a.DesiredState(2))
    fleet.add_grid(2, 2)
    fleet.tell(a.Tick())
    fleet.until(lambda: len(resumptions(fleet)) == 1)
    assert resumptions(fleet)[0].startswith("epoch 1: step 0 is committed ")

    fleet.until(lambda: (0, 3) in fleet.commits)
    fleet.kill("a1")
    fleet.now += 0.5
    fleet.until(lambda: len(resumptions(fleet)) == 2)
    assert resumptions(fleet)[1].startswith("epoch 2: step ")
    assert resumptions(fleet)[1].endswith(" 0.50 s after the stop")
    fleet.run()
    assert len(resumptions(fleet)) == 2


def test_a_commit_that_was_under_way_ends_no_pause() -> None:
    fleet = Fleet(spec(pipelines=2, stages=2, steps=40))
    fleet.tell(a.DesiredState(2))
    fleet.add_grid(2, 2)
    fleet.until(lambda: (0, 3) in fleet.commits)
    told = len(resumptions(fleet))
    fleet.kill("a1")
    assert fleet.arbiter.status().phase is a.ArbiterPhase.COLLECTING
    newest = fleet.arbiter.status().progress.committed
    fleet.receive(AgentId("a0"), Progress(CommitRecord(newest + 1)))
    assert len(resumptions(fleet)) == told
