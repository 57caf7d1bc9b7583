"""Real agents whose link is cut while both are connected to the operator: nothing is given up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import RedundancyMode
from bamboo_core.arbiter_state.events import Timing
from bamboo_core.arbiter_state.waits import RETRY_S
from bamboo_sim.fleet.local_fleet import ForkServerProcess, LocalFleet
from bamboo_sim.fleet.runs.jobs import tiny_gpt

pytestmark = pytest.mark.timeout(90)

WAIT_S = 0.96 * RETRY_S
"""Shorter than the first pause until suspects are asked, if nothing is to be given up."""

STEPS = 30


async def test_a_link_that_heals_before_the_restore_is_due_costs_nothing(
    tmp_path: Path, forkserver: ForkServerProcess
) -> None:
    """Each of the two agents holds layers that no other has."""
    spec = tiny_gpt(
        tmp_path,
        pipelines=1,
        stages=2,
        microbatches=8,
        mode=RedundancyMode.NONE,
        steps=STEPS,
        every_steps=0,
    )
    timing = Timing(start_grace_s=0.2, join_grace_s=0.2, voter_wait_s=WAIT_S)
    async with LocalFleet(
        spec, tmp_path / "fleet", forkserver=forkserver, timing=timing, sees_ends=False
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
