"""A checkpoint folder that is away for a while costs time, not work."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import RedundancyMode, RestoreSpec
from bamboo_core.arbiter_state.durable import Restored, eligible
from bamboo_core.arbiter_state.events import Timing
from bamboo_core.protocol.messages import Listed, Progress
from bamboo_sim.fleet.local_fleet import ForkServerProcess, LocalFleet
from bamboo_sim.fleet.runs.jobs import tiny_gpt

TIMING = Timing(start_grace_s=30.0, join_grace_s=0.2, listing_s=2.0)

pytestmark = pytest.mark.timeout(300)


@asynccontextmanager
async def trained(tmp_path: Path, forkserver: ForkServerProcess) -> AsyncIterator[LocalFleet]:
    """Two agents without copies that have written checkpoints into the folder ``kept``."""
    job = tiny_gpt(
        tmp_path / "kept", stages=2, steps=1_000_000, every_steps=2, mode=RedundancyMode.NONE
    )
    async with LocalFleet(job, tmp_path / "fleet", forkserver=forkserver, timing=TIMING) as fleet:
        await fleet.add({"a-0": "zone-a", "a-1": "zone-b"})
        await fleet.committed(7, deadline_s=120.0)
        yield fleet


async def test_a_folder_that_comes_back_is_read(
    tmp_path: Path, forkserver: ForkServerProcess
) -> None:
    """Both agents die, and the folder is away while the new ones come."""
    folder, away = tmp_path / "kept", tmp_path / "away"
    async with trained(tmp_path, forkserver) as fleet:
        newest = max(m.step for m in fleet.operator.arbiter.durable.manifests)
        assert newest >= 4
        fleet.kill("a-0", "a-1")
        folder.rename(away)
        await fleet.add({"b-0": "zone-a", "b-1": "zone-b"})
        await fleet.until(
            lambda: fleet.status().unreachable != "" or committed_again(fleet) is not None,
            "word that the checkpoint cannot be read",
            deadline_s=120.0,
        )
        assert committed_again(fleet) is None
        assert "bamboo restore job --from-step" in fleet.status().unreachable
        assert fleet.operator.arbiter.durable.bad == ()
        newest = fleet.operator.arbiter.durable.manifest.step
        if folder.exists():  # the new agents have tried whether they can write
            folder.rename(tmp_path / "other")
        away.rename(folder)
        await fleet.until(lambda: committed_again(fleet) is not None, "a step", deadline_s=120.0)
        assert committed_again(fleet) == newest
        over = await fleet.suspended(deadline_s=90.0)
        assert over.outcome is Outcome.SUSPENDED
        assert fleet.status().unreachable == ""


async def test_a_user_goes_back_while_agents_wait_for_a_file(
    tmp_path: Path, forkserver: ForkServerProcess
) -> None:
    """The agents read for ever; the order gives them another file. When the folder comes back, the
    newer checkpoint in it is not used any more."""
    folder, away = tmp_path / "kept", tmp_path / "away"
    async with trained(tmp_path, forkserver) as fleet:
        fleet.kill("a-0", "a-1")
        folder.rename(away)
        await fleet.add({"b-0": "zone-a", "b-1": "zone-b"})
        await fleet.until(
            lambda: fleet.status().unreachable != "", "word of the file", deadline_s=120.0
        )
        before = fleet.operator.arbiter.durable
        *_, older, newest = (m.step for m in before.manifests)
        assert (before.attempt, before.manifest.step) == (1, newest)
        fleet.operator.change_goal(restore=RestoreSpec("one", older))
        await fleet.until(
            lambda: waits_for(fleet, attempt=2), "word of the other file", deadline_s=60.0
        )
        assert committed_again(fleet) is None
        if folder.exists():
            folder.rename(tmp_path / "other")
        away.rename(folder)
        await fleet.until(lambda: committed_again(fleet) is not None, "a step", deadline_s=120.0)
        assert committed_again(fleet) == older
        over = await fleet.suspended(deadline_s=90.0)
        assert over.outcome is Outcome.SUSPENDED
        facts = fleet.operator.arbiter.durable
        assert facts.restored == (Restored("one", older, 2),)
        assert facts.attempt == 2
        assert (0, newest) not in [(m.attempt, m.step) for m in eligible(facts)]
        assert fleet.divergences() == []


def waits_for(fleet: LocalFleet, *, attempt: int) -> bool:
    """Whether an agent has said that it cannot read a file for a plan of this attempt."""
    said = fleet.messages(Listed)
    return any(m.error and m.fence.attempt == attempt for m in said)


def committed_again(fleet: LocalFleet) -> int | None:
    """The first step that the second attempt has committed."""
    steps = [m.commit.step for m in fleet.messages(Progress) if m.fence.attempt > 0]
    return min(steps, default=None)
