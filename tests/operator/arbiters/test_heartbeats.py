"""What keeps a large fleet cheap: rarer heartbeats."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bamboo_core.protocol.messages import Hello
from bamboo_operator.arbiters import heartbeats
from bamboo_operator.arbiters import ports as job_ports

from ..harness import AGENTS, Harness

LEAST_S = 0.2


@pytest.mark.parametrize(
    ("agents", "expected_s"), [(0, 0.2), (500, 0.2), (501, 0.4), (1001, 0.8), (10_000, 6.4)]
)
def test_a_larger_fleet_sends_rarer_heartbeats(agents: int, expected_s: float) -> None:
    found = heartbeats.heartbeat_s(agents, now_s=LEAST_S, least_s=LEAST_S)
    assert found == pytest.approx(expected_s)
    assert agents / found <= heartbeats.BEATS_PER_S


@pytest.mark.parametrize(("agents", "expected_s"), [(510, 0.8), (490, 0.2), (1900, 0.8)])
def test_the_pace_does_not_flutter(agents: int, expected_s: float) -> None:
    assert heartbeats.heartbeat_s(agents, now_s=0.8, least_s=LEAST_S) == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("agents", "expected_s"),
    [(0, 0.2), (4, 0.2), (39, 0.2), (40, 0.4), (100, 0.8), (500, 1.6), (800, 3.2), (2000, 6.4),
     (10_000, 12.8)],
)  # fmt: skip
def test_congestion_makes_heartbeats_rarer_as_far_as_it_helps(
    agents: int, expected_s: float
) -> None:
    fleet_s = heartbeats.heartbeat_s(agents, now_s=LEAST_S, least_s=LEAST_S)
    found = heartbeats.congested_s(
        agents, now_s=LEAST_S, fleet_s=fleet_s, factor=heartbeats.MOST_FACTOR
    )
    assert found == pytest.approx(expected_s)
    assert heartbeats.congested_s(agents, now_s=found, fleet_s=fleet_s, factor=1.0) == fleet_s
    fewer = heartbeats.congested_s(
        agents * 3 // 4, now_s=found, fleet_s=fleet_s, factor=heartbeats.MOST_FACTOR
    )
    assert fewer == found  # it does not flutter


def test_silence_in_a_congested_fleet_of_the_largest_size_is_found_in_time() -> None:
    """As docs/recovery.md says."""
    patience = job_ports.timing(10_000).at_pace(heartbeats.MOST_S).patience
    assert patience.silence_s == pytest.approx(13.6)
    assert patience.unreachable_s == pytest.approx(28.2)


def windows(
    congestion: heartbeats.Congestion, count: int, *, busy: float, late: float = 0.0
) -> None:
    for _ in range(count):
        wall_s = heartbeats.WINDOW_S
        congestion.note(wall_s=wall_s, idle_s=(1 - busy) * wall_s, late_s=late * wall_s)


def calm() -> heartbeats.Congestion:
    """After a while without congestion."""
    congestion = heartbeats.Congestion()
    windows(congestion, 10 * heartbeats.CALM_WINDOWS, busy=0.0)
    assert congestion.factor == 1
    return congestion


def test_a_new_operator_expects_all_agents_at_once() -> None:
    """It led them before, or another one did: with 5 heartbeats of each in a second it would be
    congested before it noticed."""
    congestion = heartbeats.Congestion()
    assert congestion.factor == heartbeats.MOST_FACTOR
    windows(congestion, heartbeats.CALM_WINDOWS, busy=0.1)
    assert congestion.factor == heartbeats.MOST_FACTOR / 2


def test_a_new_operator_that_is_busy_but_never_congested_ends_its_precaution() -> None:
    congestion = heartbeats.Congestion()
    windows(congestion, 3 * heartbeats.CALM_WINDOWS, busy=0.7)
    assert congestion.factor == 1
    windows(congestion, heartbeats.CONGESTED_WINDOWS, busy=1.0)
    windows(congestion, 3 * heartbeats.CALM_WINDOWS, busy=0.7)
    assert congestion.factor == 2  # since then, only calm takes it back


@pytest.mark.parametrize(("busy", "late"), [(0.95, 0.0), (0.1, 0.5)])
def test_a_congested_loop_makes_heartbeats_rarer(busy: float, late: float) -> None:
    congestion = calm()
    windows(congestion, heartbeats.CONGESTED_WINDOWS - 1, busy=busy, late=late)
    assert congestion.factor == 1
    windows(congestion, 1, busy=busy, late=late)
    assert congestion.factor == 2
    windows(congestion, 100, busy=busy, late=late)
    assert congestion.factor == heartbeats.MOST_FACTOR


def test_one_busy_window_does_not() -> None:
    congestion = calm()
    for _ in range(10):
        windows(congestion, heartbeats.CONGESTED_WINDOWS - 1, busy=1.0)
        windows(congestion, 1, busy=0.5)
    assert congestion.factor == 1


def test_heartbeats_come_back_once_it_is_calm_for_a_while() -> None:
    congestion = calm()
    windows(congestion, 2 * heartbeats.CONGESTED_WINDOWS, busy=1.0)
    assert congestion.factor == 4
    windows(congestion, heartbeats.CALM_WINDOWS - 1, busy=0.1)
    windows(congestion, 1, busy=0.5)
    windows(congestion, heartbeats.CALM_WINDOWS - 1, busy=0.1)
    assert congestion.factor == 4
    windows(congestion, 1, busy=0.1)
    assert congestion.factor == 2
    windows(congestion, 10 * heartbeats.CALM_WINDOWS, busy=0.0)
    assert congestion.factor == 1


def test_short_ticks_add_up_to_a_window() -> None:
    congestion = calm()
    ticks = int(heartbeats.CONGESTED_WINDOWS * heartbeats.WINDOW_S / 0.25)
    for _ in range(ticks - 1):
        congestion.note(wall_s=0.25, idle_s=0.0, late_s=0.0)
    assert congestion.factor == 1
    congestion.note(wall_s=0.25, idle_s=0.0, late_s=0.0)
    assert congestion.factor == 2


async def test_agents_of_a_congested_operator_are_told_a_rarer_pace(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "LIGHT_PER_S", 1.0)
    actor = harness.lead()
    session = actor.connect(hello(0))
    session.outgoing.get_nowait()
    harness.jobs._congestion = calm()
    windows(harness.jobs._congestion, heartbeats.CONGESTED_WINDOWS, busy=1.0)
    harness.jobs.pace()
    assert session.outgoing.get_nowait().heartbeat_s == 2 * LEAST_S  # type: ignore[union-attr]
    assert actor._leadership.arbiter.state.job.timing.heartbeat_s == 2 * LEAST_S
    await harness.jobs.close()


async def test_each_tick_counts_what_was_idle_since_the_one_before(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle_s, noted, enough = [1000.0], list[float](), asyncio.Event()

    def note(*, wall_s: float, idle_s: float, late_s: float) -> None:
        noted.append(idle_s)
        if len(noted) == 3:
            enough.set()

    harness.jobs._ports = replace(harness.jobs._ports, idle_s=lambda: idle_s[0])
    monkeypatch.setattr(harness.jobs._congestion, "note", note)
    ticking = asyncio.create_task(harness.jobs.tick_for_ever(period_s=0.005))
    await asyncio.sleep(0)  # it has begun
    idle_s[0] += 2.0
    await asyncio.wait_for(enough.wait(), 30)
    assert noted[:3] == [2.0, 0.0, 0.0]
    ticking.cancel()
    await asyncio.gather(ticking, return_exceptions=True)
    await harness.jobs.close()


def hello(index: int) -> Hello:
    return Hello(AGENTS[index], f"uid-{index}", "node", "a", "m", "h:1", "h:2")


async def test_agents_are_told_the_pace_of_the_fleet(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "BEATS_PER_S", 5.0)
    actor = harness.lead()
    first = actor.connect(hello(0))
    assert first.outgoing.get_nowait().heartbeat_s == LEAST_S  # type: ignore[union-attr]
    harness.jobs.pace()
    assert first.outgoing.empty()
    second = actor.connect(hello(1))
    assert second.outgoing.get_nowait().heartbeat_s == LEAST_S  # type: ignore[union-attr]
    harness.jobs.pace()
    for session in (first, second):
        assert session.outgoing.get_nowait().heartbeat_s == 2 * LEAST_S  # type: ignore[union-attr]
    harness.jobs.pace()
    assert first.outgoing.empty()  # told once
    await harness.jobs.close()


async def test_a_new_job_begins_with_the_pace_of_the_others(harness: Harness) -> None:
    harness.jobs._heartbeat_s = 4 * LEAST_S
    session = harness.lead().connect(hello(0))
    assert session.outgoing.get_nowait().heartbeat_s == 4 * LEAST_S  # type: ignore[union-attr]
    await harness.jobs.close()


async def test_the_pace_survives_a_new_arbiter(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "BEATS_PER_S", 1.0)
    actor = harness.lead()
    actor.connect(hello(0))
    harness.jobs.pace()
    leadership = actor._leadership
    leadership.fail(KeyError("a defect"), 0.0)
    assert leadership.arbiter.state.job.timing.heartbeat_s > LEAST_S
    await harness.jobs.close()


def test_members_have_as_long_to_return_as_it_takes_to_admit_them() -> None:
    assert job_ports.timing(8).return_s == job_ports.RETURN_S
    assert job_ports.timing(10_000).return_s == 10_000 / job_ports.RETURNS_PER_S
