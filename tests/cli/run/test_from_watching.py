"""A run as somebody saw it who watched it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.cli.events import event
from tests.cli.runs import LOG, NEIGHBOUR, VICTIM, frames_of

from bamboo_cli.job.pods import Seat
from bamboo_cli.job.snapshot import Snapshot
from bamboo_cli.job.state import Job, read_job
from bamboo_cli.run.faults import Fault, FaultLog
from bamboo_cli.run.from_watching import Frame, frame, from_frames
from bamboo_cli.run.model import InjectedLoss, Span
from bamboo_core.api.events import EventReason
from bamboo_core.controller.view import Slot


@pytest.fixture
def job(manifest: dict[str, Any]) -> Job:
    return read_job(manifest)


def test_time_begins_with_training(job: Job) -> None:
    found = from_frames(frames_of(job), LOG, 32)
    assert found.span.seconds == 20
    assert found.progress[0] == (0.0, 0)
    assert found.seats[Slot(1, 0)] == [Span(0, 20)]


def test_a_killed_agent_runs_until_the_fault(job: Job) -> None:
    found = from_frames(frames_of(job), LOG, 32)
    assert found.seats[Slot(1, 1)] == [Span(0, 5.5), Span(8, 20)]
    assert list(found.injected) == [InjectedLoss(5.5, 5, Slot(1, 1), is_noticed=False)]


def test_an_agent_with_notice_runs_until_it_leaves(job: Job) -> None:
    hits = [replace(LOG.hits[0], fault=Fault.NOTICED)]
    found = from_frames(frames_of(job), replace(LOG, hits=hits), 32)
    assert found.seats[Slot(1, 1)][0] == Span(0, 7)
    assert found.injected[0].is_noticed


def test_a_pause_begins_with_the_fault_and_ends_with_the_commit(job: Job) -> None:
    pauses = from_frames(frames_of(job), LOG, 32).pauses
    assert [(p.begin, p.end) for p in pauses] == [
        (5.5, pytest.approx(7.2)),
        (pytest.approx(10.5), pytest.approx(11.0)),
    ]


def test_a_pause_begins_when_the_one_before_is_over(job: Job) -> None:
    """A fault may hit in a pause, and stop training only after it. The operator counts both."""
    again = event(7.5, EventReason.RESUMED, epoch=2, step=5, pause_s=0.9)
    pauses = from_frames(frames_of(job), replace(LOG, events=[*LOG.events, again]), 32).pauses
    assert len(pauses) == 3
    assert (pauses[0].begin, pauses[0].end) == (5.5, pytest.approx(7.2))
    assert (pauses[1].begin, pauses[1].end) == (pauses[0].end, pytest.approx(7.5))


def test_no_step_is_committed_in_a_pause(job: Job) -> None:
    progress = from_frames(frames_of(job), LOG, 32).progress
    assert (5.5, 5) in progress
    assert (pytest.approx(7.2), 6) in progress
    assert not [at for at, _ in progress if 5.5 < at < 7.19]
    assert [step for _, step in progress] == sorted(step for _, step in progress)


def test_what_a_restore_undoes_is_taken_back(job: Job) -> None:
    frames = [
        replace(f, job=replace(f.job, step=f.job.step - 6)) if f.at_s > 10.5 else f
        for f in frames_of(job)
    ]
    restore = event(11.0, EventReason.RESUMED, epoch=3, step=4, pause_s=0.5, undone_steps=6)
    progress = from_frames(frames, replace(LOG, events=[*LOG.events[:-1], restore]), 32).progress
    begin = progress.index((pytest.approx(10.5), 10))
    assert progress[begin : begin + 5] == [
        (pytest.approx(10.5), 10),
        (pytest.approx(11.0), 10),
        (pytest.approx(11.0), 5),
        (12.0, 6),
        (13.0, 7),
    ]
    assert progress[-1] == (20.0, 14)


def test_a_late_status_takes_nothing_back(job: Job) -> None:
    frames = [
        replace(f, job=replace(f.job, step=f.job.step - 2)) if 7.2 < f.at_s < 10 else f
        for f in frames_of(job)
    ]
    progress = from_frames(frames, LOG, 32).progress
    assert [step for _, step in progress] == sorted(step for _, step in progress)


def test_the_loss_by_step(job: Job) -> None:
    found = from_frames(frames_of(job), LOG, 32, [(3, 3.7)])
    assert found.loss[-1] == (20, 2.0)
    assert found.undisturbed_loss == [(3, 3.7)]


def test_a_frame_has_the_running_pods(job: Job) -> None:
    runs = Seat(pod=VICTIM, phase="Running", node="a", zone="z", incarnation=0)
    waits = replace(runs, pod=NEIGHBOUR, phase="Pending")
    seen = Snapshot(job, seats={Slot(1, 1): runs, Slot(1, 0): waits})
    assert frame(seen, 3.0) == Frame(3.0, job, {Slot(1, 1): VICTIM}, {VICTIM: "z", NEIGHBOUR: "z"})


def test_only_changes_of_progress_are_kept(manifest: dict[str, Any]) -> None:
    job = read_job(manifest)
    later = replace(job, step=21)
    run = from_frames(
        [Frame(1.0, job, {}), Frame(2.0, job, {}), Frame(3.0, later, {})], FaultLog(), 32
    )
    assert list(run.loss) == [(20, 2.5), (21, 2.5)]
    assert list(run.validation) == [(20, 3.25)]
