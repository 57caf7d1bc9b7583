"""A link between two real agents passes one byte a second, and their signs of life are on time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bamboo_core.api.events import EventFact, EventReason, StallCause
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import JobSpec, RedundancyMode
from bamboo_core.arbiter_state.events import Timing
from bamboo_core.model.ids import AgentId
from bamboo_sim.fleet.injection.effects import Effect
from bamboo_sim.fleet.local_fleet import ForkServerProcess, LocalFleet
from bamboo_sim.fleet.runs.jobs import tiny_gpt
from bamboo_sim.fleet.runs.scenarios import TrainingResult

pytestmark = pytest.mark.timeout(240)

TIMING = Timing(start_grace_s=30.0, join_grace_s=0.2)
DECISION_S = 40.0


def job(folder: Path, *, pipelines: int, mode: RedundancyMode) -> JobSpec:
    return tiny_gpt(
        folder, steps=20, pipelines=pipelines, stages=2, mode=mode, microbatches=8, every_steps=0
    )


async def undisturbed(spec: JobSpec, folder: Path, server: ForkServerProcess) -> TrainingResult:
    async with LocalFleet(spec, folder, forkserver=server) as fleet:
        await fleet.add({f"agent-{n}": f"zone-{'ab'[n % 2]}" for n in range(4)})
        assert (await fleet.over()).outcome is Outcome.COMPLETE, fleet.record()
        return TrainingResult.of(fleet)


def neighbours(fleet: LocalFleet) -> tuple[AgentId, AgentId]:
    one, other = (agent or AgentId("") for agent in fleet.plan().pipelines[0])
    return one, other


def told(fleet: LocalFleet) -> list[str]:
    """Messages about links that are too slow. On a busy machine, there may be other stalls."""
    return [
        r.message
        for _, r in fleet.operator.records
        if r.reason is EventReason.STALLED and r.facts[EventFact.CAUSE] == StallCause.TRICKLE
    ]


async def test_the_job_goes_on_without_a_link_that_trickles(
    tmp_path: Path, forkserver: ForkServerProcess
) -> None:
    """N3: "phase Running" without a word, for as long as the link passed a byte a second."""
    spec = job(tmp_path, pipelines=2, mode=RedundancyMode.REPLICA)
    expected = await undisturbed(spec, tmp_path / "undisturbed", forkserver)
    async with LocalFleet(
        spec, tmp_path / "fleet", forkserver=forkserver, timing=TIMING, sees_ends=False
    ) as fleet:
        await fleet.add({f"agent-{n}": f"zone-{'ab'[n % 2]}" for n in range(4)})
        await fleet.committed(5)
        one, other = neighbours(fleet)
        at = time.monotonic()
        fleet.faults.trickle(one, other, 1.0)
        await fleet.until(lambda: bool(told(fleet)), "the stall", deadline_s=DECISION_S)
        left_s = DECISION_S - (time.monotonic() - at)
        await fleet.until(
            lambda: not {one, other} <= set(fleet.plan().live),
            "a plan without the link",
            deadline_s=left_s,
        )
        assert fleet.faults.effects(one, other)[Effect.TRICKLED] > 10
        over = await fleet.over(deadline_s=90.0)
        assert over.outcome is Outcome.COMPLETE, fleet.record()
        assert not fleet.recorded(EventReason.RESTORING), fleet.record()
        assert len(told(fleet)) == 1, fleet.record()
        for word in (one, other, "B/s", "the link counts as standing still"):
            assert word in told(fleet)[0]
        assert {agent for agent, code in fleet.exits.items() if code} <= {one, other}
        assert fleet.divergences() == []
        TrainingResult.of(fleet).assert_equal(expected)


async def test_a_link_that_no_plan_can_do_without_is_told_and_goes_on(
    tmp_path: Path, forkserver: ForkServerProcess
) -> None:
    """Each agent holds layers that no other has: nobody is given up."""
    spec = job(tmp_path, pipelines=1, mode=RedundancyMode.NONE)
    async with LocalFleet(
        spec, tmp_path / "fleet", forkserver=forkserver, timing=TIMING, sees_ends=False
    ) as fleet:
        await fleet.add({"agent-0": "zone-a", "agent-1": "zone-b"})
        await fleet.committed(5)
        fence = fleet.plan().fence
        fleet.faults.trickle("agent-0", "agent-1", 1.0)
        await fleet.until(lambda: bool(told(fleet)), "the stall", deadline_s=DECISION_S)
        status = fleet.status()
        assert status is not None
        assert status.stall.endswith("no plan can do without it")
        fleet.faults.heal()
        over = await fleet.over(deadline_s=90.0)
        assert over.outcome is Outcome.COMPLETE, fleet.record()
        assert fleet.plan().fence == fence
        assert not any(fleet.exits.values())
