"""Limits of recovery, as numbers: users rely on them, and docs/recovery.md names most."""

from __future__ import annotations

from pathlib import Path

import pytest

from bamboo_agent.storage import sealer
from bamboo_core.api.spec import RunPolicy
from bamboo_core.arbiter import last_write
from bamboo_core.arbiter_state import findings, waits
from bamboo_core.arbiter_state.events import DesiredState, Timing
from bamboo_core.model import pruning
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol import watch
from bamboo_core.protocol.messages import BadCheckpoint

ROOT = Path(__file__).resolve().parents[2]
FOLD = " ".join((ROOT / "docs/recovery.md").read_text().split())


@pytest.mark.parametrize(
    ("value", "number", "words"),
    [
        (findings.AGAIN_S, 30, "or the only node twice, 30 s apart"),
        (sealer.LOOK_S, 75, "for 75 s, since an NFS client may keep a listing for 60 s"),
        (watch.LEAST_RATE, 64_000, ""),
        (watch.LEAST_SHARE, 0.01, ""),
        (watch.STILL_S, 30, ""),
        (watch.WINDOW_S, 40, ""),
        (RunPolicy().last_write_deadline_s, 3600, "lastWriteDeadlineSeconds` (an hour)"),
        (DesiredState(1).last_write_s, 3600, ""),
        (last_write.SUSPENDED_S, 300, "also one by Kueue, they do so for 300 s at most"),
        (pruning.LEAST_KEPT, 2, ""),
        (Timing().voter_wait_s, 60, "the arbiter waits for it for `voter_wait_s` (60 s)"),
        (Timing().voter_wait_s / waits.ASKS, 7.5, "at least every 7.5 s"),
        (Timing().voter_wait_s * waits.MOST_WAITS, 180, "up to 180 s after the first wait"),
        (waits.RETRY_S, 5, ""),
    ],
)
def test_a_limit_is_what_was_promised(value: float, number: float, words: str) -> None:
    assert value == number
    assert words in FOLD


@pytest.mark.parametrize(("seconds", "is_bad"), [(29.9, False), (30.0, True)])
def test_the_only_node_is_believed_after_thirty_seconds(seconds: float, is_bad: bool) -> None:
    found, agent = findings.Findings(), AgentId("a")

    def hear(epoch: int, now: float) -> bool:
        word = BadCheckpoint(0, 4, "altered", fence=Fence(0, 1, epoch))
        return found.hear(agent, "node", word, now, is_alone=True)

    assert not hear(1, 100.0)
    assert hear(2, 100.0 + seconds) is is_bad


def test_less_than_64_kilobytes_a_second_are_too_slow_whatever_is_usual() -> None:
    assert watch.Transfers().least(AgentId("a")) == 64_000.0
