"""The report at the end of a run."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console, RenderableType
from tests.cli.events import event
from tests.cli.runs import LOST, RECOVERY

from bamboo_cli.job.state import ConditionLine, Job, read_job
from bamboo_cli.quickstart import closing_report, verdict
from bamboo_cli.quickstart.final_state import Comparison
from bamboo_cli.quickstart.stopwatch import Stopwatch
from bamboo_cli.run.faults import Fault, FaultLog, Hit, ScheduledFault
from bamboo_cli.run.from_watching import Frame, from_frames
from bamboo_cli.run.model import Run
from bamboo_core.api.events import EventReason
from bamboo_core.controller.view import Slot


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
def stopwatch(clock: list[float]) -> Stopwatch:
    return Stopwatch(now=lambda: clock[0])


def run_of(*jobs: Job) -> Run:
    """A run of which these are the looks."""
    return from_frames([Frame(float(n), job, {}) for n, job in enumerate(jobs)], FaultLog(), 32)


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
def test_learning(manifest: dict[str, Any], values: list[float], words: str) -> None:
    job = read_job(manifest)
    seen = [replace(job, step=step, validation_loss=value) for step, value in enumerate(values)]
    assert words in closing_report.learning(run_of(*seen)).plain


def test_losses(manifest: dict[str, Any]) -> None:
    job = read_job(manifest)
    assert (
        closing_report.losses(job).plain
        == "2 agents lost (1 with notice), no restore from a checkpoint"
    )
    twice = replace(job, attempts=(("LayerLost", 2), ("Resumed", 1)))
    assert closing_report.losses(twice).plain.endswith(", 2 restores")
    once = closing_report.losses(replace(job, lost=1, attempts=(("NoVoter", 1),)))
    assert once.plain == "1 agent lost (1 with notice), 1 restore"
    assert closing_report.losses(replace(job, lost=0)).plain == "no agent was lost"


def test_outcome_quotes_the_condition(stopwatch: Stopwatch, manifest: dict[str, Any]) -> None:
    manifest["status"]["conditions"] = [
        {"type": "Failed", "status": "True", "reason": "UserCodeFailed", "message": "no such model"}
    ]
    line = closing_report.outcome(read_job(manifest), stopwatch).plain
    assert line == "gpt Failed at step 20 of 80 after 0 s: no such model"


def test_report_renders(stopwatch: Stopwatch, manifest: dict[str, Any]) -> None:
    console = Console(file=StringIO())
    stopwatch.add("train", 12.0)
    console.print(closing_report.final_report(run_of(read_job(manifest)), stopwatch, FaultLog()))
    assert isinstance(console.file, StringIO)
    assert "12.0" in console.file.getvalue()


SILENT = Hit(Fault.SILENT, (LOST,), 33, 40.0)
NEIGHBOURS = ScheduledFault(0.6, Fault.NEIGHBOURS, (Slot(0, 1), Slot(0, 2)))
EQUAL = Comparison(8, ())
COMPLETE = ConditionLine("Complete", "True", "StepsReached", "")


def rendered(part: RenderableType) -> str:
    console = Console(file=StringIO(), width=160)
    console.print(part)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_the_mode_that_auto_has_taken_is_named(
    stopwatch: Stopwatch, manifest: dict[str, Any]
) -> None:
    job = replace(read_job(manifest), redundancy="Replica", redundancy_reason="it is cheap")
    shown = rendered(closing_report.final_report(run_of(job), stopwatch, FaultLog()))
    assert "redundancy Replica, taken by Auto: it is cheap" in shown
    plain = rendered(closing_report.final_report(run_of(read_job(manifest)), stopwatch, FaultLog()))
    assert "Auto" not in plain


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (None, "it is so"),
        (0.0, "it is so; groups have carried 0.0% of the bytes between agents"),
        (0.625, "it is so; groups have carried 62.5% of the bytes between agents"),
    ],
)
def test_the_channel_and_what_groups_have_carried(
    manifest: dict[str, Any], share: float | None, words: str
) -> None:
    job = replace(read_job(manifest), channel="Tcp", channel_reason="it is so", group_share=share)
    assert closing_report.channel(job).plain == f"channel Tcp: {words}"


def test_faults_and_verdict(stopwatch: Stopwatch, manifest: dict[str, Any]) -> None:
    hits = [SILENT, Hit(Fault.NOTICED, ("gpt-p0-s0-i0",), 50, 60.0)]
    job = replace(read_job(manifest), conditions=(COMPLETE,))
    shown = rendered(
        closing_report.final_report(run_of(job), stopwatch, FaultLog(hits, RECOVERY), EQUAL)
    )
    assert "no event" in shown
    assert "No event shows how training continued without gpt-p0-s0-i0" in shown
    assert "all 8 layers equal the undisturbed run's, bit for bit" in shown
    assert "layers [2] of 8 DIFFER" in closing_report.verdict(Comparison(8, (2,))).plain


@pytest.mark.parametrize(
    ("fault", "times"),
    [
        (Fault.SILENT, "1.50 s       2.34 s"),  # from the fault
        (Fault.NOTICED, "1.50 s       0.84 s"),  # from the stop: training continues until then
    ],
)
def test_times_of_a_fault(fault: Fault, times: str) -> None:
    assert times in rendered(closing_report.faults([replace(SILENT, fault=fault)], RECOVERY))
    assert "-            -" in rendered(closing_report.faults([replace(SILENT, fault=fault)], []))


def test_an_earlier_stop_for_another_reason_does_not_count() -> None:
    entered = [
        event(10.0, EventReason.STOPPED, epoch=2, agents=LOST),
        event(10.3, EventReason.RESUMED, epoch=2, step=9, pause_s=0.3),
        event(41.2, EventReason.STOPPED, epoch=2, agents=f"{LOST}1"),
    ]
    assert "1.50 s       2.34 s" in rendered(closing_report.faults([SILENT], [*entered, *RECOVERY]))


@pytest.mark.parametrize(
    ("hit", "times"),
    [
        # Leaving since second 40, and left out by the plan after another agent's loss.
        (Hit(Fault.NOTICED, ("gpt-p1-s1-i0",), 20, 40.0), "1.50 s       0.84 s"),
        # Noticed or lost while training is stopped for another agent's loss.
        (Hit(Fault.NOTICED, ("gpt-p1-s1-i0",), 33, 41.7), "0.00 s       0.64 s"),
        (Hit(Fault.SILENT, ("gpt-p1-s1-i0",), 33, 41.7), "0.00 s       0.64 s"),
        # Nothing waits for it any more.
        (Hit(Fault.SILENT, ("gpt-p1-s1-i0",), 34, 42.345), "no stop      -"),
    ],
)
def test_a_fault_covered_by_another_stop(hit: Hit, times: str) -> None:
    """The operator reports that an agent has left after training has resumed."""
    left = event(42.35, EventReason.AGENT_LEFT, agents="gpt-p1-s1-i0")
    assert times in rendered(closing_report.faults([hit], [*RECOVERY, left]))


NOT_INJECTED = (
    '"two neighbours lost at once" was due at step 48 of 80 but was not injected: the job ended'
    " before all of its agents were seen running. Give the job more steps (spec.training.steps) or"
    " more --nodes, or inject no faults (--no-losses)."
)


@pytest.mark.parametrize(
    ("log", "comparison", "missing"),
    [
        (FaultLog(), None, []),
        (FaultLog([SILENT], RECOVERY), EQUAL, []),
        (FaultLog([], RECOVERY, [NEIGHBOURS]), None, [NOT_INJECTED]),
        (FaultLog([SILENT], RECOVERY, [NEIGHBOURS]), EQUAL, [NOT_INJECTED]),
        (
            FaultLog([SILENT], RECOVERY),
            None,
            ["The final state was not compared with an undisturbed run's."],
        ),
        (
            FaultLog([SILENT], RECOVERY[3:]),
            EQUAL,
            ["No event shows how training continued without gpt-p1-s3-i0: see the job's events."],
        ),
    ],
)
def test_a_run_that_does_not_show_what_it_should_fails(
    stopwatch: Stopwatch,
    manifest: dict[str, Any],
    log: FaultLog,
    comparison: Comparison | None,
    missing: list[str],
) -> None:
    job = replace(read_job(manifest), conditions=(COMPLETE,))
    assert verdict.unproven(job, log, comparison) == missing
    assert verdict.is_success(job, log, comparison) is (not missing)
    shown = " ".join(
        rendered(closing_report.final_report(run_of(job), stopwatch, log, comparison)).split()
    )
    assert all(line in shown for line in missing)


def test_different_bits_or_an_incomplete_job_fail(manifest: dict[str, Any]) -> None:
    running = read_job(manifest)
    complete = replace(running, conditions=(COMPLETE,))
    assert not verdict.is_success(running, FaultLog(), None)
    assert verdict.unproven(running, FaultLog(left=[NEIGHBOURS]), None) == []
    assert not verdict.is_success(complete, FaultLog(), Comparison(8, (2,)))


def test_the_channel_is_named_with_its_reason(
    stopwatch: Stopwatch, manifest: dict[str, Any]
) -> None:
    job = replace(read_job(manifest), channel="Tcp", channel_reason="there are no GPUs")
    shown = rendered(closing_report.final_report(run_of(job), stopwatch, FaultLog()))
    assert "channel Tcp: there are no GPUs" in shown
    plain = rendered(closing_report.final_report(run_of(read_job(manifest)), stopwatch, FaultLog()))
    assert "channel" not in plain
