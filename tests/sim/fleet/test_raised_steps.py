"""A complete job that goes on to more steps has the bits of one that asked for them at once.

Real agents under the real arbiter. Those of the second run are new, on another grid, and one of
them is killed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bamboo_core.api.events import EventFact, EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import FactorySpec, JobSpec
from bamboo_sim.fleet.local_fleet import ForkServerProcess, LocalFleet
from bamboo_sim.fleet.runs.jobs import tiny_gpt

pytestmark = pytest.mark.timeout(300)
FIRST, LAST = 6, 10
SCHEDULE = FactorySpec("bamboo_agent.schedules:cosine", {"total_steps": 12, "warmup_steps": 2})


def job(folder: Path, steps: int, *, pipelines: int) -> JobSpec:
    """With dropout, clipping, AdamW, a schedule, and validation at steps that end a run."""
    made = tiny_gpt(folder, pipelines=pipelines, stages=2, steps=steps)
    optimizer = replace(made.training.optimizer, schedule=SCHEDULE)
    return replace(made, training=replace(made.training, optimizer=optimizer, validate_every=3))


async def complete(fleet: LocalFleet) -> None:
    over = await fleet.over(deadline_s=120.0)
    assert over.outcome is Outcome.COMPLETE, fleet.record()
    assert fleet.divergences() == []


async def test_a_raised_job_ends_with_the_bits_of_one_that_asked_at_once(
    tmp_path: Path, forkserver: ForkServerProcess
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    wanted = job(whole, LAST, pipelines=1)
    async with LocalFleet(wanted, whole / "fleet", forkserver=forkserver) as fleet:
        await fleet.add({"a-0": "zone-a", "a-1": "zone-b"})
        await complete(fleet)
        expected, commits = fleet.weights(), fleet.operator.commits
    begun = job(parts, FIRST, pipelines=1)
    async with LocalFleet(begun, parts / "first", forkserver=forkserver) as fleet:
        await fleet.add({"a-0": "zone-a", "a-1": "zone-b"})
        await complete(fleet)
        facts = fleet.operator.facts
        before = fleet.operator.commits
    raised = LocalFleet(job(parts, LAST, pipelines=2), parts / "second", forkserver=forkserver)
    raised.operator.facts = facts
    async with raised as fleet:
        await fleet.add({f"b-{n}": f"zone-{'ab'[n % 2]}" for n in range(4)})
        await fleet.committed(FIRST)
        fleet.kill("b-3")
        await complete(fleet)
        after, found = fleet.operator.commits, fleet.weights()
        told = [r for _, r in fleet.operator.records if r.reason is EventReason.RESTORING]
    assert [r.facts[EventFact.REPEATED_STEPS] for r in told] == [0]
    assert min(after) == FIRST
    for step in range(FIRST):
        assert repr(before[step]) == repr(commits[step])
    for step in range(FIRST, LAST):
        assert repr(after[step]) == repr(commits[step])
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
