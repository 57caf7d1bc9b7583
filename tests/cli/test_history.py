"""What the picture of a run shows."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import pytest

from bamboo_cli.chaos import Fault, Hit
from bamboo_cli.history import Frame, History, Loss, Span, frame, history
from bamboo_cli.job import Job, Seat, read_job
from bamboo_cli.picture import picture
from bamboo_cli.report import RunRecord
from bamboo_cli.screen import Snapshot
from bamboo_cli.svg import Axis
from bamboo_core.api.events import EventReason
from bamboo_core.controller.view import Slot

from .events import event

BEGAN = 10.0
VICTIM, NEIGHBOUR, SUCCESSOR = "gpt-p1-s1-i0", "gpt-p1-s0-i0", "gpt-p1-s1-i1"


@pytest.fixture
def job(manifest: dict[str, Any]) -> Job:
    return read_job(manifest)


def frames_of(job: Job) -> list[Frame]:
    """One every second; training begins at second 10. A fault at 15.5 s, a new agent at 18 s."""
    found = []
    for second in range(8, 31):
        phase = "Running" if second >= BEGAN else "Starting"
        step = max(0, second - 10)
        running = {Slot(1, 0): NEIGHBOUR}
        if second <= 16 or second >= 18:
            running[Slot(1, 1)] = VICTIM if second <= 16 else SUCCESSOR
        seen = replace(job, phase=phase, step=step, loss=4.0 - step / 10)
        found.append(Frame(float(second), seen, running))
    return found


RECORD = RunRecord(
    hits=[Hit(Fault.SILENT, (VICTIM,), 5, 15.5)],
    events=[
        event(9.0, EventReason.STOPPED, epoch=1, agents=""),
        event(10.5, EventReason.RESUMED, epoch=1, step=0, pause_s=1.5),
        event(16.5, EventReason.STOPPED, epoch=2, agents=VICTIM),
        event(17.2, EventReason.RESUMED, epoch=2, step=5, pause_s=0.7),
        event(20.5, EventReason.STOPPED, epoch=3, agents=SUCCESSOR),
        event(21.0, EventReason.RESUMED, epoch=3, step=10, pause_s=0.5),
    ],
)


def test_time_begins_with_training(job: Job) -> None:
    found = history(frames_of(job), RECORD)
    assert found.seconds == 20
    assert found.progress[0] == (0.0, 0)
    assert found.agents[Slot(1, 0)] == [Span(0, 20)]


def test_a_killed_agent_runs_until_the_fault(job: Job) -> None:
    found = history(frames_of(job), RECORD)
    assert found.agents[Slot(1, 1)] == [Span(0, 5.5), Span(8, 20)]
    assert found.losses == [Loss(5.5, 5, Slot(1, 1), noticed=False)]


def test_an_agent_with_notice_runs_until_it_leaves(job: Job) -> None:
    hits = [replace(RECORD.hits[0], fault=Fault.NOTICED)]
    found = history(frames_of(job), replace(RECORD, hits=hits))
    assert found.agents[Slot(1, 1)][0] == Span(0, 7)
    assert found.losses[0].noticed


def test_a_pause_begins_with_the_fault_and_ends_with_the_commit(job: Job) -> None:
    pauses = history(frames_of(job), RECORD).pauses
    assert [(p.begin, p.end) for p in pauses] == [
        (5.5, pytest.approx(7.2)),
        (pytest.approx(10.5), pytest.approx(11.0)),
    ]


def test_overlapping_pauses_are_one(job: Job) -> None:
    again = event(17.5, EventReason.RESUMED, epoch=2, step=5, pause_s=0.9)
    pauses = history(frames_of(job), replace(RECORD, events=[*RECORD.events, again])).pauses
    assert len(pauses) == 2
    assert pauses[0] == Span(5.5, pytest.approx(7.5))


def test_no_step_is_committed_in_a_pause(job: Job) -> None:
    progress = history(frames_of(job), RECORD).progress
    assert (5.5, 5) in progress
    assert (pytest.approx(7.2), 6) in progress
    assert not [at for at, _ in progress if 5.5 < at < 7.19]
    assert [step for _, step in progress] == sorted(step for _, step in progress)


def test_what_a_restore_undoes_is_taken_back(job: Job) -> None:
    frames = [
        replace(f, job=replace(f.job, step=f.job.step - 6)) if f.at_s > 20.5 else f
        for f in frames_of(job)
    ]
    restore = event(21.0, EventReason.RESUMED, epoch=3, step=4, pause_s=0.5, undone_steps=6)
    progress = history(frames, replace(RECORD, events=[*RECORD.events[:-1], restore])).progress
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
        replace(f, job=replace(f.job, step=f.job.step - 2)) if 17.2 < f.at_s < 20 else f
        for f in frames_of(job)
    ]
    progress = history(frames, RECORD).progress
    assert [step for _, step in progress] == sorted(step for _, step in progress)


def test_the_loss_by_step(job: Job) -> None:
    found = history(frames_of(job), RECORD, [(3, 3.7)])
    assert found.loss[-1] == (20, 2.0)
    assert found.undisturbed_loss == [(3, 3.7)]


def test_a_frame_has_the_running_pods(job: Job) -> None:
    runs = Seat(pod=VICTIM, phase="Running", node="a", zone="z", incarnation=0)
    waits = replace(runs, pod=NEIGHBOUR, phase="Pending")
    seen = Snapshot(job, seats={Slot(1, 1): runs, Slot(1, 0): waits})
    assert frame(seen, 3.0) == Frame(3.0, job, {Slot(1, 1): VICTIM}, {VICTIM: "z", NEIGHBOUR: "z"})


def drawn(run: History, verdict: str = "") -> ET.Element:
    return ET.fromstring(picture(run, verdict))


def texts(root: ET.Element) -> list[str]:
    return [text for element in root.iter() if (text := element.text and element.text.strip())]


def count(root: ET.Element, tag: str) -> int:
    return len(root.findall(f".//{{http://www.w3.org/2000/svg}}{tag}"))


def test_the_picture(job: Job) -> None:
    root = drawn(history(frames_of(job), RECORD, [(3, 3.7), (9, 3.1)]), "equal, bit < bit")
    shown = texts(root)
    assert shown[0] == "gpt: 2 pipelines x 3 stages, 1 agent lost in 80 steps"
    assert shown[1] == "equal, bit < bit"
    assert {"pipeline 1, stage 2", "1.7", "0.5", "committed steps", "training loss"} <= {*shown}
    assert "the same job, undisturbed" in shown


def test_a_run_without_losses_or_progress_is_drawn_too(job: Job) -> None:
    still = [replace(f, job=replace(f.job, step=0, loss=None)) for f in frames_of(job)[:1]]
    shown = texts(drawn(history(still, RunRecord())))
    assert shown[0] == "gpt: 2 pipelines x 3 stages, no agents lost in 80 steps"
    assert "training loss" not in shown


def test_a_large_grid_has_no_labels(job: Job) -> None:
    large = [replace(f, job=replace(f.job, pipelines=64, stages=16)) for f in frames_of(job)]
    text = picture(history(large, RECORD))
    assert "pipeline 1, stage 1" not in text
    assert len(text) < 100_000


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 32, [0, 5, 10, 15, 20, 25, 30]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (3.21, 5.4, [3.5, 4, 4.5, 5]),
        (3, 3, [3]),
    ],
)
def test_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert Axis(low, high, 0, 100).ticks(7) == pytest.approx(ticks)
