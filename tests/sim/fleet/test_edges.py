"""Real agents while connections break, storage is slow and processes stand still.

Nobody dies by these faults, so nobody may be given up, and no bit may change.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import combinations
from pathlib import Path

import pytest

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import JobSpec, RedundancyMode
from bamboo_core.arbiter_state.events import Timing
from bamboo_core.model.ids import AgentId
from bamboo_sim.fleet.injection.effects import Effect
from bamboo_sim.fleet.local_fleet import ForkServerProcess, LocalFleet
from bamboo_sim.fleet.local_operator import Writes
from bamboo_sim.fleet.runs.jobs import tiny_gpt
from bamboo_sim.fleet.runs.scenarios import TrainingResult

pytestmark = [pytest.mark.timeout(180), pytest.mark.rotating(6)]

AGENTS = {f"agent-{n}": f"zone-{'abc'[n % 3]}" for n in range(4)}
TIMING = Timing(start_grace_s=30.0, join_grace_s=0.2, instruction_floor_s=1.5)
STEPS = 30


def job(folder: Path, **changed: int) -> JobSpec:
    """Steps of some 50 ms, so that faults hit in the middle of the job."""
    options = {"steps": STEPS, "every_steps": 0, **changed}
    return tiny_gpt(
        folder, pipelines=2, stages=2, microbatches=8, mode=RedundancyMode.REPLICA, **options
    )


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, forkserver: ForkServerProcess
) -> TrainingResult:
    return asyncio.run(_undisturbed(tmp_path_factory.mktemp("undisturbed"), forkserver))


async def _undisturbed(folder: Path, forkserver: ForkServerProcess) -> TrainingResult:
    async with LocalFleet(job(folder), folder / "fleet", forkserver=forkserver) as fleet:
        await fleet.add(AGENTS)
        assert (await fleet.over()).outcome is Outcome.COMPLETE, fleet.record()
        return TrainingResult.of(fleet)


@pytest.fixture
async def fleet(tmp_path: Path, forkserver: ForkServerProcess) -> AsyncIterator[LocalFleet]:
    """Two pipelines of two stages, in the middle of a job with checkpoints."""
    spec = job(tmp_path, every_steps=4)
    async with LocalFleet(
        spec, tmp_path / "fleet", forkserver=forkserver, timing=TIMING, sees_ends=False
    ) as running:
        await running.add(AGENTS)
        await running.committed(5)
        yield running


async def assert_equal(
    fleet: LocalFleet, undisturbed: TrainingResult, *, gone: tuple[str, ...] = ()
) -> None:
    """The job completes with the same bits, without a restore, and only ``gone`` have failed."""
    over = await fleet.over(deadline_s=90.0)
    assert over.outcome is Outcome.COMPLETE, fleet.record()
    assert not fleet.recorded(EventReason.RESTORING), fleet.record()
    failed = {agent for agent, code in fleet.exits.items() if code}
    assert failed <= set(gone), fleet.record()
    assert fleet.divergences() == []
    TrainingResult.of(fleet).assert_equal(undisturbed)


async def test_a_reset_of_all_connections_stops_nothing_for_ever(
    fleet: LocalFleet, undisturbed: TrainingResult
) -> None:
    for _ in range(3):
        fleet.faults.reset()
        await fleet.committed(min(fleet.committed_step + 6, STEPS - 1))
    await assert_equal(fleet, undisturbed)


async def test_a_link_that_ends_in_mid_frame_is_made_again(
    fleet: LocalFleet, undisturbed: TrainingResult
) -> None:
    one, other = (agent or AgentId("") for agent in fleet.plan().pipelines[0])
    at = time.monotonic()
    fleet.faults.truncate(one, other)
    await fleet.until(lambda: fleet.recorded(EventReason.STOPPED, after=at), "a stop")
    await assert_equal(fleet, undisturbed)
    stops = [r.message for _, r in fleet.operator.records if r.reason is EventReason.STOPPED]
    assert "connections are broken: " + "-".join(sorted((one, other))) in stops[-1]


async def test_a_network_that_is_late_or_gone_for_a_moment_costs_nobody(
    fleet: LocalFleet, undisturbed: TrainingResult
) -> None:
    """The cut parts all agents from each other and from the operator."""
    fleet.faults.delay("agent-1", 0.3)
    await fleet.committed(fleet.committed_step + 3)
    fleet.faults.heal()
    agents = sorted(AGENTS)
    fleet.operator.hold(*agents)
    for one, other in combinations(agents, 2):
        fleet.faults.cut(one, other)
    await asyncio.sleep(0.8)  # the fault itself
    fleet.faults.heal()
    fleet.operator.let_go()
    await assert_equal(fleet, undisturbed)


async def test_a_new_leader_waits_for_a_slow_list_of_checkpoints(
    fleet: LocalFleet, undisturbed: TrainingResult
) -> None:
    await fleet.until(lambda: fleet.status().checkpoint is not None, "a checkpoint")
    at = time.monotonic()
    fleet.faults.slow_disk(0.25)
    await fleet.until(lambda: fleet.faults.effects()[Effect.SLOW_DISK] > 0, "a slow disk")
    await fleet.operator.replace()
    await fleet.until(lambda: fleet.recorded(EventReason.RESUMED, after=at), "a new plan's commit")
    fleet.faults.heal()
    await assert_equal(fleet, undisturbed)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_slow_durable_write_costs_no_healthy_agent(
    fleet: LocalFleet, undisturbed: TrainingResult, fails: bool
) -> None:
    fleet.operator.writes = Writes(fail=True) if fails else Writes(delay_s=3.0)
    at = fleet.kill("agent-0")
    await fleet.until(lambda: fleet.recorded(EventReason.STOPPED, after=at), "a stop")
    if fails:
        asyncio.get_running_loop().call_later(3.0, lambda: write_well(fleet))
    await fleet.until(
        lambda: fleet.recorded(EventReason.RESUMED, after=at), "a commit without agent-0"
    )
    write_well(fleet)
    await assert_equal(fleet, undisturbed, gone=("agent-0",))


def write_well(fleet: LocalFleet) -> None:
    fleet.operator.writes = Writes()


async def test_an_operator_that_stands_still_in_a_round_gives_nobody_up(
    fleet: LocalFleet, undisturbed: TrainingResult
) -> None:
    at = fleet.kill("agent-0")
    await fleet.until(lambda: fleet.recorded(EventReason.STOPPED, after=at), "a stop")
    fleet.operator.freeze()
    await asyncio.sleep(3.0)  # the fault itself
    fleet.operator.thaw()
    await assert_equal(fleet, undisturbed, gone=("agent-0",))


async def test_a_supervisor_that_stands_still_accuses_nobody(
    fleet: LocalFleet, undisturbed: TrainingResult
) -> None:
    fleet.freeze("agent-1", "supervisor")
    await asyncio.sleep(2.5)  # the fault itself
    fleet.thaw("agent-1")
    await assert_equal(fleet, undisturbed, gone=("agent-1",))


async def test_a_frozen_worker_is_replaced(fleet: LocalFleet, undisturbed: TrainingResult) -> None:
    at = fleet.freeze("agent-1", "worker")
    await fleet.until(lambda: fleet.recorded(EventReason.STOPPED, after=at), "a stop")
    await fleet.until(lambda: fleet.operator.over is not None, "the end of the job")
    fleet.remove("agent-1")  # the operator may have ended it already
    await assert_equal(fleet, undisturbed, gone=("agent-1",))


async def test_an_instruction_that_never_ends_is_found_and_its_agent_replaced(
    fleet: LocalFleet, undisturbed: TrainingResult
) -> None:
    fleet.hang("agent-2")
    await fleet.until(lambda: fleet.recorded(EventReason.STALLED), "the stall")
    await assert_equal(fleet, undisturbed, gone=("agent-2",))
    (stall,) = [r for _, r in fleet.operator.records if r.reason is EventReason.STALLED][:1]
    assert "agent-2" in stall.message


async def test_a_link_that_is_cut_in_one_direction_costs_one_agent(
    fleet: LocalFleet, undisturbed: TrainingResult
) -> None:
    plan = fleet.plan()
    one, other = (agent or AgentId("") for agent in plan.pipelines[0])
    fleet.faults.cut(one, other, one_way=True)
    await assert_equal(fleet, undisturbed, gone=(one, other))
    assert sum(fleet.exits[agent] != 0 for agent in (one, other)) <= 1
