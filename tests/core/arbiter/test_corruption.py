"""Voters disagree: the step is void, durably, and is computed again; if they repeat it, restore."""

from __future__ import annotations

import pytest

from bamboo_core.api.events import EventFact, EventReason, RestoreCause
from bamboo_core.api.reasons import FailureCause
from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter_state import events as a
from bamboo_core.arbiter_state.durable import Durable, from_json, to_json
from bamboo_core.model.claims import Question
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import Claim, Dispute, Disputed, Failure, Notice, Stop

from .fleet import Fleet, spec

A0, A1, A2, A3 = map(AgentId, ("a0", "a1", "a2", "a3"))
FOUND = (Dispute(1, 2, 3, (Claim(A0, 5, 6), Claim(A1, 5, 7))),)


LASTING = (Dispute(1, 2, 3, (Claim(A0, 5, 6, 9), Claim(A1, 5, 7, 9))),)
DECIDED = (Dispute(1, 2, 3, (*LASTING[0].claims, Claim(A2, 5, 7, 9))),)


def running(stages: int = 3, job: JobSpec | None = None) -> Fleet:
    fleet = Fleet(job or spec(stages=stages, steps=40), layers=stages)
    fleet.add_grid(1, stages)
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: (0, 2) in fleet.commits)
    return fleet


def dispute(
    fleet: Fleet,
    fence: Fence | None = None,
    step: int = 3,
    found: tuple[Dispute, ...] = FOUND,
) -> None:
    fleet.receive(A2, Disputed(fence or fleet.arbiter.fence, step, found))


def questioning(stages: int = 4, found: tuple[Dispute, ...] = LASTING) -> Fleet:
    """Two agents have differed twice in step 3."""
    fleet = running(stages)
    for _ in range(2):
        fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
        dispute(fleet, found=found)
    return fleet


def told(fleet: Fleet, reason: EventReason) -> list[a.Record]:
    return [record for record in fleet.records if record.reason is reason]


def test_the_step_is_void_and_training_goes_on_with_everyone() -> None:
    fleet = running()
    before = fleet.arbiter.fence
    dispute(fleet)
    assert fleet.arbiter.durable.void == fleet.arbiter.fence == before._replace(epoch=2)
    fleet.run()
    assert fleet.arbiter.status().outcome is not None
    assert not told(fleet, EventReason.AGENT_LOST)
    assert not told(fleet, EventReason.RESTORING)


def test_the_event_names_layers_micro_batch_step_and_agents() -> None:
    fleet = running()
    dispute(fleet)
    (record,) = told(fleet, EventReason.CORRUPTION)
    assert record.message == (
        "a0 and a1 differ in the forward of layers 1 to 1 for micro-batch 3 of step 3: look for a"
        " faulty device or memory; with spec.corruption.mode Detect agents check their own work"
    )
    assert record.facts == {
        EventFact.AGENTS: "a0,a1",
        EventFact.STEP: 3,
        EventFact.LAYER: 1,
        EventFact.MICROBATCH: 3,
    }


def test_the_void_is_durable_before_the_first_stop_and_every_later_stop_has_it() -> None:
    fleet = running()
    fleet.kill("a2")  # so that a further STOP follows
    dispute(fleet)
    void = fleet.arbiter.durable.void
    fleet.run_wire()
    assert fleet.arbiter.state.stop() == Stop(fleet.arbiter.fence, void=void)
    fleet.restart()
    assert fleet.arbiter.durable.void == void
    assert fleet.arbiter.state.stop().void == void


def test_a_dispute_of_an_older_plan_counts_while_the_step_is_not_void() -> None:
    """Its claimants may be dead by now, and the others would agree about wrong results."""
    fleet = running()
    old = fleet.arbiter.fence
    fleet.kill("a1")
    dispute(fleet, old)
    void = fleet.arbiter.durable.void
    assert void == fleet.arbiter.fence > old
    dispute(fleet, old)
    assert fleet.arbiter.durable.void == void
    assert len(told(fleet, EventReason.CORRUPTION)) == 1


def test_a_dispute_of_an_attempt_that_is_over_means_nothing() -> None:
    fleet = running()
    dispute(fleet, Fence(7, 1, 1))
    assert fleet.arbiter.durable.void == Fence()


def test_who_repeats_a_dispute_is_left_out_and_nobody_is_blamed() -> None:
    fleet = running()
    for _ in range(2):
        fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
        dispute(fleet)
    (record,) = told(fleet, EventReason.RESTORING)
    assert record.facts[EventFact.CAUSE] == RestoreCause.CORRUPTION
    assert "a0 and a1 differ" in record.message
    assert "nobody knows who is right" in record.message
    assert {A0, A1} <= fleet.arbiter.state.membership.fenced
    assert not told(fleet, EventReason.WORKER_FAILED)


def test_a_dispute_after_a_restore_is_the_first_of_its_attempt() -> None:
    """Those that could not agree are gone: others deserve a second computation, too."""
    fleet = running()
    for _ in range(2):
        fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
        dispute(fleet)
    fleet.add_grid(1, 3, "b")
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    two = Claim(AgentId("b0"), 5, 6), Claim(AgentId("b1"), 5, 7)
    dispute(fleet, found=(Dispute(1, 2, 3, two),))
    fleet.run()
    assert len(told(fleet, EventReason.CORRUPTION)) == 3
    assert len(told(fleet, EventReason.RESTORING)) == 1


def test_a_dispute_about_a_later_step_is_another_one() -> None:
    fleet = running()
    for step in (3, 4):
        fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
        dispute(fleet, step=step)
    assert not told(fleet, EventReason.RESTORING)


def test_the_void_is_kept_in_the_status() -> None:
    assert from_json(to_json(Durable(void=Fence(1, 2, 3)))).void == Fence(1, 2, 3)
    assert "void" not in to_json(Durable())


def test_agents_that_differ_again_only_send_what_they_hold_while_others_decide() -> None:
    fleet = questioning()
    assert (
        from_json(fleet.stored).question
        == fleet.arbiter.durable.question
        == Question(3, LASTING[0])
    )
    assert fleet.arbiter.durable.void == fleet.arbiter.fence
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    plan = fleet.arbiter.status().plan
    assert plan is not None
    assert plan.live == (A2, A3)
    assert set(plan.leaving) == set(plan.short_notice) == {A0, A1}
    assert fleet.requests[-1].question == Question(3, LASTING[0])
    assert not told(fleet, EventReason.AGENT_LOST)


def test_the_third_claim_decides_and_only_the_odd_one_goes() -> None:
    fleet = questioning()
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    before = fleet.arbiter.fence
    dispute(fleet, found=DECIDED)
    assert fleet.arbiter.durable.void == fleet.arbiter.fence > before
    assert fleet.arbiter.durable.question is None
    assert fleet.arbiter.state.membership.fenced == {A0}
    (record,) = told(fleet, EventReason.WORKER_FAILED)
    assert record.agents == (A0,)
    assert record.facts[EventFact.CAUSE] == FailureCause.CORRUPTION
    assert "of step 3, and a0 is wrong: the others agree" in record.message
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    plan = fleet.arbiter.status().plan
    assert plan is not None
    assert plan.live == (A1, A2, A3)
    fleet.run()
    assert fleet.commits.keys() == {(0, step) for step in range(41)}
    assert not told(fleet, EventReason.RESTORING)


def test_the_verdict_counts_when_the_odd_one_is_dead_and_after_a_restart() -> None:
    fleet = questioning()
    fleet.run_wire()
    fleet.kill("a0")
    fleet.restart()
    fleet.tell(a.DesiredState(1))
    fleet.tell(a.Lost(A0, True, "killed"))
    fleet.reconnect()
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    plan = fleet.arbiter.status().plan
    assert plan is not None
    assert A1 not in plan.live
    dispute(fleet, found=DECIDED)
    (record,) = told(fleet, EventReason.WORKER_FAILED)
    assert record.agents == (A0,)
    assert not fleet.arbiter.state.questioned


def test_if_the_third_agrees_with_nobody_training_goes_on_from_a_checkpoint() -> None:
    fleet = questioning()
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    dispute(fleet, found=(Dispute(1, 2, 3, (*LASTING[0].claims, Claim(A2, 5, 8, 9))),))
    (record,) = told(fleet, EventReason.RESTORING)
    assert record.facts[EventFact.CAUSE] == RestoreCause.CORRUPTION
    assert fleet.arbiter.state.membership.fenced == {A0, A1, A2}
    assert not told(fleet, EventReason.WORKER_FAILED)
    assert fleet.arbiter.durable.question is None


def test_with_too_few_others_training_goes_on_from_a_checkpoint() -> None:
    fleet = questioning(stages=3)
    fleet.until(lambda: bool(told(fleet, EventReason.RESTORING)))
    (record,) = told(fleet, EventReason.RESTORING)
    assert record.facts[EventFact.CAUSE] == RestoreCause.CORRUPTION
    assert "too few other agents are left to decide" in record.message
    assert {A0, A1} == fleet.arbiter.state.membership.fenced
    assert not told(fleet, EventReason.WORKER_FAILED)


def test_agents_on_standby_may_decide() -> None:
    fleet = running()
    fleet.add("b0", "z1")
    for _ in range(2):
        fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
        dispute(fleet, found=LASTING)
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    plan = fleet.arbiter.status().plan
    assert plan is not None
    assert plan.live == (A2, AgentId("b0"))


def test_both_take_part_again_if_the_step_is_committed_and_nobody_has_decided() -> None:
    fleet = questioning()
    fleet.until(lambda: (0, 3) in fleet.commits)
    assert fleet.arbiter.durable.question is None
    fleet.until(lambda: fleet.arbiter.state.membership.standby() == {A0, A1})
    fleet.idle(2)
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    plan = fleet.arbiter.status().plan
    assert plan is not None
    assert plan.live == (A0, A1, A2, A3)
    assert not told(fleet, EventReason.AGENT_LOST)
    assert not told(fleet, EventReason.RESTORING)


def test_a_question_is_kept_in_the_status() -> None:
    question = Question(3, DECIDED[0])
    assert from_json(to_json(Durable(question=question))).question == question
    assert "question" not in to_json(Durable())


def disputing() -> Fleet:
    """Two agents have differed after step 9; the checkpoint of step 8 is verified."""
    fleet = Fleet(spec(stages=3, steps=40, every=4), layers=3)
    fleet.add_grid(1, 3)
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: (0, 9) in fleet.commits)
    fleet.add("b0", "z1")
    fleet.add("b1", "z2")
    dispute(fleet, step=fleet.arbiter.status().progress.committed + 1)
    return fleet


def assert_rolled_back(fleet: Fleet, gone: str, step: int = 8) -> None:
    (record,) = told(fleet, EventReason.RESTORING)
    assert record.facts[EventFact.CAUSE] == RestoreCause.CORRUPTION
    assert record.facts[EventFact.STEP] == step
    assert "a0 and a1 differ in step" in record.message
    assert f"and {gone} cannot compute it again: nobody knows whose" in record.message
    assert fleet.arbiter.durable.rollbacks == 1
    assert fleet.arbiter.durable.disputants == ()
    assert not told(fleet, EventReason.WORKER_FAILED)


@pytest.mark.parametrize("name", ["a0", "a1"])
def test_if_one_that_differs_is_lost_nobody_knows_whose_layers_are_right(name: str) -> None:
    """Its copy may have been the right one, and nothing would be compared with the other."""
    fleet = disputing()
    assert from_json(to_json(fleet.arbiter.durable)).disputants == (A0, A1)
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    fleet.kill(name)
    fleet.until(lambda: bool(told(fleet, EventReason.RESTORING)))
    assert_rolled_back(fleet, name)


def test_one_that_differs_may_be_lost_before_the_dispute_is_known() -> None:
    fleet = disputing()
    before = fleet.arbiter.fence
    fleet.until(lambda: fleet.arbiter.durable.disputants == ())
    fleet.kill("a1")
    dispute(fleet, before, step=fleet.arbiter.status().progress.committed + 1)
    assert not told(fleet, EventReason.RESTORING)  # the others report first
    fleet.until(lambda: bool(told(fleet, EventReason.RESTORING)))
    assert fleet.arbiter.durable.rollbacks == 1


def test_one_that_differs_may_be_lost_under_another_leader() -> None:
    fleet = disputing()
    fleet.run_wire()
    fleet.restart()
    fleet.tell(a.DesiredState(1))
    fleet.kill("a1")
    fleet.reconnect()
    fleet.until(lambda: bool(told(fleet, EventReason.RESTORING)))
    assert_rolled_back(fleet, "a1", step=4)  # this leader has not heard that step 8 is committed


def test_one_that_differs_may_have_no_time_to_compute_the_step_again() -> None:
    fleet = disputing()
    fleet.receive(A1, Notice(0.1, "preempted"))
    fleet.until(lambda: bool(told(fleet, EventReason.RESTORING)))
    assert_rolled_back(fleet, "a1")


def test_an_agent_that_does_not_differ_may_be_lost() -> None:
    fleet = disputing()
    fleet.kill("a2")
    fleet.run()
    assert not told(fleet, EventReason.RESTORING)


def test_once_the_step_is_committed_any_agent_may_be_lost() -> None:
    """All copies have been compared with the votes for it."""
    fleet = disputing()
    step = fleet.arbiter.durable.voided[-1]
    fleet.until(lambda: fleet.arbiter.status().progress.committed >= step)
    assert fleet.arbiter.durable.disputants == ()
    fleet.kill("a1")
    fleet.run()
    assert not told(fleet, EventReason.RESTORING)


def test_who_contradicts_itself_was_wrong_so_the_layers_of_the_other_are_right() -> None:
    fleet = disputing()
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    fleet.receive(A1, Failure(FailureCause.CORRUPTION, "another result", False, 1))
    assert fleet.arbiter.durable.disputants == (A0,)
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    assert fleet.arbiter.durable.void == fleet.arbiter.durable.plan, "it may have sent wrong ones"
    fleet.run()
    assert fleet.commits.keys() == {(0, step) for step in range(41)}
    assert not told(fleet, EventReason.RESTORING)


def test_agents_that_differ_about_a_gradient_may_be_lost() -> None:
    """No layer is wrong because of it."""
    fleet = running()
    fleet.add("b0", "z1")
    dispute(fleet, found=(Dispute(1, 2, -2, (Claim(A0, 0, 6), Claim(A1, 0, 7))),))
    assert fleet.arbiter.durable.disputants == ()
    fleet.kill("a1")
    fleet.run()
    assert not told(fleet, EventReason.RESTORING)


INPUT = (Dispute(1, 2, 3, (Claim(A1, 5, 6),)),)  # what went in is not what A0 says it has made


def test_an_input_of_a_lost_agent_leaves_nobody_who_knows_whose_layers_are_right() -> None:
    fleet = disputing()
    fleet.until(lambda: fleet.arbiter.durable.disputants == ())
    fleet.kill("a2")
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    dispute(fleet, step=fleet.arbiter.durable.target, found=INPUT)
    (record,) = told(fleet, EventReason.RESTORING)
    assert "and who has made the input may be gone: nobody knows whose layers" in record.message
    assert record.facts[EventFact.STEP] == 8
    assert not told(fleet, EventReason.WORKER_FAILED)
    assert fleet.arbiter.durable.suspects == ()


def test_an_input_that_has_changed_since_its_maker_sent_it_costs_one_step() -> None:
    """The whole step ran in one plan, so the agent that made it is there."""
    fleet = running()
    dispute(fleet, step=fleet.arbiter.status().progress.committed + 1, found=INPUT)
    fleet.run()
    assert len(told(fleet, EventReason.CORRUPTION)) == 1
    assert not told(fleet, EventReason.RESTORING)


def test_a_step_in_dispute_is_computed_again_as_a_whole() -> None:
    """Else an agent whose fault lasts might compute what no other one computes any more."""
    fleet = disputing()
    step = fleet.arbiter.durable.voided[-1]
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    first = fleet.arbiter.durable.void
    fleet.kill("a2")
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    again = fleet.arbiter.durable.void
    assert again == fleet.arbiter.durable.plan > first
    assert fleet.arbiter.durable.target == step
    fleet.until(lambda: (0, step) in fleet.commits)
    fleet.until(lambda: fleet.arbiter.durable.disputants == ())
    fleet.kill("a1")
    fleet.run()
    assert fleet.arbiter.durable.void == again
