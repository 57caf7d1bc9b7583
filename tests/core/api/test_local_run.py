"""What a run on one machine tells comes out as it went in."""

from __future__ import annotations

import math

import pytest

from bamboo_core.api import local_run
from bamboo_core.api.events import Severity
from bamboo_core.api.outcome import Outcome

TOLD: list[local_run.Told] = [
    local_run.Layer(3, "Linear", 12, "4x8 float32"),
    local_run.Fleet(2, 3, "cpu", 0, "/tmp/a b"),
    local_run.Step(7, 1.5, 0.25, 6, validation_loss=None),
    local_run.Step(8, 1.5, 0.25, 5, validation_loss=2.0),
    local_run.Step(9, 1.5, 0.25, 5, 2.0, {"accuracy": 0.5}, {"accuracy": 0.25}),
    local_run.Happened("AgentLost", "two\nlines, and a \U0001f600", Severity.WARNING),
    local_run.Killed("agent-3", 1, 2),
    local_run.Compared(8, 40, ""),
    local_run.Ended(Outcome.COMPLETE, "all is done", "/tmp/checkpoints", "abc"),
]


@pytest.mark.parametrize("told", TOLD, ids=lambda x: type(x).__name__)
def test_a_line_comes_out_as_it_went_in(told: local_run.Told) -> None:
    line = local_run.to_line(told)
    assert "\n" not in line
    again = local_run.from_line(line)
    assert again == told
    assert type(again) is type(told)


def test_a_loss_that_is_no_number_comes_through() -> None:
    again = local_run.from_line(local_run.to_line(local_run.Step(0, math.nan, math.inf, 1)))
    assert isinstance(again, local_run.Step)
    assert math.isnan(again.loss)
    assert again.grad_norm == math.inf


@pytest.mark.parametrize(
    "line",
    ["", "[]", "{}", '{"kind": "Dog"}', '{"kind": "Killed"}', "7", '{"kind": "Step", "x": 1}'],
)
def test_another_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        local_run.from_line(line)
