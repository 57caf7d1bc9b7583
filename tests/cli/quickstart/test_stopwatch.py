"""How long the phases of a quick start take."""

from __future__ import annotations

import pytest

from bamboo_cli.quickstart.stopwatch import Stopwatch


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
def stopwatch(clock: list[float]) -> Stopwatch:
    return Stopwatch(now=lambda: clock[0])


def test_phases_add_up(stopwatch: Stopwatch, clock: list[float]) -> None:
    for _ in range(2):
        with stopwatch.phase("train"):
            clock[0] += 3
    assert stopwatch.phases == {"train": 6.0}
    assert stopwatch.elapsed_s == 6


def test_a_phase_that_fails_is_counted(stopwatch: Stopwatch, clock: list[float]) -> None:
    def fail() -> None:
        with stopwatch.phase("train"):
            clock[0] += 3
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert stopwatch.phases == {"train": 3.0}
