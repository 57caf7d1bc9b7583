"""Pauses by cause and phase, repeated work, and what agents say twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.events import EventFact, EventReason, Severity
from bamboo_core.api.progress import TrainingProgress
from bamboo_core.api.totals import Pauses, Totals
from bamboo_core.arbiter_state.events import ArbiterPhase, Record
from bamboo_core.job.counting import SETTLED_S, Counting
from bamboo_core.job.training_view import LastReported
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import CommitRecord, Progress

from .led import BEGUN, MEMBERS, Led

A, B = AgentId("a"), AgentId("b")
Phase = ArbiterPhase


def record(reason: EventReason, **facts: str | float) -> Record:
    found = {EventFact[name.upper()]: value for name, value in facts.items()}
    return Record(Severity.NORMAL, reason, "", found)


STOPPED = record(EventReason.STOPPED)
RESUMED = record(EventReason.RESUMED)
LOST = record(EventReason.AGENT_LOST, agents="a")

USERS = record(EventReason.WORKER_FAILED, agents="a", cause="UserCodeFailed")


def training(totals: Totals = Totals(), committed: int = 9) -> Counting:  # noqa: B008 - frozen
    counting = Counting(totals, committed)
    tell(counting, 0.0, Phase.RUNNING)
    return counting


def tell(
    counting: Counting,
    now: float,
    phase: ArbiterPhase,
    *records: Record,
    committed: int = 9,
    leaving: frozenset[AgentId] = frozenset(),
) -> None:
    """One event, as the leadership handles it."""
    counting.advance(now)
    for each in records:
        counting.hear(each, leaving)
    counting.see(phase, committed)


def test_a_pause_is_split_by_phase() -> None:
    counting = training()
    tell(counting, 10.0, Phase.COLLECTING, LOST, STOPPED)
    tell(counting, 10.5, Phase.COLLECTING)
    tell(counting, 11.0, Phase.PLANNING)
    tell(counting, 11.25, Phase.HOLDING)
    tell(counting, 13.25, Phase.RUNNING)
    tell(counting, 13.75, Phase.RUNNING, RESUMED, committed=10)
    tell(counting, 20.0, Phase.RUNNING, committed=11)
    ((cause, pauses),) = counting.totals.pauses.items()
    assert (cause, pauses.count) == ("Loss", 1)
    assert pauses.seconds == {"Stop": 1.0, "Plan": 0.25, "Wait": 2.0, "Resume": 0.5}
    assert counting.totals.steps == 2


@pytest.mark.parametrize(
    ("records", "leaving", "cause"),
    [
        ((STOPPED,), (), "Change"),
        ((LOST, STOPPED), (), "Loss"),
        ((LOST, STOPPED), (A,), "Notice"),
        ((record(EventReason.STOPPED, agents="a"),), (A,), "Notice"),
        ((record(EventReason.STOPPED, agents="a,b"),), (A,), "Loss"),
        ((record(EventReason.WORKER_FAILED, agents="a"), LOST, STOPPED), (), "Failure"),
        ((record(EventReason.STALLED, cause="WaitCycle"), STOPPED), (), "Stall"),
        ((record(EventReason.STALLED, cause="DataSlow"), STOPPED), (), "UserCode"),
        ((USERS, record(EventReason.STOPPED, agents="a")), (), "UserCode"),  # it tries again
        ((USERS, LOST, STOPPED), (), "UserCode"),  # it is left out
        ((record(EventReason.CORRUPTION), STOPPED), (), "Corruption"),
        ((LOST, record(EventReason.RESTORING, repeated_steps=4), STOPPED), (), "Restore"),
    ],
)
def test_the_cause_of_a_pause(
    records: tuple[Record, ...], leaving: tuple[AgentId, ...], cause: str
) -> None:
    counting = training()
    tell(counting, 5.0, Phase.COLLECTING, *records, leaving=frozenset(leaving))
    tell(counting, 6.0, Phase.RUNNING, RESUMED)
    assert counting.totals.pauses == {cause: Pauses(1, {"Stop": 1.0})}


def test_the_gravest_cause_has_the_whole_pause() -> None:
    """It was counted as a loss, and its seconds were those of a restore."""
    counting = training()
    tell(counting, 5.0, Phase.COLLECTING, LOST, STOPPED)
    tell(counting, 6.0, Phase.COLLECTING, record(EventReason.RESTORING), STOPPED)
    assert counting.totals.pauses == {}  # nothing that could move to another cause
    tell(counting, 8.0, Phase.RUNNING, RESUMED)
    assert counting.totals.pauses == {"Restore": Pauses(1, {"Stop": 3.0})}


def test_a_long_pause_shows_while_it_lasts_and_keeps_its_cause() -> None:
    counting = training()
    tell(counting, 5.0, Phase.WAITING, LOST, STOPPED)
    tell(counting, 5.0 + SETTLED_S, Phase.WAITING)
    assert counting.totals.pauses == {}
    tell(counting, 6.0 + SETTLED_S, Phase.WAITING)
    assert counting.totals.pauses == {"Loss": Pauses(1, {"Wait": SETTLED_S + 1.0})}
    tell(counting, 8.0 + SETTLED_S, Phase.COLLECTING, record(EventReason.RESTORING), STOPPED)
    counting.advance(9.0 + SETTLED_S)
    assert counting.hear(RESUMED, frozenset()).facts == {EventFact.CAUSE: "Loss"}
    found = Pauses(1, {"Wait": SETTLED_S + 3.0, "Stop": 1.0})
    assert counting.totals.pauses == {"Loss": found}


def test_a_pause_that_is_not_over_is_in_the_final_totals() -> None:
    counting = training()
    assert counting.final_totals == counting.totals
    tell(counting, 5.0, Phase.COLLECTING, LOST, STOPPED)
    tell(counting, 6.0, Phase.COLLECTING)
    assert counting.final_totals.pauses == {"Loss": Pauses(1, {"Stop": 1.0})}
    assert counting.totals.pauses == {}


def test_a_sample_that_does_not_come_again_is_the_same_pause() -> None:
    """Nothing is committed between the first error and the second one, which ends the job."""
    counting = training()
    tell(counting, 5.0, Phase.COLLECTING, USERS, LOST, STOPPED)
    tell(counting, 6.0, Phase.RUNNING)
    tell(counting, 126.0, Phase.RUNNING, record(EventReason.STALLED, cause="DataSlow"))
    counting.advance(276.0)
    counting.hear(record(EventReason.STOPPED, agents="b"), frozenset(), is_failing=True)
    counting.see(Phase.COLLECTING, 9)
    tell(counting, 277.0, Phase.OVER)
    pauses = Pauses(1, {"Stop": 2.0, "Resume": 270.0})
    assert counting.totals.pauses == {"UserCode": pauses}


def test_a_job_that_its_code_fails_stops_for_that() -> None:
    led = Led(replace(BEGUN, failing="a: UserCodeFailed: sample 7 is damaged"))
    led.observe()
    for agent in MEMBERS:
        led.connect(agent, BEGUN.plan)
    led.until(lambda: bool(led.records(EventReason.STOPPED)))
    pauses = led.leadership.view().final_totals.pauses
    assert {cause: found.count for cause, found in pauses.items()} == {"UserCode": 1}


def test_the_end_of_a_pause_is_told_with_its_cause() -> None:
    counting = training()
    tell(counting, 5.0, Phase.COLLECTING, LOST, STOPPED)
    counting.advance(6.0)
    told = counting.hear(RESUMED, frozenset())
    assert told.facts == {EventFact.CAUSE: "Loss"}
    assert counting.hear(LOST, frozenset()) is LOST
    counting.see(Phase.RUNNING, 9)
    assert counting.hear(RESUMED, frozenset()) is RESUMED  # the start is no pause


def test_what_does_not_stop_training_is_forgotten() -> None:
    counting = training()
    tell(counting, 5.0, Phase.RUNNING, LOST)
    tell(counting, 6.0, Phase.COLLECTING, STOPPED)
    assert list(counting.final_totals.pauses) == ["Change"]


def test_the_first_start_is_no_pause() -> None:
    counting = Counting(Totals(), -1)
    tell(counting, 1.0, Phase.COLLECTING, STOPPED, committed=-1)
    tell(counting, 9.0, Phase.RUNNING, RESUMED, committed=0)
    assert counting.totals == Totals(steps=1)


def test_a_new_leader_is_a_cause() -> None:
    counting = training(Totals(steps=3))
    tell(counting, 1.0, Phase.RETURNING)
    tell(counting, 2.0, Phase.COLLECTING, STOPPED)
    assert counting.final_totals == Totals(steps=3, pauses={"NewLeader": Pauses(1)})


def test_a_pause_ends_with_the_job() -> None:
    counting = training()
    tell(counting, 1.0, Phase.COLLECTING, LOST, STOPPED)
    tell(counting, 2.0, Phase.OVER)
    tell(counting, 99.0, Phase.OVER)
    assert counting.totals.pauses["Loss"].seconds == {"Stop": 1.0}


def test_a_restore_does_not_take_steps_back() -> None:
    counting = training()
    restoring = record(EventReason.RESTORING, repeated_steps=6)
    tell(counting, 1.0, Phase.COLLECTING, restoring, STOPPED, committed=5)
    assert (counting.totals.steps, counting.totals.repeated_steps) == (0, 0)
    again = record(EventReason.RESUMED, undone_steps=4)
    tell(counting, 2.0, Phase.RUNNING, again, committed=6)
    tell(counting, 3.0, Phase.RUNNING, committed=7)
    assert (counting.totals.steps, counting.totals.repeated_steps) == (2, 4)


def test_resumes_are_counted_apart_from_restores() -> None:
    counting = training(Totals(attempts={"LayerLost": 1}))
    for cause in ("Resumed", "LayerLost", "Resumed"):
        tell(counting, 1.0, Phase.RUNNING, record(EventReason.RESTORING, cause=cause))
    assert counting.totals.attempts == {"LayerLost": 2, "Resumed": 2}


def test_tasks_that_a_plan_repeats_are_counted() -> None:
    counting = training(Totals(redone_tasks=3))
    for tasks in (0, 4):
        tell(counting, 1.0, Phase.RUNNING, record(EventReason.PLANNED, redone_tasks=tasks))
    assert counting.totals.redone_tasks == 7


def test_disputes_and_stalls_are_counted() -> None:
    counting = training(Totals(stalls={"WaitCycle": 1}))
    stalled = record(EventReason.STALLED, cause="WaitCycle")
    tell(counting, 1.0, Phase.RUNNING, stalled, record(EventReason.CORRUPTION))
    assert counting.totals.stalls == {"WaitCycle": 2}
    assert counting.totals.corruptions == 1


def progress(step: int, attempt: int = 0) -> Progress:
    commit = CommitRecord(step=step, loss=1.0, grad_norm=1.0)
    return Progress(commit, Fence(attempt), busy_s=0.5, sent_bytes=10)


def test_what_an_agent_says_twice_counts_once() -> None:
    counting = training()
    counting.report(A, progress(9))  # the status includes it already
    for agent in (A, B, A):
        counting.report(agent, progress(10))
    counting.report(A, progress(11))
    counting.report(A, progress(10, attempt=1))  # a restore repeats it
    totals = counting.totals
    assert (totals.busy_s, totals.sent_bytes) == (2.0, 40)


def test_a_led_job_goes_on_from_its_status() -> None:
    reported = LastReported(progress=TrainingProgress(499), totals=Totals(steps=700))
    led = Led(BEGUN, reported=reported)
    led.observe()
    for agent in MEMBERS:
        led.connect(agent, BEGUN.plan)
    led.until(lambda: bool(led.records(EventReason.STOPPED)))
    led.tick(1.0)
    totals = led.leadership.view().final_totals
    assert totals.steps == 700
    assert totals.pauses["NewLeader"].count == 1
    assert totals.pauses["NewLeader"].seconds["Stop"] >= 1.0
