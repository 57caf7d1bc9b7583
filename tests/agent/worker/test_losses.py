"""Agents die in the middle of a step: what is missing is computed anew, with the same bits.

Real tensors under the planner's real recoveries; the explorer tries the kill points by the
thousand, on symbols.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.rotation import in_turn

from bamboo_agent.device.activation_offload import HostMemory
from bamboo_agent.worker import event_log
from bamboo_core.api.spec import RedundancyMode, RedundancySpec
from bamboo_core.model.ids import Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol.messages import LayerCost, Progress
from bamboo_core.scheduling.sharing.orders import sums_at_once
from bamboo_sim.fleet.logs.replay import divergence
from bamboo_sim.workers import plans, reference
from bamboo_sim.workers.in_process_fleet import InProcessFleet
from bamboo_sim.workers.jobs import tiny_gpt

BATCH = BatchShape(reference.G, 2, 4)
COST = LayerCost(1.0, 2.0, 1, 1, activation_bytes=100_000)  # more than a layer of the GPT keeps
FORWARD = 2 * COST.activation_bytes  # of a stage of two layers
# Bytes of a stage: weight, two moments and reduced gradient of two layers, and the sums at once.
RESIDENT = 2 * (4 + sums_at_once(BATCH, 1))
TAKEN = RESIDENT * 2 + 4 * FORWARD + 2 * reference.G  # of three stages, after a loss in Eager
SHORT = int((TAKEN + reference.G) / 0.8) + 1  # a device with room for outputs, and no forward ahead
FEW = int((TAKEN + 3 * FORWARD + 3) / 0.8) + 1  # with room for three forwards ahead
expected = functools.lru_cache(reference.train)


def plan(fleet, fence, *, grid, redundancy, before=None, costs=(), memory_bytes=0):
    job = plans.grid_of(fleet.job, pipelines=grid[0], stages=grid[1])
    decision = plans.decide(
        replace(job, redundancy=replace(job.redundancy, mode=redundancy)),
        fence=fence,
        layers=fleet.layers,
        reports=fleet.stop(fence),
        batch=BATCH,
        validation_samples=fleet.validation_samples,
        before=before,
        costs=costs,
        memory_bytes=memory_bytes,
    )
    fleet.install(decision)
    return decision.plan


def lose(grid, redundancy, *, victims, turns, job=None, costs=(), memory_bytes=0, streams=None):
    """Kill one victim after so many turns of the whole fleet, then the next. streams: of devices
    that complete instructions later, by agent."""
    late = {} if streams is None else {"stream": streams.__getitem__}
    fleet = InProcessFleet(job or tiny_gpt(), plans.names(grid[0] * grid[1]), **late)
    options = {
        "grid": grid, "redundancy": redundancy, "costs": costs, "memory_bytes": memory_bytes,
    }  # fmt: skip
    current = plan(fleet, Fence(0, 1, 1), **options)
    for epoch, (victim, count) in enumerate(zip(victims, turns, strict=True), start=2):
        for _ in range(count):
            fleet.turn()
        fleet.kill(plans.names(8)[victim])
        fence = Fence(0, 1, epoch)
        current = plan(fleet, fence, before=current, **options)
    fleet.run_to_end(current.fence)
    fleet.close()
    return fleet


def assert_exact(fleet):
    outcome = expected(leaf_size=2, chunks=4)
    weights = fleet.weights()
    unequal = [n for n in outcome.state if not torch.equal(weights[n], outcome.state[n])]
    assert not unequal
    assert [r.loss for r in fleet.history() if r.step < reference.STEPS] == outcome.losses


@pytest.mark.parametrize("turns", [41, *in_turn(4, [5, 23, 60, 77])])
def test_a_loss_with_two_pipelines_changes_no_bit(turns):
    fleet = lose((2, 2), RedundancyMode.NONE, victims=[turns % 4], turns=[turns])
    assert_exact(fleet)


@pytest.mark.parametrize("turns", [70, *in_turn(4, [9, 36, 101])])
def test_a_loss_of_a_single_pipelines_stage_is_taken_over_by_its_replica(turns):
    fleet = lose((1, 3), RedundancyMode.REPLICA, victims=[turns % 3], turns=[turns])
    assert_exact(fleet)


@pytest.mark.parametrize("turns", [50, *in_turn(4, [9, 24, 36, 70, 85, 101, 120])])
def test_what_a_replica_has_computed_ahead_has_the_same_bits(turns):
    fleet = lose((1, 3), RedundancyMode.EAGER, victims=[turns % 3], turns=[turns])
    assert_exact(fleet)


@pytest.mark.parametrize("turns", [40, *in_turn(4, [75])])
def test_two_pipelines_compute_ahead(turns):
    fleet = lose((2, 2), RedundancyMode.EAGER, victims=[turns % 4, 2], turns=[turns, 20])
    assert_exact(fleet)


def test_recoveries_continue_what_was_computed_ahead(tmp_path, monkeypatch):
    monkeypatch.setenv(event_log.VARIABLE, str(tmp_path))
    assert_exact(lose((1, 3), RedundancyMode.EAGER, victims=[1], turns=[60]))
    text = "".join(path.read_text() for path in sorted(tmp_path.glob("*.jsonl")))
    assert re.search(r"run R\[", text)
    assert re.search(r"run F\[\d+:\d+\] m\d+ \d+:\d+", text)


@pytest.mark.parametrize(
    ("memory_bytes", "host_memory", "is_hosted", "is_limited"),
    [
        (SHORT, "700k", True, True),
        *in_turn(4, [(0, "0", False, False), (FEW, "0", False, True), (SHORT, "8Gi", True, False)]),
    ],
)
def test_bits_do_not_depend_on_where_forwards_ahead_wait(
    memory_bytes, host_memory, is_hosted, is_limited, monkeypatch
):
    bring_back, brought = HostMemory._returned, []
    monkeypatch.setattr(
        HostMemory, "_returned", lambda self, x: brought.append(x.block) or bring_back(self, x)
    )
    job = replace(tiny_gpt(), redundancy=RedundancySpec(host_memory=host_memory))
    options = {"job": job, "costs": (COST,) * 6, "memory_bytes": memory_bytes}
    fleet = lose((1, 3), RedundancyMode.EAGER, victims=[1], turns=[60], **options)
    assert_exact(fleet)
    assert any(brought) is is_hosted
    found = {a: m.ahead for a, m in fleet.messages if isinstance(m, Progress)}
    assert any(x.slices for x in found.values())
    assert any(x.dropped for x in found.values()) is is_limited
    for figures in found.values():
        assert figures.host_bytes <= job.redundancy.host_memory_bytes
        assert figures.left_bytes == 0
        assert (figures.copied_bytes > 0) is (figures.slices > 0 and is_hosted)
    if is_limited:  # what the planner counts is more than what is kept
        assert max(x.host_bytes for x in found.values()) <= 3 * FORWARD


def test_what_finds_no_room_in_host_memory_is_counted():
    """The planner counts 16 bytes for a forward, and host memory has room for one."""
    cost = LayerCost(1.0, 2.0, 1, 1, activation_bytes=8)
    taken = RESIDENT * 2 + 4 * 16 + 2 * reference.G
    job = replace(tiny_gpt(), redundancy=RedundancySpec(host_memory="16"))
    options = {"job": job, "costs": (cost,) * 6, "memory_bytes": int((taken + 4) / 0.8) + 1}
    fleet = lose((1, 3), RedundancyMode.EAGER, victims=[1], turns=[60], **options)
    assert_exact(fleet)
    found = [m.ahead for _, m in fleet.messages if isinstance(m, Progress)]
    assert max(x.left_bytes for x in found) > 1000
    assert all(x.copied_bytes == 0 for x in found)


def test_two_losses_one_after_the_other_change_no_bit():
    fleet = lose((3, 2), RedundancyMode.REPLICA, victims=[1, 4], turns=[30, 25])
    assert_exact(fleet)


def test_logs_of_agents_replay_through_the_same_machine(tmp_path, monkeypatch):
    monkeypatch.setenv(event_log.VARIABLE, str(tmp_path))
    assert_exact(lose((2, 2), RedundancyMode.NONE, victims=[1], turns=[33]))
    logs = sorted(tmp_path.glob("*.jsonl"))
    assert [path.stem for path in logs] == list(plans.names(4))
    for path in logs:
        assert divergence(path.read_text().splitlines()) is None


def test_a_log_that_was_changed_diverges(tmp_path, monkeypatch):
    monkeypatch.setenv(event_log.VARIABLE, str(tmp_path))
    fleet = InProcessFleet(tiny_gpt(steps=1), plans.names(1))
    plan(fleet, Fence(0, 1, 1), grid=(1, 1), redundancy=RedundancyMode.NONE)
    fleet.run_to_end(Fence(0, 1, 1))
    fleet.close()
    lines = Path(tmp_path / f"{plans.names(1)[0]}.jsonl").read_text().splitlines()
    assert divergence(lines) is None
    event = json.loads(lines[20])
    lines[20] = json.dumps({**event, "effects": ["run nothing"]})
    assert "run nothing" in divergence(lines)
