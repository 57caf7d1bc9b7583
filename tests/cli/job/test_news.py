"""The events that a screen has room for."""

from __future__ import annotations

from typing import Any

from tests.cli.events import event

from bamboo_cli.job.news import headlines
from bamboo_core.api.events import EventReason as Reason


def at(second: float, reason: Reason, message: str = "", **facts: Any) -> dict[str, Any]:
    return event(second, reason, **facts) | {"message": message}


def sealed(second: float, step: int) -> dict[str, Any]:
    return at(second, Reason.CHECKPOINT_SEALED, f"step {step} in file:///ckpt/{step}", step=step)


def test_checkpoints_do_not_push_losses_out() -> None:
    lost = [at(1.0, Reason.AGENT_LOST, "a is lost"), at(2.0, Reason.RESUMED, "goes on")]
    events = [*lost, *(sealed(3.0 + n, n) for n in range(40))]
    assert headlines(events, 6) == [
        "00:00:01 AgentLost: a is lost",
        "00:00:02 Resumed: goes on",
        "00:00:42 CheckpointSealed: 40 checkpoints, the newest of step 39",
    ]


def test_losses_pauses_and_warnings_come_before_all_else() -> None:
    plans = [at(10.0 + n, Reason.PLANNED, f"plan {n}") for n in range(9)]
    failed = at(4.0, Reason.STORAGE_FAILED, "no room") | {"type": "Warning"}
    events = [at(1.0, Reason.STOPPED, "stop"), sealed(2.0, 7), failed, *plans]
    assert headlines(events, 4) == [
        "00:00:01 Stopped: stop",
        "00:00:02 CheckpointSealed: the checkpoint of step 7 is complete",
        "00:00:04 StorageFailed: no room",
        "00:00:18 Planned: plan 8",
    ]
    many = [at(float(n), Reason.AGENT_LOST, f"{n}") for n in range(9)]
    assert [line[-1] for line in headlines([*many, sealed(9.0, 1)], 6)][:-1] == [*"45678"]


def test_there_may_be_none() -> None:
    assert headlines([], 6) == []
    bare = {"reason": "CheckpointSealed", "lastTimestamp": "2026-01-01T08:00:02Z"}
    assert headlines([bare, bare], 6) == ["08:00:02 CheckpointSealed: 2 checkpoints, the newest"]
