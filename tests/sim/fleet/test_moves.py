"""An agent moves to a stage that has lost all its agents: real processes and tensors, the same
bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import RedundancyMode
from bamboo_core.arbiter_state.events import Timing
from bamboo_core.planning import relocation
from bamboo_sim.fleet.local_fleet import ForkServerProcess, LocalFleet
from bamboo_sim.fleet.runs.jobs import tiny_gpt

pytestmark = pytest.mark.timeout(400)

TIMING = Timing(start_grace_s=30.0, join_grace_s=0.2, catch_up_above_bytes=-1.0)
GRID = {f"agent-{n}": f"zone-{n}" for n in range(8)}
EMPTIED = 1  # the stage that loses its agents


async def test_a_move_changes_no_bit(
    tmp_path: Path, forkserver: ForkServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the costs that a busy machine measures, this move makes a step 0.9 to 1.1 times as long.
    So the planner is told to make it where it does not pay, too: that it advises only moves that
    pay is tested with fixed costs, in ``tests/core/planning``."""
    monkeypatch.setattr(relocation, "_ABOUT", 10.0)
    job = tiny_gpt(
        tmp_path / "a", pipelines=2, stages=4, steps=1_000_000, mode=RedundancyMode.REPLICA
    )
    async with LocalFleet(job, tmp_path / "a/fleet", forkserver=forkserver, timing=TIMING) as fleet:
        await fleet.add(GRID)
        await fleet.committed(1, deadline_s=120.0)
        await fleet.planned(lambda plan: len(plan.live) == 8, "a full grid", deadline_s=90.0)
        fleet.kill(*(a for p in fleet.plan().pipelines if (a := p[EMPTIED]) is not None))
        await fleet.planned(lambda plan: plan.move is not None, "a move", deadline_s=120.0)
        move = fleet.plan().move
        assert move is not None
        assert move.to.stage == EMPTIED
        await fleet.planned(lambda plan: plan.seats.get(move.agent) == move.to, "its seat")
        why = f"copies are complete on {move.agent}"
        assert any(r.message.endswith(why) for _, r in fleet.operator.records), fleet.record()
        await fleet.committed(fleet.status().progress.committed + 3)
        assert (await fleet.suspended(deadline_s=120.0)).outcome is Outcome.SUSPENDED
        assert fleet.divergences() == []
        assert all(r.reason is not EventReason.RESTORING for _, r in fleet.operator.records)
        weights, steps = fleet.weights(), fleet.steps
    alone = tiny_gpt(tmp_path / "b", pipelines=2, stages=4, steps=steps)
    async with LocalFleet(alone, tmp_path / "b/fleet", forkserver=forkserver) as fleet:
        await fleet.add(GRID)
        assert (await fleet.over(deadline_s=150.0)).outcome is Outcome.COMPLETE
        expected = fleet.weights()
    assert weights.keys() == expected.keys()
    assert not [name for name in expected if not torch.equal(weights[name], expected[name])]
