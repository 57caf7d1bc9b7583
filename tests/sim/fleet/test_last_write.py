"""Real agents whose last checkpoint cannot be written for a while: nothing is thrown away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import JobSpec, RedundancyMode
from bamboo_core.arbiter_state.events import Timing
from bamboo_core.protocol.exit_codes import ExitCode
from bamboo_sim.fleet.local_fleet import ForkServerProcess, LocalFleet
from bamboo_sim.fleet.runs.jobs import tiny_gpt
from bamboo_sim.fleet.runs.scenarios import TrainingResult

pytestmark = pytest.mark.timeout(180)

AGENTS = {f"agent-{n}": f"zone-{'ab'[n % 2]}" for n in range(4)}
TIMING = Timing(start_grace_s=30.0, join_grace_s=0.2)
STEPS = 8


def job(folder: Path, *, every_steps: int = 0, steps: int = STEPS) -> JobSpec:
    return tiny_gpt(
        folder,
        pipelines=2,
        stages=2,
        steps=steps,
        microbatches=8,
        every_steps=every_steps,
        mode=RedundancyMode.NONE,
    )


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, forkserver: ForkServerProcess
) -> TrainingResult:
    async def run(folder: Path) -> TrainingResult:
        async with LocalFleet(
            job(folder), folder / "fleet", forkserver=forkserver, timing=TIMING
        ) as fleet:
            await fleet.add(AGENTS)
            assert (await fleet.over()).outcome is Outcome.COMPLETE, fleet.record()
            return TrainingResult.of(fleet)

    return asyncio.run(run(tmp_path_factory.mktemp("undisturbed")))


async def waits(fleet: LocalFleet, why: str = "Input/output error") -> None:
    """Until only the holders are left, and a try of theirs has failed."""
    await fleet.until(
        lambda: len(fleet.exits) == 2 and fleet.recorded(EventReason.AGENTS_RELEASED),
        "two agents released",
    )
    assert set(fleet.exits.values()) == {ExitCode.RELEASED}
    seen = fleet.status().fence
    await fleet.until(lambda: fleet.status().fence.epoch >= seen.epoch + 2, "two more tries")
    unwritten = fleet.status().unwritten
    assert unwritten is not None, fleet.record()
    assert why in unwritten.why


async def test_a_finished_job_on_a_bad_disk_waits_and_is_complete_with_equal_bits(
    tmp_path: Path, forkserver: ForkServerProcess, undisturbed: TrainingResult
) -> None:
    async with LocalFleet(
        job(tmp_path), tmp_path / "fleet", forkserver=forkserver, timing=TIMING
    ) as fleet:
        await fleet.add(AGENTS)
        await fleet.committed(2)
        fleet.faults.fail_disk()
        await waits(fleet)
        assert fleet.status().outcome is None
        fleet.faults.heal()
        over = await fleet.over()
        assert over.outcome is Outcome.COMPLETE, fleet.record()
        assert not fleet.recorded(EventReason.RESTORING), fleet.record()
        assert not fleet.recorded(EventReason.AGENT_LOST), fleet.record()
        assert set(fleet.exits.values()) == {ExitCode.RELEASED}
        assert fleet.divergences() == []
        TrainingResult.of(fleet).assert_equal(undisturbed)


def left_half(folder: Path) -> Path:
    """As by an agent that was killed while it wrote a file of the last checkpoint."""
    (checkpoint,) = folder.rglob(f"step-{STEPS:08d}")
    left = checkpoint / "layer-0000.safetensors.0123456789abcdef.tmp"
    left.write_bytes(b"half")
    return left


def half_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.tmp"))


@pytest.mark.parametrize("room", [0, 1, 500])
async def test_a_finished_job_on_a_full_disk_waits_is_given_space_and_is_complete(
    room: int, tmp_path: Path, forkserver: ForkServerProcess, undisturbed: TrainingResult
) -> None:
    """With some room, each write stops half-way. What an agent leaves that is killed in its write
    is never read."""
    async with LocalFleet(
        job(tmp_path), tmp_path / "fleet", forkserver=forkserver, timing=TIMING
    ) as fleet:
        await fleet.add(AGENTS)
        await fleet.committed(2)
        fleet.faults.fill_disk(room)
        await waits(fleet, "No space left on device")
        left = left_half(tmp_path)
        fleet.faults.heal()
        assert (await fleet.over()).outcome is Outcome.COMPLETE, fleet.record()
        assert not fleet.recorded(EventReason.RESTORING), fleet.record()
        assert fleet.divergences() == []
        assert half_files(left.parent) == [left]
        TrainingResult.of(fleet).assert_equal(undisturbed)


@pytest.mark.rotating(6)
async def test_a_suspension_on_a_bad_disk_waits_and_repeats_no_step(
    tmp_path: Path, forkserver: ForkServerProcess, undisturbed: TrainingResult
) -> None:
    async with LocalFleet(
        job(tmp_path), tmp_path / "fleet", forkserver=forkserver, timing=TIMING
    ) as fleet:
        await fleet.add(AGENTS)
        await fleet.committed(2)
        fleet.faults.fail_disk()
        fleet.operator.change_goal(suspended=True)
        await waits(fleet)
        fleet.faults.heal()
        over = await fleet.suspended()
        assert over.outcome is Outcome.SUSPENDED, fleet.record()
        fleet.operator.over = None
        fleet.operator.change_goal(suspended=False)
        await fleet.add({name.replace("agent", "later"): zone for name, zone in AGENTS.items()})
        over = await fleet.over()
        assert over.outcome is Outcome.COMPLETE, fleet.record()
        (restore,) = [r for _, r in fleet.operator.records if r.reason is EventReason.RESTORING]
        assert ": 0 committed steps repeated" in restore.message
        assert fleet.divergences() == []
        TrainingResult.of(fleet).assert_equal(undisturbed)


@pytest.mark.rotating(6)
async def test_another_leader_goes_on_with_the_wait(
    tmp_path: Path, forkserver: ForkServerProcess, undisturbed: TrainingResult
) -> None:
    async with LocalFleet(
        job(tmp_path), tmp_path / "fleet", forkserver=forkserver, timing=TIMING
    ) as fleet:
        await fleet.add(AGENTS)
        await fleet.committed(2)
        fleet.faults.fail_disk()
        await waits(fleet)
        await fleet.operator.replace()
        await fleet.until(lambda: fleet.status().unwritten is not None, "the wait of the new one")
        assert len(fleet.exits) == 2
        fleet.faults.heal()
        assert (await fleet.over()).outcome is Outcome.COMPLETE, fleet.record()
        assert not fleet.recorded(EventReason.RESTORING), fleet.record()
        TrainingResult.of(fleet).assert_equal(undisturbed)
