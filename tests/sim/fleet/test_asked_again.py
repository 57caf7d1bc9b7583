"""Real agents whose link is cut while both are connected to the operator, or whose sessions are
refused for a time: nothing is given up."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import JobSpec, RedundancyMode
from bamboo_core.arbiter_state.events import Timing
from bamboo_core.arbiter_state.waits import RETRY_S
from bamboo_sim.fleet.local_fleet import ForkServerProcess, LocalFleet
from bamboo_sim.fleet.runs.jobs import tiny_gpt

pytestmark = pytest.mark.timeout(90)

WAIT_S = 0.96 * RETRY_S
"""Shorter than the first pause until suspects are asked, if nothing is to be given up."""

STEPS, LONG_STEPS = 30, 100_000


def job(folder: Path) -> JobSpec:
    """Two agents, each of which holds layers that no other has."""
    return tiny_gpt(
        folder,
        pipelines=1,
        stages=2,
        microbatches=8,
        mode=RedundancyMode.NONE,
        steps=STEPS,
        every_steps=0,
    )


def lost(fleet: LocalFleet) -> list[str]:
    """Messages about agents that were lost."""
    return [r.message for _, r in fleet.operator.records if r.reason is EventReason.AGENT_LOST]


async def test_a_link_that_heals_before_the_restore_is_due_costs_nothing(
    tmp_path: Path, forkserver: ForkServerProcess
) -> None:
    timing = Timing(start_grace_s=30.0, join_grace_s=0.2, voter_wait_s=WAIT_S)
    async with LocalFleet(
        job(tmp_path), tmp_path / "fleet", forkserver=forkserver, timing=timing, sees_ends=False
    ) as fleet:
        await fleet.add({"a-0": "zone-a", "b-0": "zone-b"})
        await fleet.committed(5)
        fleet.faults.cut("a-0", "b-0")
        await fleet.until(lambda: fleet.recorded(EventReason.AGENT_LOST), "an agent is lost")
        committed = fleet.committed_step
        await asyncio.sleep(WAIT_S / 2)
        fleet.faults.heal()
        over = await fleet.over(deadline_s=60.0)
        assert over.outcome is Outcome.COMPLETE, fleet.record()
        assert committed < STEPS - 1
        assert not fleet.recorded(EventReason.RESTORING), fleet.record()
        assert fleet.divergences() == []


async def test_sessions_that_come_back_one_by_one_cost_nothing(
    tmp_path: Path, forkserver: ForkServerProcess
) -> None:
    """The first agent is back, and the layers of the other one are missing."""
    timing = Timing(start_grace_s=30.0, join_grace_s=0.2)
    spec = job(tmp_path)
    long = replace(spec, training=replace(spec.training, steps=LONG_STEPS))
    async with LocalFleet(
        long, tmp_path / "fleet", forkserver=forkserver, timing=timing, sees_ends=False
    ) as fleet:
        await fleet.add({"a-0": "zone-a", "b-0": "zone-b"})
        await fleet.committed(5)
        fleet.operator.refuse("a-0", "b-0")
        await fleet.until(lambda: len(lost(fleet)) == 2, "both are lost")
        fleet.operator.admit("a-0")
        await fleet.until(lambda: "no live copy" in fleet.status().detail, "layers are missing")
        committed = fleet.committed_step
        fleet.operator.admit("b-0")
        await fleet.committed(committed + 3)
        assert not fleet.recorded(EventReason.RESTORING), fleet.record()
        assert fleet.divergences() == []
