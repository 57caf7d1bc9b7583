"""A device is wrong in a forward that another agent computes, too: real tensors and votes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.agent.worker.test_losses import BATCH, assert_exact

from bamboo_agent.compute.checks import CorruptionError
from bamboo_core.api.spec import CorruptionMode, CorruptionSpec, RedundancyMode, RedundancySpec
from bamboo_core.model.claims import Question, can_decide, odd_ones
from bamboo_core.model.ids import Fence
from bamboo_core.model.program import Op
from bamboo_core.protocol.messages import AgentReport, Disputed, Stop
from bamboo_sim.workers import plans
from bamboo_sim.workers.in_process_fleet import InProcessFleet
from bamboo_sim.workers.jobs import tiny_gpt

STAGES = 3
FIRST, SECOND, THIRD, FOURTH = (Fence(0, 1, epoch) for epoch in (1, 2, 3, 4))


@pytest.fixture
def fleet(request):
    """A pipeline that compares forwards, and checks nothing else but the first of step 0."""
    stages = getattr(request, "param", STAGES)
    job = replace(
        plans.grid_of(tiny_gpt(), pipelines=1, stages=stages),
        redundancy=RedundancySpec(RedundancyMode.EAGER),
        corruption=CorruptionSpec(CorruptionMode.DETECT, sample=0.0001),
    )
    fleet = InProcessFleet(job, plans.names(stages))
    yield fleet
    fleet.close()


def plan(fleet, fence, *, void=None, before=None, question=None, costs=()):
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
        question=question,
        costs=costs,
    )
    fleet.install(decided)
    return decided.plan


def reports(fleet, fence):
    return {a: m for a, m in fleet.messages if isinstance(m, AgentReport) and m.fence == fence}


def disputes(fleet):
    return [message for _, message in fleet.messages if isinstance(message, Disputed)]


def flip(worker, op, monkeypatch):
    """The worker's next forward of this kind in step 1 has a wrong bit: what it was."""
    run, struck = worker.backend.passes._run_forward, []

    def wrong(task, begun, first, end):
        made = run(task, begun, first, end)
        if not struck and (task.op, task.step) == (op, 1):
            struck.append(task)
            made.outputs[0].detach().view(-1).view(torch.int32)[0] ^= 1 << 22
        return made

    monkeypatch.setattr(worker.backend.passes, "_run_forward", wrong)
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


def flip_always(worker, op, monkeypatch):
    """From step 1 on, one forward of the worker has the same wrong bit whenever it is computed."""
    run, struck = worker.backend.passes._run_forward, set()

    def wrong(task, begun, first, end):
        made = run(task, begun, first, end)
        name = task.step, task.lo, task.index, first
        if task.op is op and task.step == 1 and struck <= {name}:
            struck.add(name)
            made.outputs[0].detach().view(-1).view(torch.int32)[0] ^= 1 << 22
        return made

    monkeypatch.setattr(worker.backend.passes, "_run_forward", wrong)


def disputed_twice(fleet):
    """The dispute that two agents repeat, and the plan in which they do."""
    before = plan(fleet, FIRST)
    fleet.wait(lambda: len(disputes(fleet)) == 1)
    before = plan(fleet, SECOND, void=SECOND, before=before)
    fleet.wait(lambda: len(disputes(fleet)) == 2)
    message = disputes(fleet)[1]
    assert (message.fence, message.step) == (SECOND, 1)
    return message.disputes[0], before


@pytest.mark.parametrize("fleet", [4], indirect=True)
@pytest.mark.parametrize("op", [Op.F, Op.R])
def test_a_third_worker_decides_with_copies_of_the_layers(fleet, monkeypatch, op):
    """Only the two that differ hold the stage; in the end one of them goes, and no bit changes."""
    victim = plans.names(4)[1]
    flip_always(fleet.workers[victim], op, monkeypatch)
    found, before = disputed_twice(fleet)
    assert can_decide(found)
    question = Question(1, found)
    assert victim in question.agents
    before = plan(fleet, THIRD, void=THIRD, before=before, question=question)
    assert set(before.short_notice) == question.agents
    fleet.wait(lambda: len(disputes(fleet)) == 3)
    (verdict,) = disputes(fleet)[2].disputes
    assert odd_ones(verdict) == {victim}
    fleet.kill(victim)
    plan(fleet, FOURTH, void=FOURTH, before=before)
    fleet.run_to_end(FOURTH)
    assert fleet.workers.keys() == {*plans.names(4)} - {victim}
    assert_exact(fleet)


def test_no_third_can_decide_if_the_layers_differ(fleet, monkeypatch):
    """It would copy one of the two: the repeated step shows that their copies differ."""
    backend, struck = fleet.workers[plans.names(1)[0]].backend, []
    run = backend.passes._run_forward

    def spoil(task, begun, first, end):
        if (task.op, task.step) == (Op.F, 1) and not struck:
            struck.append(task)
            backend.layers[task.lo].parameters[0].detach().view(-1).view(torch.int32)[0] ^= 1 << 22
        return run(task, begun, first, end)

    monkeypatch.setattr(backend.passes, "_run_forward", spoil)
    found, _ = disputed_twice(fleet)
    assert found.is_of_copies
    assert len({claim.digest for claim in found.claims}) == 2
    assert not can_decide(found)


def test_without_the_void_the_dispute_is_repeated(fleet, monkeypatch):
    before = plan(fleet, FIRST)
    flip(fleet.workers[plans.names(1)[0]], Op.F, monkeypatch)
    fleet.wait(lambda: bool(disputes(fleet)))
    plan(fleet, SECOND, before=before)
    fleet.wait(lambda: len(disputes(fleet)) == 2)
    assert disputes(fleet)[1].fence == SECOND
