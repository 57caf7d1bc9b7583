"""A bit of a replica flips in a real fleet: only the replica's holder ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Failure
from bamboo_sim.protocol.fleet.campaign import Campaign
from bamboo_sim.protocol.fleet.forkserver import COMPARE_EVERY
from bamboo_sim.protocol.fleet.local_fleet import ForkServerProcess, LocalFleet
from bamboo_sim.protocol.fleet.scenarios import Scenario, suspend, undisturbed

PAIR = Scenario("pair", pipelines=1, stages=2, most=1, mode=RedundancyMode.REPLICA)


async def corrupt(fleet: LocalFleet) -> tuple[AgentId, AgentId]:
    """Flip a bit in the second agent's replica of the first stage; (owner, holder)."""
    step = await Campaign(fleet).steady_step()
    (pipeline,) = fleet.plan().pipelines
    owner, holder = (agent or AgentId("") for agent in pipeline)
    _, hi = fleet.plan().cut[0]
    fleet.arm_kill_switch(
        holder, "flip", f"UPDATE[0:{hi}] 0:{hi} @{max(step, fleet.committed_step) + 3}"
    )
    return owner, holder


@pytest.mark.timeout(240)
async def test_a_corrupt_replica_is_replaced_and_no_bit_changes(
    tmp_path: Path, forkserver: ForkServerProcess
) -> None:
    async with LocalFleet(
        PAIR.unlimited_job(tmp_path), tmp_path / "fleet", forkserver=forkserver
    ) as fleet:
        await fleet.add(PAIR.agents())
        owner, holder = await corrupt(fleet)
        await fleet.until(lambda: holder in fleet.exits, f"the end of {holder}")
        await fleet.add({"new-0": fleet.pods[holder].zone})
        await Campaign(fleet).steady_step()
        assert set(fleet.plan().live) == {owner, "new-0"}
        await fleet.committed(fleet.committed_step + 2 * COMPARE_EVERY)
        trained = await suspend(fleet)
        (failure,) = fleet.messages(Failure)
        assert failure.reason == "ReplicaDiffers"
        assert f"layer 0 on {holder} differs from that on {owner} in" in failure.message
        assert (fleet.exits[holder], fleet.exits[owner]) == (1, 0)
    trained.assert_equal(await undisturbed(tmp_path, forkserver, PAIR, trained.steps))
