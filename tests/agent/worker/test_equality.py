"""Loss history and final state equal the plain program's, bit for bit, for every grid."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from itertools import product

import pytest
import torch
from tests.rotation import in_turn

from bamboo_agent.user_code import build_model
from bamboo_core.api.spec import Channel, RedundancyMode, RedundancySpec, TransportSpec
from bamboo_core.model.ids import Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Op
from bamboo_core.protocol.messages import AgentReport, LayerCost, Progress
from bamboo_sim.workers import plans, reference
from bamboo_sim.workers.in_process_fleet import InProcessFleet
from bamboo_sim.workers.jobs import tiny_gpt
from bamboo_sim.workers.process_fleet import ProcessFleet

expected = functools.lru_cache(reference.train)
MAIN = [(1, 1, 1), (2, 2, 2), (3, 4, 1)]
"""Pipelines, stages, micro-batches in a leaf."""
GRIDS = [grid for grid in product((1, 2, 3, 4), (1, 2, 4), (1, 2)) if grid not in MAIN]


def assert_equal(history, state, *, leaf_size, chunks):
    outcome = expected(leaf_size=leaf_size, chunks=chunks)
    trained = [r for r in history if r.step < reference.STEPS]
    assert [r.loss for r in trained] == outcome.losses
    assert [r.grad_norm for r in trained] == outcome.norms
    found = {r.step: r.validation_loss for r in history if r.validation_loss is not None}
    assert found == outcome.validation
    if state is not None:
        assert state.keys() == outcome.state.keys()
        unequal = [name for name in state if not torch.equal(state[name], outcome.state[name])]
        assert not unequal


def run_fleet(job, *, pipelines, stages, batch, costs=()):
    fleet = InProcessFleet(job, plans.names(pipelines * stages))
    first = Fence(0, 1, 1)
    decision = plans.decide(
        plans.grid_of(job, pipelines=pipelines, stages=stages),
        fence=first,
        layers=fleet.layers,
        reports=fleet.stop(first),
        batch=batch,
        validation_samples=fleet.validation_samples,
        costs=costs,
    )
    steady = [x for rest in decision.continuations.values() for x in rest.steady]
    assert any(x.op is Op.W for x in steady) == bool(costs)
    fleet.install(decision)
    fleet.run_to_end(first)
    fleet.close()
    return fleet


@pytest.mark.parametrize(("pipelines", "stages", "leaf_size"), [*MAIN, *in_turn(4, GRIDS)])
def test_every_grid_equals_the_plain_program(pipelines, stages, leaf_size):
    batch = BatchShape(reference.G, leaf_size, 4)
    fleet = run_fleet(tiny_gpt(), pipelines=pipelines, stages=stages, batch=batch)
    assert_equal(fleet.history(), fleet.weights(), leaf_size=leaf_size, chunks=4)


REDUNDANT = [
    (mode, pipelines, stages)
    for mode in (RedundancyMode.REPLICA, RedundancyMode.EAGER)
    for pipelines, stages in product((1, 2, 3), (2, 3, 4))
]


@pytest.mark.parametrize(
    ("mode", "pipelines", "stages"), [(RedundancyMode.EAGER, 1, 4), *in_turn(6, REDUNDANT)]
)
def test_redundancy_changes_no_bit(mode, pipelines, stages):
    job = replace(tiny_gpt(), redundancy=RedundancySpec(mode))
    batch = BatchShape(reference.G, 2, 4)
    fleet = run_fleet(job, pipelines=pipelines, stages=stages, batch=batch)
    assert_equal(fleet.history(), fleet.weights(), leaf_size=2, chunks=4)
    computed_ahead = [m.ahead.slices for _, m in fleet.messages if isinstance(m, Progress)]
    assert any(computed_ahead) is (mode is RedundancyMode.EAGER)


@pytest.mark.parametrize(
    ("pipelines", "stages", "leaf_size"),
    [(2, 4, 2), *in_turn(4, [(1, 4, 1), (1, 4, 2), (2, 4, 1)])],
)
def test_a_grid_that_splits_its_backward_equals_the_plain_program(pipelines, stages, leaf_size):
    job, batch = tiny_gpt(), BatchShape(reference.G, leaf_size, 4)
    cost = LayerCost(1.0, 2.0, 1, 1, 1.0, 1.0, can_split=True)
    layers = len(build_model(job.model, seed=job.seed).layers)
    fleet = run_fleet(job, pipelines=pipelines, stages=stages, batch=batch, costs=(cost,) * layers)
    assert_equal(fleet.history(), fleet.weights(), leaf_size=leaf_size, chunks=4)


@pytest.mark.parametrize("pipelines", [3, *in_turn(4, [2])])
def test_sums_in_large_leaves_are_exact_too_and_differ_by_rounding_only(pipelines):
    """As jobs keep them that were begun with ``numerics: Fast`` by an earlier version."""
    batch = BatchShape(reference.G, reference.G // pipelines, 2)
    fleet = run_fleet(tiny_gpt(), pipelines=pipelines, stages=2, batch=batch)
    fast = expected(leaf_size=batch.leaf_size, chunks=batch.chunks)
    canonical = expected(leaf_size=2, chunks=4)
    assert_equal(fleet.history(), fleet.weights(), leaf_size=batch.leaf_size, chunks=batch.chunks)
    assert fast.losses == pytest.approx(canonical.losses, rel=1e-5)
    assert fast.norms != canonical.norms


def plan_processes(fleet, job, fence, before=None):
    ready = fleet.ready()
    decision = plans.decide(
        job,
        fence=fence,
        layers=ready.layers,
        reports=fleet.stop(fence),
        batch=BatchShape(reference.G, 2, 4),
        peers=fleet.peers,
        validation_samples=ready.validation_samples,
        before=before,
    )
    fleet.install(decision)
    return decision


@pytest.fixture
def started(tmp_path):
    """Starts workers as processes for a job on a grid over a channel."""
    fleets = []

    def start(pipelines, stages, channel, mode=RedundancyMode.NONE, hash_seeds=()):
        job = replace(tiny_gpt(), transport=TransportSpec(channel), redundancy=RedundancySpec(mode))
        names = plans.names(pipelines * stages)
        fleets.append(ProcessFleet(job, names, logs=tmp_path, hash_seeds=hash_seeds))
        return fleets[0], plans.grid_of(job, pipelines=pipelines, stages=stages)

    yield start
    fleets[0].close()


@pytest.mark.parametrize(
    ("pipelines", "stages", "channel"),
    [
        (2, 2, Channel.TCP),
        (2, 2, Channel.PROCESS_GROUP),
        *in_turn(4, [(1, 2, Channel.TCP)]),
    ],
)
def test_processes_equal_the_plain_program(pipelines, stages, channel, started, tmp_path):
    fleet, job = started(pipelines, stages, channel)
    fence = Fence(0, 1, 1)
    plan_processes(fleet, job, fence)
    fleet.run_to_end(fence)
    assert_equal(fleet.history(), None, leaf_size=2, chunks=4)
    reports = fleet.stop(Fence(0, 1, 2))
    assert all(isinstance(report, AgentReport) for report in reports.values())
    logs = [(tmp_path / agent).read_text() for agent in fleet.agents()]
    uses_groups = channel is Channel.PROCESS_GROUP
    assert all(("goes over gloo" in log) is uses_groups for log in logs)


@pytest.mark.parametrize(("pipelines", "stages"), in_turn(4, [(2, 2)]))
def test_interpreters_with_other_hash_seeds_equal_the_plain_program(
    pipelines, stages, started, tmp_path
):
    """As on nodes of their own: sets have other orders, and generators have other states."""
    hash_seeds = tuple(range(1, pipelines * stages + 1))
    fleet, job = started(pipelines, stages, Channel.TCP, hash_seeds=hash_seeds)
    fence = Fence(0, 1, 1)
    plan_processes(fleet, job, fence)
    fleet.run_to_end(fence)
    assert_equal(fleet.history(), None, leaf_size=2, chunks=4)
    logs = [(tmp_path / agent).read_text() for agent in fleet.agents()]
    told = [re.search(r"this process has \{.*\}", log).group() for log in logs]
    for name in ("torch", "numpy", "random", "hash"):
        numbers = {re.search(rf"'{name}': (-?\d+)", line).group(1) for line in told}
        assert len(numbers) == len(hash_seeds), name


@pytest.mark.parametrize(
    ("pipelines", "stages", "mode"),
    in_turn(
        3,
        [
            (1, 3, RedundancyMode.REPLICA),
            (1, 3, RedundancyMode.EAGER),
            (2, 2, RedundancyMode.EAGER),
        ],
    ),
)
def test_a_loss_over_groups_changes_no_bit(pipelines, stages, mode, started, tmp_path):
    """The groups of the plan before are thrown away, and those of the next one are used, too."""
    fleet, job = started(pipelines, stages, Channel.PROCESS_GROUP, mode)
    first = plan_processes(fleet, job, Fence(0, 1, 1))
    victim, *others = fleet.agents()
    fleet.wait(lambda: "goes over gloo" in (tmp_path / victim).read_text())
    fleet.kill(victim)
    second = Fence(0, 1, 2)
    decided = plan_processes(fleet, job, second, before=first.plan)
    fleet.run_to_end(second)
    assert_equal(fleet.history(), None, leaf_size=2, chunks=4)
    assert all("is a new plan" in (tmp_path / agent).read_text() for agent in others)
    # whether slices pay depends on costs that a busy machine measures
    has_lane = any(x.lane for one in (first, decided) for x in one.continuations.values())
    assert mode is RedundancyMode.EAGER or not has_lane
    slices = [m.ahead.slices > 0 for _, m in fleet.messages if isinstance(m, Progress)]
    assert has_lane or not any(slices)
