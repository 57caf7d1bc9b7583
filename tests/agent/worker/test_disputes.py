"""A device is wrong in a forward that another agent computes, too: real tensors and votes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.agent.worker.test_losses import BATCH, assert_exact

from bamboo_agent.compute.checks import CorruptionError
from bamboo_core.api.spec import CorruptionMode, CorruptionSpec, RedundancyMode, RedundancySpec
from bamboo_core.model.ids import Fence
from bamboo_core.model.program import Op
from bamboo_core.protocol.messages import AgentReport, Disputed, Stop
from bamboo_sim.workers import plans
from bamboo_sim.workers.in_process_fleet import InProcessFleet
from bamboo_sim.workers.jobs import tiny_gpt

STAGES = 3
FIRST, SECOND, THIRD = (Fence(0, 1, epoch) for epoch in (1, 2, 3))


@pytest.fixture
def fleet():
    """A pipeline that compares forwards, and checks nothing else but the first of step 0."""
    job = replace(
        plans.grid_of(tiny_gpt(), pipelines=1, stages=STAGES),
        redundancy=RedundancySpec(RedundancyMode.EAGER),
        corruption=CorruptionSpec(CorruptionMode.DETECT, sample=0.0001),
    )
    fleet = InProcessFleet(job, plans.names(STAGES))
    yield fleet
    fleet.close()


def plan(fleet, fence, *, void=None, before=None):
    for agent in fleet.agents():
        fleet.send(agent, Stop(fence, void=void or Fence()))
    fleet.wait(lambda: len(reports(fleet, fence)) == len(fleet.agents()))
    decided = plans.decide(
        fleet.job,
        fence=fence,
        layers=fleet.layers,
        reports=reports(fleet, fence),
        batch=BATCH,
        validation_samples=fleet.validation_samples,
        before=before,
    )
    fleet.install(decided)
    return decided.plan


def reports(fleet, fence):
    return {a: m for a, m in fleet.messages if isinstance(m, AgentReport) and m.fence == fence}


def disputes(fleet):
    return [message for _, message in fleet.messages if isinstance(message, Disputed)]


def flip(worker, op, monkeypatch):
    """The worker's next forward of this kind in step 1 has a wrong bit: what it was."""
    run, struck = worker.backend._run_forward, []

    def wrong(task, begun, first, end):
        made = run(task, begun, first, end)
        if not struck and (task.op, task.step) == (op, 1):
            struck.append(task)
            made.outputs[0].detach().view(-1).view(torch.int32)[0] ^= 1 << 22
        return made

    monkeypatch.setattr(worker.backend, "_run_forward", wrong)
    return struck


def test_comparing_changes_no_bit_and_sound_workers_agree(fleet):
    plan(fleet, FIRST)
    fleet.run_to_end(FIRST)
    assert_exact(fleet)
    assert disputes(fleet) == []


@pytest.mark.parametrize("op", [Op.F, Op.R])
def test_the_worker_with_the_wrong_result_ends_and_no_bit_changes(fleet, monkeypatch, op):
    before = plan(fleet, FIRST)
    (victim, *_) = names = plans.names(STAGES)
    struck = flip(fleet.workers[victim], op, monkeypatch)
    fleet.wait(lambda: bool(disputes(fleet)))
    (message,) = disputes(fleet)
    assert (message.fence, message.step) == (FIRST, 1)
    (task,) = struck
    dispute = message.disputes[0]
    assert (dispute.lo, dispute.hi, dispute.microbatch) == (task.lo, task.hi, task.index)
    assert victim in {claim.agent for claim in dispute.claims}
    before = plan(fleet, SECOND, void=SECOND, before=before)
    with pytest.raises(CorruptionError, match=f"gave two results on {victim}"):
        fleet.run_to_end(SECOND)
    fleet.kill(victim)
    plan(fleet, THIRD, void=SECOND, before=before)
    fleet.run_to_end(THIRD)
    assert fleet.workers.keys() == set(names) - {victim}
    assert_exact(fleet)
    assert len(disputes(fleet)) == 1


def test_without_the_void_the_dispute_is_repeated(fleet, monkeypatch):
    before = plan(fleet, FIRST)
    flip(fleet.workers[plans.names(1)[0]], Op.F, monkeypatch)
    fleet.wait(lambda: bool(disputes(fleet)))
    plan(fleet, SECOND, before=before)
    fleet.wait(lambda: len(disputes(fleet)) == 2)
    assert disputes(fleet)[1].fence == SECOND
