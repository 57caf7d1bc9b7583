"""Agents vote with unequal gradients or losses: the step is void, and nobody ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.agent.worker.test_disputes import FIRST, SECOND, disputes, plan
from tests.agent.worker.test_losses import assert_exact

from bamboo_core.api.spec import CorruptionMode, CorruptionSpec, RedundancyMode, RedundancySpec
from bamboo_core.model.claims import GRADIENTS
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.program import Op
from bamboo_sim.workers import plans
from bamboo_sim.workers.in_process_fleet import InProcessFleet
from bamboo_sim.workers.jobs import tiny_gpt

STAGES = 3


@pytest.fixture(params=CorruptionMode)
def fleet(request):
    """A pipeline in which two agents hold each layer."""
    job = replace(
        plans.grid_of(tiny_gpt(), pipelines=1, stages=STAGES),
        redundancy=RedundancySpec(RedundancyMode.REPLICA),
        corruption=CorruptionSpec(request.param, sample=0.0001),
    )
    fleet = InProcessFleet(job, plans.names(STAGES))
    yield fleet
    fleet.close()


def spoil_gradient(backend, monkeypatch, step=1):
    """A reduced gradient that arrives for this step changes in the agent's memory."""
    accept = backend.accept
    struck = []

    def wrong(item, payload):
        if item.kind is Kind.RED and item.step == step and not struck:
            struck.append(item)
            payload = replace(payload, tensor=payload.tensor + 1)
        accept(item, payload)

    monkeypatch.setattr(backend, "accept", wrong)
    return struck


def spoil_losses(backend, monkeypatch, step=1):
    """The losses that this agent votes with are wrong once."""
    vote, struck = backend._perform[Op.VOTE], []

    def wrong(task):
        vote(task)
        cast = backend.store[Item.vote(task.step, backend.state.setup.agent)]
        if task.step == step and cast.losses and not struck:
            struck.append(task)
            cast.losses[0] += 1

    monkeypatch.setitem(backend._perform, Op.VOTE, wrong)
    return struck


FIRST_AGENT, SECOND_AGENT, LAST_AGENT = plans.names(STAGES)
CASES = [(spoil_gradient, FIRST_AGENT), (spoil_losses, SECOND_AGENT), (spoil_losses, LAST_AGENT)]


@pytest.mark.parametrize(("spoil", "victim"), CASES)
def test_the_step_is_computed_again_with_everyone(fleet, monkeypatch, spoil, victim):
    """In every mode of corruption, since every vote has these numbers anyway."""
    before = plan(fleet, FIRST)
    struck = spoil(fleet.workers[victim].backend, monkeypatch)
    fleet.wait(lambda: bool(disputes(fleet)))
    assert struck
    (message,) = disputes(fleet)
    assert (message.fence, message.step) == (FIRST, 1)
    for dispute in message.disputes:
        assert dispute.microbatch == GRADIENTS
        assert victim in {claim.agent for claim in dispute.claims}
        assert len({claim.digest for claim in dispute.claims}) == 2
    plan(fleet, SECOND, void=SECOND, before=before)
    fleet.run_to_end(SECOND)
    assert len(disputes(fleet)) == 1
    assert_exact(fleet)
