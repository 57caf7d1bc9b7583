"""Steps and pauses against virtual time, and what pauses are made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.sim.market.step_times.small import job, model

from bamboo_core.api.spec import RedundancyMode
from bamboo_sim.market.step_times import pauses as module
from bamboo_sim.market.step_times.dry import step_s
from bamboo_sim.market.step_times.networks import Network
from bamboo_sim.market.step_times.pauses import Question, after_losses, pauses
from bamboo_sim.timed.declared import Delays

NONE, REPLICA, EAGER = RedundancyMode.NONE, RedundancyMode.REPLICA, RedundancyMode.EAGER


@pytest.mark.parametrize(
    ("mode", "gbps", "pipelines", "lost"),
    [
        *((REPLICA, gbps, 3, lost) for gbps in (2.0, 100.0) for lost in ((), ((1, 2), (0, 0)))),
        (REPLICA, 2.0, 3, ((0, 1), (1, 2), (2, 0), (1, 3))),
        (REPLICA, 100.0, 2, ((0, 1),)),
        *((mode, 10.0, 2, ((1, 2),)) for mode in (NONE, EAGER)),
    ],
)
def test_steps_take_as_long_as_in_virtual_time(
    mode: RedundancyMode, gbps: float, pipelines: int, lost: tuple[tuple[int, int], ...]
) -> None:
    """Four losses on 3 x 4 leave two pipelines."""
    asked = Question(job(mode=mode, gbps=gbps, latency_s=0.0005), pipelines, 4)
    found = after_losses(asked, lost)
    seats = pipelines * 4 - len(lost)
    assert found.pipelines * 4 - len(found.holes) == seats
    assert step_s(asked.job, found.pipelines, 4, found.holes) == pytest.approx(
        found.step_s, rel=0.05
    )


SMALL = job(profile=model(layers=3, microbatches=4, pipelines=2))


def test_pauses_grow_by_the_delays_of_what_happens(tmp_path: Path) -> None:
    """Only a loss and a restore are detected; a decision is waited for in each."""
    usual = Question(SMALL, 2, 3, Delays())
    late = replace(usual, delays=Delays(detection_s=3.0))
    slow = replace(usual, delays=Delays(decision_s=5.0))
    plain, detected, decided = (pauses(x, tmp_path, 1) for x in (usual, late, slow))
    assert plain is not None
    assert detected is not None
    assert decided is not None
    assert detected.loss_ms - plain.loss_ms == pytest.approx(3000, rel=0.1)
    assert detected.restore_ms - plain.restore_ms == pytest.approx(3000)
    assert detected.join_ms == pytest.approx(plain.join_ms, abs=0.01)
    assert detected.drain_ms == pytest.approx(plain.drain_ms, abs=0.01)
    assert all(x - y > 4500 for x, y in zip(decided, plain, strict=True))


def test_a_slower_network_makes_a_restore_longer_by_what_is_read(tmp_path: Path) -> None:
    """Weights and two averages of a stage of 20 MB, and of its copy."""
    fast, slow = (
        pauses(Question(replace(SMALL, network=Network(x)), 2, 3, Delays()), tmp_path, 1)
        for x in (8.0, 0.8)
    )
    assert fast is not None
    assert slow is not None
    assert slow.restore_ms - fast.restore_ms >= 3 * 40_000_000 / 1e8 * 0.9 * 1000


def test_pauses_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Question(SMALL, 2, 3)
    found = pauses(asked, tmp_path, 2)
    monkeypatch.setattr(module, "_measured", None)
    assert pauses(asked, tmp_path) == found
    with pytest.raises(TypeError):
        pauses(replace(asked, pipelines=1), tmp_path)


def test_where_a_loss_is_fatal_there_are_no_pauses(tmp_path: Path) -> None:
    assert pauses(Question(job(mode=NONE), 1, 4), tmp_path) is None
    small = job(profile=model(memory_bytes=1))
    assert pauses(Question(small, 2, 4), tmp_path) is None
    with pytest.raises(ValueError, match="pipelines is 4, and small has 1 to 3"):
        pauses(Question(job(), 4, 4), tmp_path)
