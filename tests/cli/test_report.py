"""The last words of a run."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console, RenderableType

from bamboo_cli import report
from bamboo_cli.chaos import Fault, Hit, ScheduledFault
from bamboo_cli.job import ConditionLine, read_job
from bamboo_cli.recoveries import Recovery, recovery
from bamboo_cli.timeline import Timeline
from bamboo_core.controller.view import Slot


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
    console.print(report.final_report(read_job(manifest), timeline, report.RunRecord()))
    assert isinstance(console.file, StringIO)
    assert "12.0" in console.file.getvalue()


def told(at_s: float, reason: str, message: str) -> dict[str, str]:
    """An event of the operator, ``at_s`` seconds after the beginning of Unix time."""
    return {"eventTime": f"1970-01-01T00:00:{at_s:09.6f}Z", "reason": reason, "message": message}


EVENTS = [
    told(42.34, "Resumed", "epoch 4: step 33 is committed 0.84 s after the stop"),
    told(41.9, "Planned", "epoch 4: 2 x 4 from step 33, 7 agents, 1 seats empty"),
    told(5.0, "Planned", "epoch 1: 2 x 4 from step 0, 8 agents"),
    told(4.0, "Stopped", "epoch 1: the job starts"),
    told(41.5, "Stopped", "epoch 3: gpt-p1-s3-i0 is lost"),
    told(41.5, "AgentLost", "gpt-p1-s3-i0: its pod has ended"),
    told(7.0, "Resumed", "epoch 1: step 0 is committed 3.00 s after the stop"),
]
SILENT = Hit(Fault.SILENT, ("gpt-p1-s3-i0",), 33, 40.0)
STRIKE = ScheduledFault(0.6, Fault.NEIGHBOURS, (Slot(0, 1), Slot(0, 2)))
EQUAL = report.Comparison(8, ())
COMPLETE = ConditionLine("Complete", "True", "StepsReached", "")


def test_a_loss_is_followed_to_the_step_after_it() -> None:
    found = recovery(["gpt-p1-s3-i0"], EVENTS)
    assert found == Recovery(
        why="gpt-p1-s3-i0 is lost",
        plan="2 x 4 from step 33, 7 agents, 1 seats empty",
        stopped_at=41.5,
        resumed_at=42.34,
    )
    assert recovery(["gpt-p0-s0-i0"], EVENTS) is None


def test_the_plan_that_training_went_on_with_counts() -> None:
    superseded = told(41.6, "Planned", "epoch 3: 2 x 4 from step 33, 8 agents")
    found = recovery(["gpt-p1-s3-i0"], [superseded, *EVENTS])
    assert found is not None
    assert found.plan == "2 x 4 from step 33, 7 agents, 1 seats empty"


def test_a_loss_without_an_end() -> None:
    found = recovery(["gpt-p1-s3-i0"], EVENTS[3:6])
    assert found == Recovery("gpt-p1-s3-i0 is lost", "", 41.5, None)


def test_who_is_lost_while_all_are_stopped_is_named_by_its_own_event() -> None:
    while_stopped = [
        told(41.8, "AgentLost", "gpt-p0-s1-i0: LivenessClosed seen by gpt-p0-s0-i0"),
        told(41.6, "AgentLeft", "gpt-p0-s2-i0 has handed over what it held"),
    ]
    found = recovery(["gpt-p0-s2-i0", "gpt-p0-s1-i0"], [*while_stopped, *EVENTS])
    assert found is not None
    assert found.why == "gpt-p0-s2-i0 has handed over what it held"
    assert (found.stopped_at, found.resumed_at) == (41.5, 42.34)
    assert recovery(["gpt-p0-s0-i0"], [*while_stopped, *EVENTS]) is None
    assert recovery(["gpt-p0-s1-i0"], while_stopped) is None


def test_an_event_without_its_moment_tells_nothing() -> None:
    timeless = [{k: v for k, v in event.items() if k != "eventTime"} for event in EVENTS]
    assert recovery(["gpt-p1-s3-i0"], timeless) is None


def rendered(part: RenderableType) -> str:
    console = Console(file=StringIO(), width=160)
    console.print(part)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_blows_and_verdict(timeline: Timeline, manifest: dict[str, Any]) -> None:
    hits = [SILENT, Hit(Fault.NOTICED, ("gpt-p0-s0-i0",), 50, 60.0)]
    job = replace(read_job(manifest), conditions=(COMPLETE,))
    shown = rendered(report.final_report(job, timeline, report.RunRecord(hits, EVENTS), EQUAL))
    assert "no event tells" in shown
    assert "Nothing tells how training went on without gpt-p0-s0-i0" in shown
    assert "all 8 layers equal the undisturbed run's, bit for bit" in shown
    assert "layers [2] of 8 DIFFER" in report.verdict(report.Comparison(8, (2,))).plain


@pytest.mark.parametrize(
    ("fault", "times"),
    [
        (Fault.SILENT, "1.50 s       2.34 s"),  # from the fault: nobody had been told
        (Fault.NOTICED, "1.50 s       0.84 s"),  # from the stop: until then training goes on
    ],
)
def test_what_a_blow_took(fault: Fault, times: str) -> None:
    assert times in rendered(report.faults([replace(SILENT, fault=fault)], EVENTS))
    assert "-            -" in rendered(report.faults([replace(SILENT, fault=fault)], []))


def test_an_earlier_stop_for_another_reason_is_not_taken_for_the_losss() -> None:
    entered = [
        told(10.0, "Stopped", "epoch 2: copies are complete on gpt-p1-s3-i0"),
        told(10.3, "Resumed", "epoch 2: step 9 is committed 0.30 s after the stop"),
        told(41.2, "Stopped", "epoch 2: gpt-p1-s3-i01 is lost"),
    ]
    assert "1.50 s       2.34 s" in rendered(report.faults([SILENT], [*entered, *EVENTS]))


@pytest.mark.parametrize(
    ("hit", "times"),
    [
        # On its way out since second 40, and taken out by the stop for another's loss.
        (Hit(Fault.NOTICED, ("gpt-p1-s1-i0",), 20, 40.0), "1.50 s       0.84 s"),
        # Noticed, or gone, while all stand still for another's loss.
        (Hit(Fault.NOTICED, ("gpt-p1-s1-i0",), 33, 41.7), "0.00 s       0.64 s"),
        (Hit(Fault.SILENT, ("gpt-p1-s1-i0",), 33, 41.7), "0.00 s       0.64 s"),
        # Nobody waited for it any more.
        (Hit(Fault.SILENT, ("gpt-p1-s1-i0",), 34, 42.345), "no stop      -"),
    ],
)
def test_a_blow_that_another_stop_absorbs(hit: Hit, times: str) -> None:
    """The operator tells that an agent has left when training goes on already."""
    left = told(42.35, "AgentLeft", "gpt-p1-s1-i0 has handed over what it held")
    assert times in rendered(report.faults([hit], [*EVENTS, left]))


MISSED = (
    '"two neighbours vanish at once" was due at step 48 of 80 and did not happen: the job ended'
    " before all of its agents were seen running; give it more steps (spec.training.steps) or more"
    " --nodes, or break nothing (--no-losses)."
)


@pytest.mark.parametrize(
    ("record", "comparison", "missing"),
    [
        (report.RunRecord(), None, []),
        (report.RunRecord([SILENT], EVENTS), EQUAL, []),
        (report.RunRecord([], EVENTS, [STRIKE]), None, [MISSED]),
        (report.RunRecord([SILENT], EVENTS, [STRIKE]), EQUAL, [MISSED]),
        (
            report.RunRecord([SILENT], EVENTS),
            None,
            ["The bits were not compared with those of an undisturbed run."],
        ),
        (
            report.RunRecord([SILENT], EVENTS[3:]),
            EQUAL,
            ["Nothing tells how training went on without gpt-p1-s3-i0: see the job's events."],
        ),
    ],
)
def test_what_was_to_be_shown_and_was_not_fails(
    timeline: Timeline,
    manifest: dict[str, Any],
    record: report.RunRecord,
    comparison: report.Comparison | None,
    missing: list[str],
) -> None:
    job = replace(read_job(manifest), conditions=(COMPLETE,))
    assert report.unproven(job, record, comparison) == missing
    assert report.is_success(job, record, comparison) is (not missing)
    shown = " ".join(rendered(report.final_report(job, timeline, record, comparison)).split())
    assert all(line in shown for line in missing)


def test_other_bits_or_another_end_fail(manifest: dict[str, Any]) -> None:
    running = read_job(manifest)
    complete = replace(running, conditions=(COMPLETE,))
    assert not report.is_success(running, report.RunRecord(), None)
    assert report.unproven(running, report.RunRecord(left=[STRIKE]), None) == []
    assert not report.is_success(complete, report.RunRecord(), report.Comparison(8, (2,)))
