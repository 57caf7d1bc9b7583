"""What a round of a soak says of the losses and the restores in it."""

from __future__ import annotations

import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tests.sim.soak.test_losses import A, B, plan
from tests.sim.soak.test_watch import REFERENCE, Fleet

from bamboo_core.api.events import EventFact, EventReason, RestoreCause
from bamboo_core.api.spec import RedundancyMode
from bamboo_core.model.ids import Fence
from bamboo_sim.fleet.local_fleet import LocalFleet
from bamboo_sim.soak.job import LostError, SoakedJob
from bamboo_sim.soak.kinds import Injector
from bamboo_sim.soak.reference import Grid

COPIES = plan({A: (0, 1), B: (0, 1)}, target=1)


class SoakedFleet(Fleet):
    """A fleet that has committed step 1, and holds a plan."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.exits: dict[str, int] = {}
        self.operator.records = []
        self.status = {"plan": COPIES}
        self.commits(0)
        self.commits(1)

    def restores(self, cause: RestoreCause) -> None:
        record = SimpleNamespace(
            reason=EventReason.RESTORING, facts={EventFact.CAUSE: cause}, message=""
        )
        self.operator.records.append((time.monotonic(), record))


@pytest.fixture
def fleet(tmp_path: Path) -> SoakedFleet:
    return SoakedFleet(tmp_path)


@pytest.fixture
def job(fleet: SoakedFleet) -> SoakedJob:
    """A job at the beginning of a round."""
    grid = Grid(1, 2, RedundancyMode.REPLICA)
    made = SoakedJob(cast(LocalFleet, fleet), grid, REFERENCE, random.Random(1))
    made._watch.look()
    made._before = made._look()
    return made


def test_a_loss_without_a_restore_is_recovered(fleet: SoakedFleet, job: SoakedJob) -> None:
    job._note_loss(A)
    fleet.commits(2)
    done = job._describe(None, [])
    assert (done.copies_alive, done.recovered, done.failure) == (1, 1, "")


def test_a_restore_although_a_copy_lived_fails_the_round(
    fleet: SoakedFleet, job: SoakedJob
) -> None:
    """The arbiter records nothing; its agents commit a step again."""
    job._note_loss(A)
    fleet.commits(1, attempt=1)
    done = job._describe(None, [])
    assert (done.copies_alive, done.recovered, done.repeated) == (1, 0, 1)
    assert done.failure == "1 steps repeated, though a copy of all lived without a"


def test_an_attempt_that_repeats_nothing_fails_the_round_all_the_same(
    fleet: SoakedFleet, job: SoakedJob
) -> None:
    job._note_loss(A)
    fleet.status = {"plan": COPIES, "fence": Fence(1, 1, 2)}
    assert "0 steps repeated, though" in job._describe(None, []).failure


def test_a_restore_after_the_loss_of_all_copies_is_right(
    fleet: SoakedFleet, job: SoakedJob
) -> None:
    job._note_loss(A)
    job._note_loss(B)
    fleet.restores(RestoreCause.LAYER_LOST)
    fleet.commits(1, attempt=1)
    done = job._describe(None, [])
    assert (done.restored, done.copies_alive, done.repeated, done.failure) == (True, 0, 1, "")


def test_an_agent_that_was_told_to_go_is_no_copy(fleet: SoakedFleet, job: SoakedJob) -> None:
    job._going.add(B)
    job._note_loss(A)
    assert job._describe(None, []).copies_alive == 0


def test_an_agent_that_had_ended_is_no_loss_and_no_copy(fleet: SoakedFleet, job: SoakedJob) -> None:
    fleet.exits[B] = 0
    job._before = job._look()
    job._note_loss(B)
    assert job._losses == []
    job._note_loss(A)
    assert job._describe(None, []).copies_alive == 0


@pytest.mark.parametrize(
    ("seconds", "going", "fails"), [(7.0, "", True), (20.0, "", False), (7.0, "c", False)]
)
def test_a_restore_fails_a_round_whose_sessions_all_came_back_in_time(
    seconds: float, going: str, fails: bool, fleet: SoakedFleet, job: SoakedJob
) -> None:
    refused = {A: seconds, B: 3.0}
    made = SimpleNamespace(refused=refused, doomed=set(), going=set(going), acted=list)
    job._injector = cast(Injector, made)
    assert job._describe(None, []).failure == ""
    fleet.restores(RestoreCause.LAYER_LOST)
    assert ("nobody was lost" in job._describe(None, []).failure) is fails


def test_an_agent_whose_session_was_refused_is_no_copy(fleet: SoakedFleet, job: SoakedJob) -> None:
    """It may have counted as lost, and have to end."""
    made = SimpleNamespace(refused={B: 7.0}, doomed={A}, going=set(), acted=list)
    job._injector = cast(Injector, made)
    job._note_loss(A)
    assert job._describe(None, []).copies_alive == 0


def test_a_suspension_repeats_no_step(fleet: SoakedFleet, job: SoakedJob) -> None:
    fleet.restores(RestoreCause.RESUMED)
    fleet.commits(2, attempt=1)
    done = job._describe(None, [])
    assert (done.restored, done.repeated, done.failure) == (False, 0, "")
    fleet.commits(1, attempt=1)
    assert job._describe(None, []).failure == "1 committed steps repeated after a suspension"


def test_a_job_that_is_lost_recovers_nothing(fleet: SoakedFleet, job: SoakedJob) -> None:
    job._note_loss(A)
    done = job._describe(LostError("Failed"), [])
    assert (done.copies_alive, done.recovered, done.lost) == (1, 0, True)
    assert done.failure == "LostError: Failed"


def test_a_stall_that_is_not_explained_fails_the_round(job: SoakedJob) -> None:
    job._watch.unexplained += 1
    done = job._describe(None, [])
    assert (done.unexplained, done.stalled) == (1, False)
    assert done.failure == "no commit for long, and the job has not said why"
