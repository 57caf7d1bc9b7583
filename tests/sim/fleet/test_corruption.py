"""Devices of a real fleet compute wrong bits: their agents end, and the bits stay right.

Either an agent's own checks find them, or another agent that computes the same forward ahead.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bamboo_core.api.events import EventFact, EventReason
from bamboo_core.api.reasons import FailureCause
from bamboo_core.api.spec import CorruptionMode, CorruptionSpec, RecoveryPolicy, RedundancyMode
from bamboo_core.arbiter_state.events import Record
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Failure
from bamboo_sim.fleet.injection.effects import Effect
from bamboo_sim.fleet.local_fleet import ForkServerProcess, LocalFleet
from bamboo_sim.fleet.runs.campaign import Campaign
from bamboo_sim.fleet.runs.scenarios import Scenario, suspend, undisturbed
from bamboo_sim.fleet.switches.kill_switch import ALWAYS, MISCOMPUTE

PAIR = Scenario("pair", pipelines=1, stages=2, most=1, mode=RedundancyMode.REPLICA)
FLIPS = [
    ("F", 0, "m3"),
    ("B", 1, "m2"),
    ("REDUCE", 1, "m0 0:1 0:8"),
    ("UPDATE", 0, "{lo}:{hi} 0:1"),
]
"""Op, stage of the victim, what follows the layers in the instruction's name."""


async def flip(fleet: LocalFleet, op: str, stage: int, rest: str) -> str:
    """Let one agent compute a wrong bit, and replace it; what its failure must name."""
    step = await Campaign(fleet).steady_step()
    (pipeline,) = fleet.plan().pipelines
    victim = pipeline[stage]
    assert victim is not None
    lo, hi = fleet.plan().cut[stage]
    named = f"{op}[{lo}:{hi}] {rest}".format(lo=lo, hi=hi).rstrip()
    fleet.arm_kill_switch(victim, MISCOMPUTE, f"{named} @{max(step, fleet.committed_step) + 20}")
    await fleet.until(lambda: victim in fleet.exits, f"the end of {victim} by {named}")
    assert fleet.faults.effects(victim)[Effect.MISCOMPUTED] == 1
    assert fleet.exits[victim] == 1
    await fleet.add({f"after-{op.lower()}": fleet.pods[victim].zone})
    await Campaign(fleet).steady_step()
    assert victim not in fleet.plan().live
    return f"the update of layer {lo} in step " if op == "UPDATE" else named


@pytest.mark.timeout(240)
async def test_wrong_bits_end_their_agent_and_change_no_result(
    tmp_path: Path, forkserver: ForkServerProcess
) -> None:
    """The undisturbed job does not check itself, so the checks change no bit either. Agents that
    look slow keep their work: else its instructions have other names."""
    job = PAIR.unlimited_job(tmp_path)
    checks = CorruptionSpec(CorruptionMode.DETECT, sample=1.0)
    job = replace(job, corruption=checks, recovery=RecoveryPolicy.PEERS)
    async with LocalFleet(job, tmp_path / "fleet", forkserver=forkserver) as fleet:
        await fleet.add(PAIR.agents())
        names = [await flip(fleet, *case) for case in FLIPS]
        trained = await suspend(fleet)
        failures = fleet.messages(Failure)
        assert [failure.reason for failure in failures] == ["Corruption"] * len(FLIPS)
        for failure, name in zip(failures, names, strict=True):
            assert f"CorruptionError: {name}" in failure.message
    trained.assert_equal(await undisturbed(tmp_path, forkserver, PAIR, trained.steps))


AHEAD = Scenario("ahead", pipelines=1, stages=4, most=1, mode=RedundancyMode.EAGER, width=32)
OWNER = 1
"""The agent of the stage before computes its first forward ahead, while it waits for the first
backward: the longest wait of a step."""


def told(fleet: LocalFleet, reason: EventReason) -> list[Record]:
    return [record for _, record in fleet.operator.records if record.reason is reason]


async def dispute(fleet: LocalFleet, moment: str) -> tuple[AgentId, AgentId]:
    """Let a forward be wrong that two agents compute; the one that is wrong, and the other."""
    step = await Campaign(fleet).steady_step()
    (pipeline,) = fleet.plan().pipelines
    other, victim = (agent or AgentId("") for agent in pipeline[OWNER - 1 : OWNER + 1])
    lo, hi = fleet.plan().cut[OWNER]
    wrong_at = max(step, fleet.committed_step) + 10
    before = len(told(fleet, EventReason.CORRUPTION))
    fleet.arm_kill_switch(victim, moment, f"F[{lo}:{hi}] m0 @{wrong_at}")
    await fleet.until(lambda: victim in fleet.exits, f"the end of {victim}")
    assert fleet.faults.effects(victim)[Effect.MISCOMPUTED] > 0
    await fleet.add({f"after-{moment}": fleet.pods[victim].zone})
    (found, *_) = told(fleet, EventReason.CORRUPTION)[before:]
    assert {*found.agents} == {victim, other}
    assert found.facts[EventFact.STEP] == wrong_at
    assert (found.facts[EventFact.LAYER], found.facts[EventFact.MICROBATCH]) == (lo, 0)
    await Campaign(fleet).steady_step()
    assert victim not in fleet.plan().live
    assert other in fleet.plan().live
    return victim, other


@pytest.mark.timeout(240)
async def test_a_forward_that_two_agents_compute_is_compared(
    tmp_path: Path, forkserver: ForkServerProcess
) -> None:
    """The fault that has passed is found by the agent itself, the one that lasts by a third one.
    No agent checks its own work in these steps."""
    job = AHEAD.unlimited_job(tmp_path)
    job = replace(job, corruption=CorruptionSpec(CorruptionMode.DETECT, sample=1e-6))
    async with LocalFleet(job, tmp_path / "fleet", forkserver=forkserver) as fleet:
        await fleet.add(AHEAD.agents())
        await dispute(fleet, MISCOMPUTE)
        (failure,) = fleet.messages(Failure)
        assert failure.reason == "Corruption"
        assert "gave two results" in failure.message
        wrong, _ = await dispute(fleet, ALWAYS)
        (_, blamed) = told(fleet, EventReason.WORKER_FAILED)
        assert blamed.agents == (wrong,)
        assert blamed.facts[EventFact.CAUSE] == FailureCause.CORRUPTION
        assert f"{wrong} is wrong: the others agree" in blamed.message
        trained = await suspend(fleet)
        assert fleet.divergences() == []
    trained.assert_equal(await undisturbed(tmp_path, forkserver, AHEAD, trained.steps))
