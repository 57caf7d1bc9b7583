"""Copies of layers differ in real fleets: training goes on from a verified checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bamboo_core.api.events import EventFact, EventReason, RestoreCause
from bamboo_core.api.reasons import FailureCause
from bamboo_core.api.spec import CorruptionMode, CorruptionSpec, JobSpec, RedundancyMode, RunPolicy
from bamboo_core.arbiter_state.events import Record
from bamboo_core.controller import failures
from bamboo_core.controller.failures import Failures
from bamboo_core.controller.view import Losses
from bamboo_core.job.tally import Tally
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Failure, Hello
from bamboo_sim.fleet.injection.effects import Effect
from bamboo_sim.fleet.local_fleet import ForkServerProcess, LocalFleet
from bamboo_sim.fleet.runs.campaign import Campaign
from bamboo_sim.fleet.runs.scenarios import Scenario, TrainingResult, undisturbed
from bamboo_sim.fleet.switches.kill_switch import ALWAYS

EVERY = 4
"""Steps between checkpoints, and so between comparisons."""
PAIR = Scenario("pair", pipelines=1, stages=2, most=1, mode=RedundancyMode.REPLICA)
THREE = Scenario("three", pipelines=3, stages=1, most=3, mode=RedundancyMode.NONE)


def saving(scenario: Scenario, folder: Path) -> JobSpec:
    """The scenario's job without an end, with a checkpoint every few steps."""
    job = scenario.unlimited_job(folder)
    assert job.checkpoint is not None
    return replace(job, checkpoint=replace(job.checkpoint, every_steps=EVERY))


def told(fleet: LocalFleet, reason: EventReason) -> list[Record]:
    return [record for _, record in fleet.operator.records if record.reason is reason]


async def restored(fleet: LocalFleet) -> int:
    """Wait for the restore, and then for some steps more; where it has begun."""
    await fleet.until(lambda: bool(told(fleet, EventReason.RESTORING)), "a restore")
    (record,) = told(fleet, EventReason.RESTORING)
    assert record.facts[EventFact.CAUSE] == RestoreCause.CORRUPTION
    step = int(record.facts[EventFact.STEP])
    assert step % EVERY == 0
    await fleet.committed(await Campaign(fleet).steady_step() + 2 * EVERY)
    return step


async def suspend(fleet: LocalFleet) -> TrainingResult:
    await fleet.suspended()
    return TrainingResult.of(fleet)


@pytest.mark.timeout(240)
async def test_a_flipped_bit_of_a_replica_is_undone(
    tmp_path: Path, forkserver: ForkServerProcess
) -> None:
    """Nobody knows which of two copies is wrong: both agents stay and read the checkpoint.

    No agent is fenced (docs/adr/0030).
    """
    async with LocalFleet(
        saving(PAIR, tmp_path), tmp_path / "fleet", forkserver=forkserver
    ) as fleet:
        await fleet.add(PAIR.agents())
        step = await Campaign(fleet).steady_step()
        (pipeline,) = fleet.plan().pipelines
        owner, holder = (agent or AgentId("") for agent in pipeline)
        _, hi = fleet.plan().cut[0]
        wrong_at = max(step, fleet.committed_step) + 20  # before it knows, the agent goes on
        fleet.arm_kill_switch(holder, "flip", f"UPDATE[0:{hi}] 0:{hi} 0:1 @{wrong_at}")
        assert await restored(fleet) <= wrong_at
        assert fleet.faults.effects(holder)[Effect.FLIPPED] == 1
        assert set(fleet.plan().live) == {owner, holder}
        trained = await suspend(fleet)
        (found, *_) = told(fleet, EventReason.CORRUPTION)
        assert found.message.startswith(f"{owner} and {holder} hold different copies of layer 0")
        assert not fleet.messages(Failure)
        assert not told(fleet, EventReason.WORKER_FAILED)
    trained.assert_equal(await undisturbed(tmp_path, forkserver, PAIR, trained.steps))


def avoided(fleet: LocalFleet, record: Record) -> tuple[str, ...]:
    """The nodes that the controller avoids after this record."""
    tally = Tally(Losses())
    for hello in fleet.messages(Hello):
        tally.connected(hello)
    tally.hear(record, frozenset(), now=0.0)
    (words,) = tally.failed
    cause = FailureCause(words.cause)
    failure = failures.Failure(words.agent, cause, 0, 0.0, node=words.node, machine=words.machine)
    known = failures.add(Failures(), failure, words.message, RunPolicy())
    return tuple(place.node for place in known.avoided)


@pytest.mark.timeout(240)
async def test_an_agent_whose_arithmetic_is_wrong_from_some_step_on_is_found(
    tmp_path: Path, forkserver: ForkServerProcess
) -> None:
    """It gets the same wrong bits again, so its own checks do not see it; two others differ."""
    job = saving(THREE, tmp_path)
    job = replace(job, corruption=CorruptionSpec(CorruptionMode.DETECT, sample=1.0))
    async with LocalFleet(job, tmp_path / "fleet", forkserver=forkserver) as fleet:
        await fleet.add(THREE.agents())
        step = await Campaign(fleet).steady_step()
        await fleet.committed(step + 2 * EVERY)
        victim = fleet.plan().live[1]
        fleet.arm_kill_switch(victim, ALWAYS, "UPDATE")
        await fleet.until(lambda: victim in fleet.exits, f"the end of {victim}")
        assert fleet.faults.effects(victim)[Effect.MISCOMPUTED] > 0
        await fleet.add({"new-0": fleet.pods[victim].zone})
        await restored(fleet)
        assert victim not in fleet.plan().live
        trained = await suspend(fleet)
        (blamed,) = told(fleet, EventReason.WORKER_FAILED)
        assert blamed.agents == (victim,)
        assert blamed.facts[EventFact.CAUSE] == FailureCause.CORRUPTION
        (hello, *_) = (hello for hello in fleet.messages(Hello) if hello.agent == victim)
        assert avoided(fleet, blamed) == (hello.node,)
        assert FailureCause.CORRUPTION not in {said.reason for said in fleet.messages(Failure)}
    trained.assert_equal(await undisturbed(tmp_path, forkserver, THREE, trained.steps))
