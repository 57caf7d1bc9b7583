"""How a run on this machine is shown."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import pairwise

import pytest
from rich.console import Console

from bamboo_cli.views.terminal.local_run import LocalRunView, compared_text
from bamboo_core.api import local_run
from bamboo_core.api.events import EventReason, Severity
from bamboo_core.api.outcome import Outcome


class Screen:
    """A view of 100 steps of 10 samples, with a clock."""

    def __init__(self, *, is_terminal: bool = False) -> None:
        self.now, self.text = 0.0, io.StringIO()
        console = Console(
            file=self.text, force_terminal=is_terminal, width=200, markup=False, emoji=False
        )
        self.view = LocalRunView(console, steps=100, batch=10, now=lambda: self.now)

    def step(self, step: int, at: float, validation_loss: float | None = None) -> None:
        self.now = at
        self.view.show(local_run.Step(step, 2.5, 1.0, 4, validation_loss))

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.text.getvalue().splitlines()]


@pytest.fixture
def screen() -> Iterator[Screen]:
    made = Screen()
    with made.view:
        yield made


def test_progress_has_loss_rate_and_time_left(screen: Screen) -> None:
    for step in range(11):
        screen.step(step, step * 1.0)
    assert screen.lines == [
        "step 6/100  loss 2.5000  10 samples/s  1:34 left  4 agents",
        "step 11/100  loss 2.5000  10 samples/s  1:29 left  4 agents",
    ]


def test_a_pause_does_not_count_in_the_rate(screen: Screen) -> None:
    for step in range(4):
        screen.step(step, step * 1.0)
    screen.now = 60.0
    screen.view.show(local_run.Happened(EventReason.RESUMED, "epoch 5: step 4 is committed"))
    screen.step(4, 60.0)
    screen.step(5, 65.0)
    assert screen.lines[-1].startswith("step 6/100  loss 2.5000  2 samples/s  7:50 left")


def test_what_lasts_long_is_said_every_quarter_of_a_minute(screen: Screen) -> None:
    for second in range(60, 100):
        screen.now = float(second)
        screen.view.show(local_run.Doing("1 of 4 agents ready", second))
    said = [int(line.split()[-2]) for line in screen.lines]
    assert [b - a for a, b in pairwise(said)] == [15, 15]


def test_the_last_step_is_always_printed(screen: Screen) -> None:
    screen.step(98, 1.0)
    screen.step(99, 1.5, validation_loss=2.25)
    assert screen.lines == [
        "step 100/100  loss 2.5000  validation 2.2500  20 samples/s  0:00 left  4 agents"
    ]


def test_metrics_stand_beside_the_losses(screen: Screen) -> None:
    told = local_run.Step(99, 2.5, 1.0, 4, 2.25, {"top": 0.123456, "ease": 1e-7}, {"top": 0.5})
    screen.view.show(told)
    assert screen.lines == [
        "step 100/100  loss 2.5000  ease 1e-07  top 0.1235  validation 2.2500  validation top 0.5"
        "  4 agents"
    ]


def test_what_goes_on_before_the_first_step_is_said_now_and_then(screen: Screen) -> None:
    for second in range(12):
        screen.now = float(second)
        screen.view.show(local_run.Doing("1 of 4 agents ready; starting: agent-2", second))
    assert screen.lines == [
        "1 of 4 agents ready; starting: agent-2  5 s",
        "1 of 4 agents ready; starting: agent-2  10 s",
    ]


def test_what_goes_on_is_one_line_of_a_terminal() -> None:
    screen = Screen(is_terminal=True)
    with screen.view:
        for second in range(12):
            screen.view.show(local_run.Doing("1 of 4 agents ready", second))
        screen.view._live.refresh()
        assert "1 of 4 agents ready  11 s" in screen.text.getvalue()
    assert "\n1 of" not in screen.text.getvalue()


def test_layers_come_with_the_fleet(screen: Screen) -> None:
    screen.view.show(local_run.Layer(-1, "input", 0, "4x8 float32"))
    screen.view.show(local_run.Layer(0, "Linear", 1234, "4x16 float32"))
    assert screen.lines == []
    screen.view.show(local_run.Fleet(2, 3, "cpu", 0, "/runs/1"))
    assert "1,234" in screen.text.getvalue()
    assert "6 agents on the CPU; logs and checkpoints in /runs/1" in screen.lines[-1]
    screen.view.show(local_run.Fleet(2, 3, "H200", 2, "/runs/1"))
    assert "6 agents on 2 GPUs" in screen.lines[-1]


def test_losses_and_warnings_are_shown_and_other_events_are_not(screen: Screen) -> None:
    screen.view.show(local_run.Killed("agent-1", 1, 2))
    screen.view.show(local_run.Happened(EventReason.AGENT_LOST, "agent-1 is lost"))
    screen.view.show(local_run.Happened(EventReason.PLANNED, "a plan"))
    screen.view.show(local_run.Happened("Odd", "look here", Severity.WARNING))
    assert screen.lines == [
        "taking agent-1 away (1 of 2)",
        "AgentLost: agent-1 is lost",
        "Odd: look here",
    ]


def test_what_repeats_itself_while_training_stands_still_is_shown_once(screen: Screen) -> None:
    lost = local_run.Happened(EventReason.AGENT_LOST, "agent-1: no report", Severity.WARNING)
    waits = local_run.Happened(EventReason.WAITING, "nobody has layer 3", Severity.WARNING)
    resumed = local_run.Happened(EventReason.RESUMED, "epoch 5: step 4 is committed")
    for told in (lost, waits, lost, waits, resumed, lost):
        screen.view.show(told)
    assert screen.lines == [
        "AgentLost: agent-1: no report",
        "Waiting: nobody has layer 3",
        "Resumed: epoch 5: step 4 is committed",
        "AgentLost: agent-1: no report",
    ]


def test_a_refusal_before_the_start_shows_the_layers_so_far(screen: Screen) -> None:
    screen.view.show(local_run.Layer(0, "Linear", 1234, "4x16 float32"))
    screen.view.show(local_run.Ended(Outcome.FAILED, "layer 1 does not fit"))
    assert "Linear" in screen.text.getvalue()


def test_a_failed_run_names_the_checkpoint_from_which_another_one_goes_on(screen: Screen) -> None:
    screen.view.show(local_run.Ended(Outcome.FAILED, "a sample raised", "/runs/1/step", "0123"))
    assert screen.lines == ["checkpoint: /runs/1/step"]
    screen.view.show(local_run.Ended(Outcome.FAILED, "layer 1 does not fit"))
    assert screen.lines == ["checkpoint: /runs/1/step"]


def test_the_end_names_the_checkpoint_and_its_state(screen: Screen) -> None:
    screen.view.show(local_run.Ended(Outcome.COMPLETE, "all is done", "/runs/1/step", "0123"))
    assert screen.lines == [
        "Complete: all is done",
        "checkpoint: /runs/1/step",
        "final state: 0123",
    ]
    screen.view.show(local_run.Ended(Outcome.COMPLETE, "", "/c", "0123", "step 4, loss 0.5, in /d"))
    assert screen.lines[-1] == "best checkpoint: step 4, loss 0.5, in /d"


def test_a_difference_is_loud() -> None:
    assert compared_text(local_run.Compared(3, 9, "")).startswith("equal, bit for bit, to 3 steps")
    text = compared_text(local_run.Compared(3, 9, "layer 0, param/weight: 1e-3"))
    assert text.startswith("DIFFERENT")
    assert "layer 0, param/weight" in text


def test_a_terminal_has_one_line_of_progress() -> None:
    screen = Screen(is_terminal=True)
    with screen.view:
        screen.step(0, 0.0)
        screen.step(1, 1.0)
        screen.view.show(local_run.Killed("agent-1", 1, 1))
    assert "step 2/100" in screen.text.getvalue()
    assert "taking agent-1 away" in screen.text.getvalue()
