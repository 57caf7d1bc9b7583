"""Lines about progress in an agent's log."""

from __future__ import annotations

import logging

import pytest

from bamboo_agent.supervisor.progress_log import ProgressLog
from bamboo_core.model.ids import Fence
from bamboo_core.protocol.messages import CommitRecord, Heartbeat, Progress


def test_progress_is_logged_with_step_and_loss_but_rarely(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    now = 100.0
    seen = ProgressLog(lambda: now)
    for step in range(25):  # one step a second
        now = 100.0 + step
        seen.see(Progress(CommitRecord(step, loss=2.5), Fence()))
        seen.see(Heartbeat(1, 0, 0))
    assert [record.getMessage() for record in caplog.records] == [
        f"step {step} committed, loss 2.5000" for step in (1, 11, 21)
    ]
    assert getattr(caplog.records[0], "fields") == {"step": 1, "loss": 2.5}  # noqa: B009


def test_metrics_are_logged_beside_the_loss(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    record = CommitRecord(0, loss=2.5, metrics={"top": 0.5, "ease": 1e-7})
    ProgressLog(lambda: 100.0).see(Progress(record, Fence()))
    (line,) = caplog.records
    assert line.getMessage() == "step 1 committed, loss 2.5000, ease 1e-07, top 0.5"
    assert getattr(line, "fields")["metrics"] == {"top": 0.5, "ease": 1e-7}  # noqa: B009
