"""A job that begins with another job's checkpoint never begins at step 0."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import Reason
from bamboo_core.api.spec import CheckpointSpec, Difference, RestoreSpec, SourceSpec
from bamboo_core.arbiter_state import events as a
from bamboo_core.model.ids import Fence
from bamboo_core.model.program import Op, single
from bamboo_core.protocol.messages import BadCheckpoint, Directive, Listed, Manifest

from .fleet import Fleet, committed, spec

ORIGIN = Manifest(0, 4, "0/4", "d")


def begun(
    *, stages: int = 2, steps: int = 12, every: int = 3, accept: tuple[Difference, ...] = ()
) -> Fleet:
    """The agents are ready; those that are asked find the checkpoint of step 4 of another job."""
    other = SourceSpec(job="another", accept=accept)
    source = CheckpointSpec("file:///tmp/x", every, from_=other)
    fleet = Fleet(replace(spec(stages=stages, steps=steps), checkpoint=source), layers=stages)
    fleet.sealed = [ORIGIN]
    fleet.add_grid(1, stages)
    return fleet


def first_steps(fleet: Fleet) -> set[int]:
    return {step for _, step in fleet.commits if step < 12}  # 12 is the last validation


def test_it_begins_with_the_listed_checkpoint_and_repeats_nothing() -> None:
    fleet = begun()
    fleet.tell(a.DesiredState(1))
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert first_steps(fleet) == set(range(4, 12))
    durable = fleet.arbiter.durable
    assert (durable.attempt, durable.manifest, durable.forks) == (0, ORIGIN, ())
    (found,) = [r for r in fleet.records if r.reason is EventReason.CHECKPOINT_FOUND]
    assert found.message == (
        "the job begins with the checkpoint of step 4 that spec.checkpoint.from names"
    )


def test_what_it_accepts_is_told() -> None:
    fleet = begun(accept=(Difference.CODE, Difference.DATA))
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: any(isinstance(m, Directive) for _, m in fleet.wire))
    (found,) = [r for r in fleet.records if r.reason is EventReason.CHECKPOINT_FOUND]
    assert found.message.endswith(
        " names; its accept takes other code and data than it was written with"
    )


def test_every_layer_is_loaded() -> None:
    fleet = begun()
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: any(isinstance(m, Directive) for _, m in fleet.wire))
    told = [m for _, m in fleet.wire if isinstance(m, Directive)]
    loads = [i for m in told for i in single(m.resume) if i.op is Op.LOAD]
    assert {x for i in loads for x in range(i.lo, i.hi)} == {0, 1}
    assert {m.manifest for m in told} == {ORIGIN}


def test_it_waits_for_the_list_however_long() -> None:
    fleet = begun()
    fleet.lists = False
    fleet.tell(a.DesiredState(1))
    fleet.run()
    asked = len(fleet.records)
    fleet.wait(200)
    assert fleet.arbiter.status().phase is a.ArbiterPhase.HOLDING
    assert fleet.arbiter.durable.plan == Fence()
    assert len(fleet.records) - asked <= 4  # one a minute
    fleet.lists = True
    fleet.wait(70)
    assert fleet.over is not None
    assert first_steps(fleet) == set(range(4, 12))


def test_the_status_says_that_it_cannot_be_reached() -> None:
    fleet = begun()
    fleet.lists = False
    fleet.tell(a.DesiredState(1))
    fleet.run()
    fence = fleet.arbiter.fence
    fleet.receive(next(iter(fleet.agents)), Listed((), fence, is_partial=True, error="no answer"))
    said = fleet.arbiter.status().unreachable
    assert "no answer" in said
    assert said.endswith(
        "or create a new BambooJob with another checkpoint in spec.checkpoint.from"
    )
    fleet.receive(next(iter(fleet.agents)), Listed((ORIGIN,), fence))
    assert fleet.arbiter.status().unreachable == ""
    fleet.run()
    assert first_steps(fleet) == set(range(4, 12))


def test_a_new_leader_waits_as_well() -> None:
    fleet = begun()
    fleet.lists = False
    fleet.tell(a.DesiredState(1))
    fleet.run()
    fleet.restart()
    fleet.lists = True
    fleet.tell(a.DesiredState(1))
    fleet.reconnect()
    fleet.run()
    assert fleet.over is not None
    assert first_steps(fleet) == set(range(4, 12))


def test_all_agents_die_before_the_first_plan() -> None:
    fleet = begun()
    fleet.lists = False
    fleet.tell(a.DesiredState(1))
    fleet.run()
    for name in list(fleet.agents):
        fleet.kill(name)
    fleet.lists = True
    fleet.add_grid(1, 2, prefix="b")
    fleet.run()
    fleet.wait(70)
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert first_steps(fleet) == set(range(4, 12))


def test_a_loss_before_its_own_first_checkpoint_begins_there_again() -> None:
    fleet = begun(every=0)
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: committed(fleet, 6))
    for name in list(fleet.agents):
        fleet.kill(name)
    fleet.add_grid(1, 2, prefix="b")
    fleet.run()
    fleet.wait(70)
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    durable = fleet.arbiter.durable
    assert (durable.attempt, durable.manifest) == (1, ORIGIN)
    assert first_steps(fleet) == set(range(4, 12))


def test_a_wrong_one_fails_the_job_by_name() -> None:
    fleet = begun()
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    fleet.until(lambda: all(x.running for x in fleet.agents.values()))
    for name in list(fleet.agents):
        bad = BadCheckpoint(0, 4, "/a/step-4/layer-0 has been altered", fence=fleet.arbiter.fence)
        fleet.receive(name, bad)
    for agent in list(fleet.agents.values()):  # what is wrong is not taken
        agent.running = False
        fleet.act(agent, agent.executor.abandon())
    fleet.run()
    fleet.wait(200)
    assert fleet.over is not None
    assert (fleet.over.outcome, fleet.over.reason) == (Outcome.FAILED, Reason.CHECKPOINT_FAILED)
    assert "the checkpoint of step 4 was read and is wrong" in fleet.over.message
    assert "create a new BambooJob" in fleet.over.message
    assert not fleet.commits


def test_agents_that_do_not_know_the_field_fail_the_job_by_name() -> None:
    fleet = begun()
    fleet.sealed = []
    fleet.tell(a.DesiredState(1))
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.FAILED
    assert "their image has an older version of Bamboo" in fleet.over.message
    assert not fleet.commits


def test_it_cannot_be_ordered_back_to_step_0() -> None:
    fleet = begun()
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: committed(fleet, 5))
    fleet.tell(a.DesiredState(1, restore=RestoreSpec("r", 0)))
    (refused,) = [r for r in fleet.records if r.reason is EventReason.RESTORE_REFUSED]
    assert "choose one of 4, with a new" in refused.message
    fleet.run()
    assert first_steps(fleet) == set(range(4, 12))


@pytest.mark.parametrize("step", [4, 6])
def test_it_can_be_ordered_back_to_what_it_began_with_and_to_its_own(step: int) -> None:
    fleet = begun(every=6)
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: committed(fleet, 7) and len(fleet.sealed) > 1)
    fleet.tell(a.DesiredState(1, restore=RestoreSpec("r", step)))
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert fleet.arbiter.durable.manifest == Manifest(0, step, f"0/{step}", "d")
