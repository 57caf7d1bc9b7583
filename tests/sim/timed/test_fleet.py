"""Timed jobs agree with the dry run and with arithmetic, and live through losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.sim.timed.small import LAYER, job, just_fits, taken_bytes

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.model.items import Item
from bamboo_core.model.program import Op
from bamboo_core.placement.plan import layers_of
from bamboo_core.scheduling import dry_run
from bamboo_core.scheduling.costs import Costs
from bamboo_core.scheduling.item_bytes import ItemBytes
from bamboo_sim.timed.declared import Delays, Links, TimedJob
from bamboo_sim.timed.fleet import Fleet
from bamboo_sim.timed.measured import lose, pause, undisturbed, warm
from bamboo_sim.timed.operator import TimedRunError

NONE, REPLICA = RedundancyMode.NONE, RedundancyMode.REPLICA


def last_computation(fleet: Fleet, step: int) -> float:
    spans = (s for a in fleet.agents.values() for s in a.spans)
    return max(end for task, _, end in spans if task.step == step)


def dry(
    fleet: Fleet, *, latency: float, steady: bool, wire: Callable[[Item], float] | None = None
) -> float:
    """Length of a step of the fleet's own programs by the dry run; with a wire, its end."""
    programs, held = {}, {}
    for name, agent in fleet.agents.items():
        directive, rest = agent.executor.directive, agent.executor.continuation
        assert directive is not None
        assert rest is not None
        programs[name] = rest.steady if steady else directive.resume
        wanted = layers_of(directive.wanted) if steady else []
        held[name] = [Item.commit(-1), *(Item.ver(0, x) for x in wanted)]
    report = dry_run.dry_run(
        programs,
        batch=fleet.batch,
        layers=len(fleet.job.layers),
        holdings=held,
        costs=Costs.measured(fleet.job.layers, latency=latency),
        wire=wire,
    )
    assert report.ok, str(report)
    return report.end if wire else report.length


@pytest.mark.parametrize("mode", [NONE, REPLICA])
@pytest.mark.parametrize("grid", [(1, 4, 8), (2, 3, 4), (3, 2, 5), (1, 1, 3)])
def test_a_step_takes_as_long_as_in_the_dry_run(
    grid: tuple[int, int, int], mode: RedundancyMode
) -> None:
    fleet = Fleet(job(*grid, mode=mode))
    fleet.run_to(2)
    assert last_computation(fleet, 0) == pytest.approx(dry(fleet, latency=0, steady=False))
    assert fleet.step_s(2) == pytest.approx(dry(fleet, latency=0, steady=True))


def test_latency_counts_as_in_the_dry_run() -> None:
    fleet = Fleet(job(2, 4, 8, links=Links(latency_s=0.25)))
    fleet.run_to(1)
    assert last_computation(fleet, 0) == pytest.approx(dry(fleet, latency=0.25, steady=False))


def test_a_transfer_takes_its_bytes_over_the_bandwidth() -> None:
    """One micro-batch: F F B B, and an activation and a gradient of 100 bytes between them."""
    one = replace(LAYER, can_split=False)
    fleet = Fleet(TimedJob(1, 2, 1, (one, one), links=Links(bandwidth=50.0)))
    fleet.run_to(0)
    assert last_computation(fleet, 0) == pytest.approx(1 + 2 + 1 + 2 + 2 + 2)


@pytest.mark.parametrize("mode", [NONE, REPLICA])
@pytest.mark.parametrize("grid", [(4, 4, 8), (3, 3, 5), (2, 4, 6)])
@pytest.mark.parametrize("is_lost", [False, True])
def test_the_exchange_of_gradients_takes_as_long_as_in_the_dry_run(
    grid: tuple[int, int, int], mode: RedundancyMode, *, is_lost: bool
) -> None:
    """Interfaces are the bottleneck: a sum takes 12 s, a boundary tensor 0.3 s, and a vote hardly
    anything. Agents that copy a stage pass slices on. Agents do not begin a step at the very same
    time, so one of two items that come together may be another one."""
    large = replace(LAYER, parameter_bytes=12 * 10**9, output_bytes=3 * 10**8)
    whole = job(*grid, mode=mode, links=Links(bandwidth=1e9))
    fleet = Fleet(replace(whole, layers=(large,) * grid[1]))
    fleet.run_to(1)
    if is_lost:
        fleet.kill(fleet.seat(1, 1))
    fleet.run_to(4)
    sizes = ItemBytes(fleet.job.layers)
    live = {name: agent for name, agent in fleet.agents.items() if agent.is_alive}
    assert len(live) == grid[0] * grid[1] - is_lost
    fleet.agents = live
    found = dry(fleet, latency=0, steady=True, wire=lambda item: sizes.of(item) / 1e9)
    assert fleet.step_s(4) == pytest.approx(found, rel=0.01)


def test_a_slow_agent_holds_up_its_pipeline() -> None:
    usual = job(1, 2, 4)
    slow = replace(usual, slowness={usual.agents[1]: 3.0})
    assert undisturbed(slow).step_s > 2 * undisturbed(usual).step_s


def test_after_a_late_loss_a_missing_weight_gradient_takes_a_whole_backward() -> None:
    """Others hold the input gradients of the lost stage, and its layers cannot be split."""
    whole = replace(LAYER, can_split=False, input_gradient_s=0.0, weight_gradient_s=0.0)
    fleet = warm(TimedJob(1, 4, 8, (whole,) * 4, REPLICA))
    lose(fleet, pipeline=0, stage=1, fraction=0.8)
    spans = [s for agent in fleet.agents.values() for s in agent.spans]
    alone = [end - begin for task, begin, end in spans if task.op is Op.W]
    assert alone
    assert alone == pytest.approx([whole.backward_s] * len(alone))


def test_equal_jobs_take_equal_times() -> None:
    links = Links(bandwidth=1000, latency_s=0.01, zone_latency_s=0.02)
    lines = []
    for _ in range(2):
        fleet = Fleet(job(2, 3, 4, mode=REPLICA, links=links, zones=3))
        fleet.run_to(1)
        fleet.kill(fleet.seat(1, 1))
        fleet.run_to(3)
        lines.append(fleet.commits)
    assert lines[0] == lines[1]


def test_peaks_of_memory_are_those_of_1f1b() -> None:
    """Stage 0 of P = 3 keeps 3 activations, its output of every micro-batch, and one gradient.

    Each micro-batch is a leaf and a chunk. At the last one, its sum is there, that of the leaf
    before and that of the first two; besides, the reduced gradient of the step before.
    """
    whole = replace(LAYER, can_split=False, activation_bytes=2000)
    found = undisturbed(TimedJob(1, 3, 4, (whole,) * 3))
    assert found.groups["activations"] == 3 * 2000
    assert found.groups["state"] == 3 * 1200
    assert found.groups["gradients"] == 4 * 1200
    assert found.groups["boundaries"] == (4 + 1) * 100
    assert "replica_weights" not in found.groups
    assert found.host_bytes == 0


def test_replicas_take_memory_and_links_and_can_live_on_the_host() -> None:
    none, usual = undisturbed(job(2, 3, 4)), undisturbed(job(2, 3, 4, mode=REPLICA))
    # weights, two averages, and the reduced gradients of the step before and of this one
    assert 4 * 1200 <= usual.device_bytes - none.device_bytes <= 5 * 1200
    # one more reduced gradient of 1,200 bytes for each of 6 agents
    assert usual.sent_bytes == none.sent_bytes + 6 * 1200
    # a stage of two layers: its sums do not fit after a loss, beside those of the replica
    whole = replace(LAYER, can_split=False)
    grid = replace(job(2, 3, 4, mode=REPLICA, layers_each=2), layers=(whole,) * 6)
    roomy = undisturbed(grid)
    short = just_fits(taken_bytes(grid) - 2)
    hosted = undisturbed(replace(grid, device=short))
    assert hosted.device_bytes == roomy.device_bytes - 3 * 2400
    assert hosted.host_bytes == 3 * 2400


def test_a_copy_costs_the_time_of_one_more_gradient() -> None:
    """A copy of a stage: each agent sends and receives that much more, one item after the other.

    Agents that pass slices on wait for them at times: up to a fifth more.
    """
    large = replace(LAYER, parameter_bytes=100_000)
    links = Links(bandwidth=1e4, zone_bandwidth=1e4)
    grid = replace(job(4, 4, 8, links=links), layers=(large,) * 4)
    none, copied = undisturbed(grid).step_s, undisturbed(replace(grid, mode=REPLICA)).step_s
    assert 1.0 <= (copied - none) / (100_000 / 1e4) <= 1.2


DELAYS = Delays(detection_s=1.0, message_s=0.125, persist_s=0.5, decision_s=2.0, continuation_s=4.0)


def test_a_loss_costs_the_declared_delays_and_what_must_be_done_again() -> None:
    """Nobody works between the report and the directive."""
    usual = pause(job(2, 3, 6, mode=REPLICA), pipeline=0, stage=1, fraction=0.5)
    late = pause(job(2, 3, 6, mode=REPLICA, delays=DELAYS), pipeline=0, stage=1, fraction=0.5)
    assert usual.tasks > 0
    assert 0 < usual.pause_s < usual.step_s
    assert late.step_s == pytest.approx(usual.step_s)
    # STOP, report, decision, facts, directive; agents go on until the STOP comes
    assert late.pause_s >= usual.pause_s + 0.125 + 2.0 + 0.125
    assert late.pause_s <= usual.pause_s + 1.0 + 3 * 0.125 + 2.0 + 2 * 0.5 + 2.0


def test_over_a_slow_network_lost_work_is_not_spread() -> None:
    """A sum takes 9 s to another agent, and a leaf takes 3 s to compute. If all shared the leaves,
    each step without the agent would take 2.2 times as long as before."""
    large = replace(LAYER, parameter_bytes=9_000)
    grid = replace(job(4, 4, 9, mode=REPLICA, links=Links(bandwidth=1e3)), layers=(large,) * 4)
    fleet = Fleet(grid)
    fleet.run_to(1)
    fleet.kill(fleet.seat(1, 2))
    fleet.run_to(4)
    assert fleet.step_s(4) < 1.8 * fleet.step_s(1)


def test_the_job_goes_on_after_several_losses() -> None:
    fleet = Fleet(job(3, 3, 4, mode=REPLICA, zones=3, delays=DELAYS))
    fleet.run_to(1)
    for pipeline in range(3):
        fleet.kill(fleet.seat(pipeline, pipeline))
        fleet.run_to(2 * pipeline + 3)
    assert sorted(fleet.commits) == list(range(8))
    assert sum(x.is_alive for x in fleet.agents.values()) == 6


def test_a_run_that_stands_still_says_who_waits() -> None:
    """One pipeline without replicas cannot go on."""
    fleet = Fleet(job(1, 2, 2))
    fleet.run_to(1)
    fleet.kill(fleet.seat(0, 1))
    with pytest.raises(TimedRunError, match=r"before step 3 is committed: \{'a0': 'None'\}"):
        fleet.run_to(3)
