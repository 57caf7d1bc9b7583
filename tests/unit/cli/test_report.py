"""The last words of a run."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from bamboo_cli import report
from bamboo_cli.absorbed import Recovery, recovery
from bamboo_cli.chaos import Blow, Hit
from bamboo_cli.job import read_job
from bamboo_cli.timeline import Timeline


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
def timeline(clock: list[float]) -> Timeline:
    return Timeline(now=lambda: clock[0])


def test_phases_add_up(timeline: Timeline, clock: list[float]) -> None:
    for _ in range(2):
        with timeline.phase("train"):
            clock[0] += 3
    assert timeline.phases == {"train": 6.0}
    assert timeline.elapsed_s == 6


def test_a_phase_that_fails_is_counted(timeline: Timeline, clock: list[float]) -> None:
    def fail() -> None:
        with timeline.phase("train"):
            clock[0] += 3
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert timeline.phases == {"train": 3.0}


def test_only_news_are_kept(timeline: Timeline, manifest: dict[str, Any]) -> None:
    job = read_job(manifest)
    assert timeline.see(job)
    assert not timeline.see(job)
    assert timeline.see(replace(job, step=21))
    assert timeline.validation == [(20, 3.25)]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([5.5, 4.0, 3.0], "validation loss falling: 5.500 -> 4.000 -> 3.000"),
        ([3.0, 4.0], "validation loss NOT falling: 3.000 -> 4.000"),
        ([3.0], "fewer than two"),
        (
            [float(9 - n) for n in range(9)],
            "9.000 -> 8.000 -> 7.000 -> 5.000 ->",
        ),
    ],
)
def test_learning(
    timeline: Timeline, manifest: dict[str, Any], values: list[float], words: str
) -> None:
    job = read_job(manifest)
    for step, value in enumerate(values):
        timeline.see(replace(job, step=step, validation_loss=value))
    assert words in report.learning(timeline).plain


def test_losses(manifest: dict[str, Any]) -> None:
    job = read_job(manifest)
    assert report.losses(job).plain == "2 agents lost (1 of them announced), nothing restored"
    assert "2 restores" in report.losses(replace(job, attempt=2)).plain
    assert report.losses(replace(job, lost=0)).plain == "no agent was lost"


def test_outcome_quotes_the_condition(timeline: Timeline, manifest: dict[str, Any]) -> None:
    manifest["status"]["conditions"] = [
        {"type": "Failed", "status": "True", "reason": "UserCodeFailed", "message": "no such model"}
    ]
    line = report.outcome(read_job(manifest), timeline).plain
    assert line == "gpt Failed at step 20 of 80 after 0 s: no such model"


def test_report_renders(timeline: Timeline, manifest: dict[str, Any]) -> None:
    console = Console(file=StringIO())
    timeline.add("train", 12.0)
    console.print(report.final_report(read_job(manifest), timeline, report.Story()))
    assert isinstance(console.file, StringIO)
    assert "12.0" in console.file.getvalue()


EVENTS = [
    {"reason": "Resumed", "message": "epoch 4: step 33 is committed 0.84 s after the stop"},
    {"reason": "Planned", "message": "epoch 4: 2 x 4 from step 33, 7 agents, 1 seats empty"},
    {"reason": "Planned", "message": "epoch 1: 2 x 4 from step 0, 8 agents"},
    {"reason": "Stopped", "message": "epoch 1: the job starts"},
    {"reason": "Stopped", "message": "epoch 3: gpt-p1-s3-i0 is lost"},
    {"reason": "AgentLost", "message": "gpt-p1-s3-i0: its pod has ended"},
    {"reason": "Resumed", "message": "epoch 1: step 0 is committed 3.00 s after the stop"},
]


def test_a_loss_is_followed_to_the_step_after_it() -> None:
    found = recovery(["gpt-p1-s3-i0"], EVENTS)
    assert found == Recovery(
        why="gpt-p1-s3-i0 is lost", plan="2 x 4 from step 33, 7 agents, 1 seats empty", pause_s=0.84
    )
    assert recovery(["gpt-p0-s0-i0"], EVENTS) is None


def test_the_plan_that_training_went_on_with_counts() -> None:
    superseded = {"reason": "Planned", "message": "epoch 3: 2 x 4 from step 33, 8 agents"}
    found = recovery(["gpt-p1-s3-i0"], [superseded, *EVENTS])
    assert found is not None
    assert found.plan == "2 x 4 from step 33, 7 agents, 1 seats empty"


def test_a_loss_without_an_end() -> None:
    assert recovery(["gpt-p1-s3-i0"], EVENTS[3:6]) == Recovery("gpt-p1-s3-i0 is lost", "", None)


def test_blows_and_verdict(timeline: Timeline, manifest: dict[str, Any]) -> None:
    hits = [
        Hit(Blow.SILENT, ("gpt-p1-s3-i0",), 33, 40.0),
        Hit(Blow.NOTICED, ("gpt-p0-s0-i0",), 50, 60.0),
    ]
    console = Console(file=StringIO(), width=160)
    story, comparison = report.Story(hits, EVENTS), report.Comparison(8, ())
    console.print(report.final_report(read_job(manifest), timeline, story, comparison))
    assert isinstance(console.file, StringIO)
    shown = console.file.getvalue()
    assert "0.84 s" in shown
    assert "no event tells" in shown
    assert "all 8 layers equal the undisturbed run's, bit for bit" in shown
    assert "layers [2] of 8 DIFFER" in report.verdict(report.Comparison(8, (2,))).plain
