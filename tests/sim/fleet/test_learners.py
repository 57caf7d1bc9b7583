"""A new agent catches up while the others train: real processes and tensors, the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import RedundancyMode
from bamboo_core.arbiter_state.events import Timing
from bamboo_core.model.ids import AgentId
from bamboo_sim.fleet.local_fleet import ForkServerProcess, LocalFleet
from bamboo_sim.fleet.runs.jobs import tiny_gpt

pytestmark = pytest.mark.timeout(300)

TIMING = Timing(start_grace_s=30.0, join_grace_s=0.2, catch_up_above_bytes=-1.0)
GRID = {f"agent-{n}": f"zone-{'abc'[n % 3]}" for n in range(4)}


async def undisturbed(
    folder: Path, forkserver: ForkServerProcess, steps: int
) -> tuple[str, dict[str, torch.Tensor]]:
    job = tiny_gpt(folder, pipelines=2, stages=2, steps=steps)
    async with LocalFleet(job, folder / "fleet", forkserver=forkserver) as fleet:
        await fleet.add(GRID)
        assert (await fleet.over(deadline_s=120.0)).outcome is Outcome.COMPLETE
        return repr(fleet.history()), fleet.weights()


async def test_a_learner_takes_a_seat_and_no_bit_changes(
    tmp_path: Path, forkserver: ForkServerProcess
) -> None:
    job = tiny_gpt(
        tmp_path / "a", pipelines=2, stages=2, steps=1_000_000, mode=RedundancyMode.REPLICA
    )
    async with LocalFleet(job, tmp_path / "a/fleet", forkserver=forkserver, timing=TIMING) as fleet:
        await fleet.add(GRID)
        await fleet.committed(1, deadline_s=90.0)
        await fleet.planned(lambda plan: len(plan.live) == 4, "a full grid", deadline_s=90.0)
        fleet.kill("agent-0")
        await fleet.add({"new-0": "zone-a"})
        await fleet.planned(lambda plan: AgentId("new-0") in plan.live, "its seat")
        why = f"epoch {fleet.plan().fence.epoch}: copies are complete on new-0"
        assert any(r.message == why for _, r in fleet.operator.records), fleet.record()
        entered = fleet.status().progress.committed
        await fleet.committed(entered + 2)
        fleet.kill("agent-1", "agent-3")  # what is left needs the newcomer's copies
        await fleet.committed(entered + 6)
        assert (await fleet.suspended(deadline_s=120.0)).outcome is Outcome.SUSPENDED
        assert fleet.divergences() == []
        assert all(r.reason is not EventReason.RESTORING for _, r in fleet.operator.records)
        history, weights, steps = repr(fleet.history()), fleet.weights(), fleet.steps
    expected_history, expected = await undisturbed(tmp_path / "b", forkserver, steps)
    assert weights.keys() == expected.keys()
    assert not [name for name in expected if not torch.equal(weights[name], expected[name])]
    assert _without_validation(history) == _without_validation(expected_history)


def _without_validation(history: str) -> str:
    """A suspended job does not validate at its end."""
    return history.replace("validation_loss=None", "")


async def test_the_death_of_a_learner_stops_nothing(
    tmp_path: Path, forkserver: ForkServerProcess
) -> None:
    job = tiny_gpt(tmp_path, pipelines=2, stages=2, steps=1_000_000)
    async with LocalFleet(job, tmp_path / "fleet", forkserver=forkserver, timing=TIMING) as fleet:
        await fleet.add(GRID)
        await fleet.committed(1, deadline_s=90.0)
        await fleet.planned(lambda plan: len(plan.live) == 4, "a full grid", deadline_s=90.0)
        fleet.kill("agent-0")
        await fleet.add({"new-0": "zone-a"})
        await fleet.planned(
            lambda plan: AgentId("new-0") in plan.learners, "the plan with a learner"
        )
        fleet.kill("new-0")
        await fleet.until(lambda: AgentId("new-0") in fleet.exits, "its exit")
        reached = fleet.status().progress.committed
        await fleet.committed(reached + 3)
        assert (await fleet.suspended(deadline_s=120.0)).outcome is Outcome.SUSPENDED
        assert all(r.reason is not EventReason.RESTORING for _, r in fleet.operator.records)
