"""A whole job without Kubernetes: the real arbiter, real supervisors, real workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from tests.rotation import in_turn

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.model.ids import AgentId
from bamboo_core.model.program import Op
from bamboo_sim.fleet.injection.effects import Effect
from bamboo_sim.fleet.local_fleet import ForkServerProcess, LocalFleet
from bamboo_sim.fleet.runs.jobs import tiny_gpt

pytestmark = pytest.mark.timeout(300)
IN_TURN = pytest.mark.rotating(9)


def names(count: int) -> dict[str, str]:
    return {f"agent-{n}": f"zone-{'abc'[n % 3]}" for n in range(count)}


@dataclass(frozen=True)
class Result:
    """The result that each run must reproduce bit for bit."""

    history: str
    weights: dict[str, torch.Tensor]


async def result(fleet: LocalFleet) -> Result:
    """Wait for the end, check what must hold of every run."""
    over = await fleet.over()
    assert over.outcome is Outcome.COMPLETE, fleet.record()
    assert fleet.divergences() == []
    return Result(repr(fleet.history()), fleet.weights())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, forkserver: ForkServerProcess) -> Result:
    return asyncio.run(_undisturbed(tmp_path_factory.mktemp("undisturbed"), forkserver))


async def _undisturbed(folder: Path, forkserver: ForkServerProcess, steps: int = 8) -> Result:
    job = tiny_gpt(folder, pipelines=2, stages=2, steps=steps)
    async with LocalFleet(job, folder / "fleet", forkserver=forkserver) as fleet:
        await fleet.add(names(4))
        found = await result(fleet)
        assert set(fleet.exits.values()) == {0}
        return found


def assert_equal(found: Result, expected: Result) -> None:
    assert found.history == expected.history
    assert found.weights.keys() == expected.weights.keys()
    for name, tensor in expected.weights.items():
        assert torch.equal(found.weights[name], tensor), name


@pytest.fixture
async def fleet(tmp_path: Path, forkserver: ForkServerProcess) -> AsyncIterator[LocalFleet]:
    """Two pipelines of two stages, running."""
    job = tiny_gpt(tmp_path, pipelines=2, stages=2)
    async with LocalFleet(job, tmp_path / "fleet", forkserver=forkserver) as running:
        await running.add(names(4))
        await running.committed(1)
        yield running


def assert_nothing_restored(fleet: LocalFleet) -> None:
    assert all(record.reason is not EventReason.RESTORING for _, record in fleet.operator.records)


@pytest.mark.parametrize("victim", [1, *in_turn(5, [0, 2, 3])])
async def test_a_killed_pod_changes_nothing(
    fleet: LocalFleet, undisturbed: Result, victim: int
) -> None:
    fleet.kill(f"agent-{victim}")
    assert_equal(await result(fleet), undisturbed)
    assert_nothing_restored(fleet)


async def test_a_pod_killed_in_the_middle_of_a_step_costs_tasks(
    tmp_path: Path, forkserver: ForkServerProcess
) -> None:
    job = tiny_gpt(tmp_path, pipelines=2, stages=2, steps=1_000_000)
    async with LocalFleet(job, tmp_path / "fleet", forkserver=forkserver) as fleet:
        await fleet.add(names(4))
        await fleet.committed(2)
        victim = fleet.plan().pipelines[0][1]
        assert victim is not None
        assert fleet.redone_tasks() == 0
        arbiter = fleet.operator.arbiter
        assert arbiter is not None
        assert arbiter.state.in_force is not None
        steady = arbiter.state.in_force.continuations[victim].steady
        last = [x for x in steady if x.op in (Op.B, Op.I, Op.W)][-1]
        text = str(last._replace(step=fleet.committed_step + 20))
        fleet.arm_kill_switch(victim, "before", text)
        await fleet.until(lambda: victim in fleet.exits, f"its death before {text}")
        assert fleet.faults.effects(victim)[Effect.DIED] == 1
        await fleet.committed(fleet.committed_step + 2)
        assert fleet.redone_tasks() > 0
        await fleet.suspended(deadline_s=90.0)


@IN_TURN
async def test_a_killed_worker_changes_nothing(fleet: LocalFleet, undisturbed: Result) -> None:
    fleet.kill_worker("agent-2")
    assert_equal(await result(fleet), undisturbed)
    assert_nothing_restored(fleet)
    assert fleet.exits[AgentId("agent-2")] == 1


@IN_TURN
async def test_two_pods_of_different_stages_at_once(fleet: LocalFleet, undisturbed: Result) -> None:
    plan = fleet.plan()
    fleet.kill(plan.pipelines[0][0] or "", plan.pipelines[1][1] or "")
    assert_equal(await result(fleet), undisturbed)
    assert_nothing_restored(fleet)


@IN_TURN
async def test_one_pod_after_the_other(fleet: LocalFleet, undisturbed: Result) -> None:
    plan = fleet.plan()
    fleet.kill(plan.pipelines[0][0] or "")
    await fleet.committed(4)
    fleet.kill(plan.pipelines[1][1] or "")
    assert_equal(await result(fleet), undisturbed)
    assert_nothing_restored(fleet)


async def test_all_copies_of_a_stage_mean_a_restore(fleet: LocalFleet, undisturbed: Result) -> None:
    plan = fleet.plan()
    fleet.kill(*(pipeline[0] or "" for pipeline in plan.pipelines))
    await fleet.add({"new-0": "zone-a", "new-1": "zone-b"})
    assert_equal(await result(fleet), undisturbed)
    assert any(record.reason is EventReason.RESTORING for _, record in fleet.operator.records)


async def test_a_frozen_pod_is_found_by_its_silence(fleet: LocalFleet, undisturbed: Result) -> None:
    frozen_at = time.monotonic()
    fleet.freeze("agent-1")
    await fleet.until(lambda: fleet.recorded(EventReason.STOPPED, after=frozen_at), "a stop")
    assert time.monotonic() - frozen_at < 4.0
    await fleet.until(lambda: fleet.operator.over is not None, "the end of the job")
    fleet.thaw("agent-1")
    assert_equal(await result(fleet), undisturbed)
    assert_nothing_restored(fleet)


@IN_TURN
async def test_a_noticed_pod_changes_nothing(fleet: LocalFleet, undisturbed: Result) -> None:
    """With so much notice it may as well help until the job ends."""
    fleet.terminate("agent-3")
    assert_equal(await result(fleet), undisturbed)
    assert_nothing_restored(fleet)
    assert fleet.exits[AgentId("agent-3")] in (0, 143)
    assert fleet.redone_tasks() == 0


async def test_a_noticed_pod_hands_over_to_a_standby(
    tmp_path: Path, forkserver: ForkServerProcess
) -> None:
    job = tiny_gpt(tmp_path, pipelines=2, stages=2, steps=1_000_000)
    async with LocalFleet(job, tmp_path / "fleet", forkserver=forkserver) as fleet:
        await fleet.add(names(5))
        await fleet.until(lambda: len(fleet.status().ready) == 5, "five agents", deadline_s=90.0)
        await fleet.planned(lambda plan: len(plan.live) == 4, "a full grid", deadline_s=90.0)
        # An agent without a directive holds nothing, and leaves at once.
        await fleet.committed(1)
        leaver = fleet.plan().live[0]
        fleet.terminate(leaver)
        await fleet.until(lambda: leaver in fleet.exits, "its exit")
        assert fleet.exits[leaver] == 143
        assert leaver not in fleet.plan().live
        await fleet.suspended(deadline_s=90.0)
        assert_nothing_restored(fleet)
        assert fleet.redone_tasks() == 0


@IN_TURN
async def test_the_operator_dies_and_comes_back(fleet: LocalFleet, undisturbed: Result) -> None:
    await fleet.operator.stop()
    await fleet.operator.start()
    assert_equal(await result(fleet), undisturbed)
    assert_nothing_restored(fleet)


async def test_a_pod_dies_while_the_operator_is_away(
    fleet: LocalFleet, undisturbed: Result
) -> None:
    await fleet.operator.stop()
    fleet.kill("agent-0")
    await fleet.operator.start()
    assert_equal(await result(fleet), undisturbed)
    assert_nothing_restored(fleet)


@IN_TURN
async def test_a_newcomer_fills_the_hole(tmp_path: Path, forkserver: ForkServerProcess) -> None:
    """The job goes on until the newcomer has set up, however long that takes."""
    job = tiny_gpt(tmp_path / "a", pipelines=2, stages=2, steps=1_000_000)
    async with LocalFleet(job, tmp_path / "a/fleet", forkserver=forkserver) as fleet:
        await fleet.add(names(4))
        await fleet.committed(1)
        fleet.kill("agent-0")
        await fleet.add({"new-0": "zone-a"})
        await fleet.planned(lambda plan: "new-0" in plan.members, "the newcomer's entry")
        await fleet.committed(fleet.status().progress.committed + 2)
        await fleet.suspended(deadline_s=90.0)
        assert_nothing_restored(fleet)
        weights, steps = fleet.weights(), fleet.steps
    expected = await _undisturbed(tmp_path / "b", forkserver, steps)
    assert_equal(Result("", weights), replace(expected, history=""))
