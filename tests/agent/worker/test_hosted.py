"""Replicas wait in host memory if the device is short, and no bit depends on it.

On a machine without a GPU the device is memory of the CPU, too: layers are copied all the same.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.agent.worker.test_losses import assert_exact, plan

from bamboo_core.api.spec import OptimizerSpec, RedundancyMode, RedundancySpec
from bamboo_core.model.ids import Fence
from bamboo_core.placement.plan import layers_of
from bamboo_core.planning import hosting
from bamboo_core.protocol.messages import LayerCost, Progress
from bamboo_sim.workers import plans, reference
from bamboo_sim.workers.in_process_fleet import InProcessFleet
from bamboo_sim.workers.jobs import tiny_gpt

REPLICA, EAGER = RedundancyMode.REPLICA, RedundancyMode.EAGER
GRID = (1, 3)
COSTS = (LayerCost(1.0, 2.0, 1000, 1, activation_bytes=1000),) * 6  # stages of two layers
SHORT = 1  # byte: no device has less
SHORT_EAGER = int((31_000 + 3 * reference.G) / 0.8)
"""Replicas on the device need 32,000 and boundary tensors after a loss, in host memory 30,000."""
OPTIMIZERS = {
    "AdamW": tiny_gpt().training.optimizer,
    "SGD": OptimizerSpec("torch.optim:SGD", {"lr": 0.1, "momentum": 0.9}),
}


def job_of(optimizer="AdamW", host_memory="8Gi"):
    job = tiny_gpt()
    training = replace(job.training, optimizer=OPTIMIZERS[optimizer])
    return replace(job, training=training, redundancy=RedundancySpec(host_memory=host_memory))


class Run:
    """A fleet of three stages whose devices have so much memory."""

    def __init__(self, mode, memory_bytes, job=None):
        self.fleet = InProcessFleet(job or job_of(), plans.names(3))
        self.options = {"redundancy": mode, "costs": COSTS, "memory_bytes": memory_bytes}
        self.plan, self.epoch = None, 0
        self.replan(GRID)

    def replan(self, grid):
        self.epoch += 1
        fence = Fence(0, 1, self.epoch)
        self.plan = plan(self.fleet, fence, grid=grid, before=self.plan, **self.options)

    def turn(self, count):
        for _ in range(count):
            self.fleet.turn()

    def finish(self):
        self.fleet.run_to_end(self.plan.fence)
        self.fleet.close()
        return self.fleet

    def held(self, agent):
        return self.fleet.workers[agent].backend.held

    def figures(self):
        return {a: m.hosted for a, m in self.fleet.messages if isinstance(m, Progress)}


def trained(mode, memory_bytes, job, *, victim=1, turns=45):
    run = Run(mode, memory_bytes, job)
    run.turn(turns)
    run.fleet.kill(plans.names(3)[victim])
    run.replan(GRID)
    run.finish()
    return run


@pytest.mark.parametrize("mode", [REPLICA, EAGER])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_bits_do_not_depend_on_where_replicas_wait_when_one_takes_over(optimizer, mode):
    job = job_of(optimizer)
    short = SHORT_EAGER if mode is EAGER else SHORT
    usual, hosted = (trained(mode, memory, job) for memory in (0, short))
    if optimizer == "AdamW":
        assert_exact(hosted.fleet)
    expected, found = usual.fleet.weights(), hosted.fleet.weights()
    assert expected.keys() == found.keys()
    assert [n for n in expected if not torch.equal(expected[n], found[n])] == []
    assert usual.fleet.history() == hosted.fleet.history()
    assert all(x.copied_bytes == 0 for x in usual.figures().values())
    assert all(x.copied_bytes > x.host_bytes > 0 for x in hosted.figures().values())
    assert all(x.copied_s > 0 and x.left_bytes == 0 for x in hosted.figures().values())


@pytest.mark.parametrize(("victim", "turns"), [(0, 20), (1, 75), (2, 60)])
def test_losses_at_other_moments_change_no_bit(victim, turns):
    assert_exact(trained(REPLICA, SHORT, job_of(), victim=victim, turns=turns).fleet)


def test_weights_come_to_the_device_when_a_replica_takes_over_and_all_when_it_gets_the_seat():
    run = Run(REPLICA, SHORT)
    run.turn(70)  # the first updates are done
    replicas = {a: set(layers_of(r)) for a, r in hosting.replicas(run.plan).items()}
    for agent in plans.names(3):
        assert run.held(agent).waiting == replicas[agent]
    run.fleet.kill(plans.names(3)[1])
    run.replan(GRID)
    first = plans.names(1)[0]
    taken = replicas[first]
    assert taken <= run.held(first).waiting
    for _ in range(200):
        if not taken & run.held(first).waiting:
            break
        run.fleet.turn()
    assert not taken & run.held(first).waiting
    run.replan((1, 2))  # two agents, two stages: no seat is empty
    fleet = run.finish()
    assert_exact(fleet)
    replicas = {a: set(layers_of(r)) for a, r in hosting.replicas(run.plan).items()}
    for agent in fleet.agents():
        assert run.held(agent).waiting == replicas[agent]
        assert set(run.held(agent)._moments) == replicas[agent]


def test_without_room_in_host_memory_layers_stay_on_the_device_and_it_is_said():
    """The planner counts with 6,000 bytes for each agent; a real layer takes more than that."""
    run = Run(REPLICA, SHORT, job_of(host_memory="6000"))
    assert_exact(run.finish())
    found = run.figures().values()
    assert all(x.host_bytes <= 6000 for x in found)
    assert any(x.left_bytes > 0 for x in found)
