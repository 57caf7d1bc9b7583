"""Something wrong is committed: training goes on from a verified checkpoint, and says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.events import EventFact, EventReason, RestoreCause
from bamboo_core.api.reasons import FailureCause
from bamboo_core.arbiter_state import events as a
from bamboo_core.arbiter_state.durable import Durable, Fork, from_json, to_json, verified
from bamboo_core.job import training_view
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import Claim, Dispute, Disputed, Manifest, Sealed

from .fleet import Fleet, spec

A0, A1, A2 = map(AgentId, ("a0", "a1", "a2"))
TWO = Dispute(1, 2, -1, (Claim(A0, 0, 6), Claim(A1, 0, 7)))
THREE = Dispute(1, 2, -1, (Claim(A0, 0, 6), Claim(A1, 0, 7), Claim(A2, 0, 7)))
FORWARD = Dispute(1, 2, 3, (Claim(A0, 5, 6), Claim(A1, 5, 7)))


def running(every: int = 4, until: int = 9) -> Fleet:
    fleet = Fleet(spec(stages=3, steps=40, every=every), layers=3)
    fleet.add_grid(1, 3)
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: (0, until) in fleet.commits)
    return fleet


def dispute(fleet: Fleet, step: int, *found: Dispute, fence: Fence | None = None) -> None:
    fleet.receive(A2, Disputed(fence or fleet.arbiter.fence, step, found))


def told(fleet: Fleet, reason: EventReason) -> list[a.Record]:
    return [record for record in fleet.records if record.reason is reason]


def test_copies_that_differ_restore_the_last_verified_checkpoint() -> None:
    fleet = running()
    newest = fleet.arbiter.status().progress.committed
    fleet.receive(A1, Sealed(Manifest(0, 12, "0/12", "d")))  # its copies are being compared
    dispute(fleet, 12, TWO)
    (found,) = told(fleet, EventReason.CORRUPTION)
    assert found.message == (
        "a0 and a1 hold different copies of layer 1 in step 12: look for a faulty device or memory;"
        " with spec.corruption.mode Detect agents check their own work"
    )
    assert found.facts == {
        EventFact.AGENTS: "a0,a1",
        EventFact.STEP: 12,
        EventFact.LAYER: 1,
        EventFact.MICROBATCH: -1,
    }
    (restoring,) = told(fleet, EventReason.RESTORING)
    assert restoring.facts[EventFact.CAUSE] == RestoreCause.CORRUPTION
    assert restoring.facts[EventFact.STEP] == 8
    assert restoring.facts[EventFact.REPEATED_STEPS] == max(newest, 11) - 7
    assert "attempt 1 from the checkpoint of step 8" in restoring.message
    assert "(no checkpoint of a later step is verified, so not used: 12)" in restoring.message
    fleet.run()
    assert {step for attempt, step in fleet.commits if attempt == 1} == set(range(8, 41))
    assert fleet.arbiter.durable.rollbacks == 1
    seen = training_view.view(
        fleet.arbiter.status(),
        fleet.arbiter.durable,
        dismissed=frozenset(),
        departing=frozenset(),
        reported=training_view.LastReported(),
    )
    assert seen.rollbacks == 1


def test_without_a_verified_checkpoint_training_begins_from_the_start() -> None:
    fleet = running(every=0)
    dispute(fleet, 10, TWO)
    (restoring,) = told(fleet, EventReason.RESTORING)
    assert restoring.facts[EventFact.STEP] == 0
    assert "attempt 1 from the start: 10 committed steps repeated" in restoring.message
    fleet.run()
    assert {step for attempt, step in fleet.commits if attempt == 1} == set(range(41))


def test_nobody_knows_which_of_two_is_wrong_so_both_stay_until_they_differ_again() -> None:
    fleet = running()
    dispute(fleet, 12, TWO)
    assert not told(fleet, EventReason.WORKER_FAILED)
    assert fleet.arbiter.durable.suspects == (A0, A1)
    fleet.until(lambda: (1, 13) in fleet.commits)
    fleet.restart()
    fleet.tell(a.DesiredState(1))
    fleet.reconnect()
    fleet.until(lambda: (1, 17) in fleet.commits)
    again = Dispute(2, 3, -1, (Claim(A1, 0, 6), Claim(A2, 0, 7)))
    dispute(fleet, 20, again)
    (blamed,) = told(fleet, EventReason.WORKER_FAILED)
    assert blamed.agents == (A1,)
    assert blamed.facts[EventFact.CAUSE] == FailureCause.CORRUPTION
    assert fleet.arbiter.state.membership.fenced == {A1}
    assert fleet.arbiter.durable.suspects == (A0, A2)
    assert fleet.arbiter.durable.rollbacks == 2


def test_the_one_that_differs_from_two_equal_copies_is_replaced() -> None:
    fleet = running()
    dispute(fleet, 12, THREE)
    (blamed,) = told(fleet, EventReason.WORKER_FAILED)
    assert blamed.agents == (A0,)
    assert blamed.facts[EventFact.CAUSE] == FailureCause.CORRUPTION
    assert fleet.arbiter.state.membership.fenced == {A0}
    assert fleet.arbiter.durable.suspects == ()


def test_two_equal_copies_prove_nothing_if_one_may_have_been_copied_from_the_other() -> None:
    fleet = running(until=5)
    fleet.arbiter.state.copied_at = 8
    fleet.until(lambda: (0, 9) in fleet.commits)
    dispute(fleet, 12, THREE)
    assert not told(fleet, EventReason.WORKER_FAILED)
    assert fleet.arbiter.durable.suspects == (A0, A1, A2)


def test_a_dispute_that_comes_after_the_commit_of_its_step_restores() -> None:
    """Its teller was left out, and the others have agreed about wrong results."""
    fleet = running()
    dispute(fleet, 7, FORWARD)
    (restoring,) = told(fleet, EventReason.RESTORING)
    assert restoring.facts[EventFact.CAUSE] == RestoreCause.CORRUPTION
    assert restoring.facts[EventFact.STEP] == 4
    assert "and what is wrong is committed" in restoring.message
    assert fleet.arbiter.durable.void == Fence()


def test_a_dispute_that_was_settled_says_nothing_after_the_commit() -> None:
    fleet = running()
    step = max(step for _, step in fleet.commits) + 1
    before = fleet.arbiter.fence
    dispute(fleet, step, FORWARD)
    fleet.until(lambda: (0, step + 2) in fleet.commits)
    dispute(fleet, step, FORWARD, fence=before)
    assert len(told(fleet, EventReason.CORRUPTION)) == 1
    assert not told(fleet, EventReason.RESTORING)


def test_an_older_dispute_counts_after_the_void_of_a_later_step() -> None:
    fleet = running()
    before = fleet.arbiter.fence
    dispute(fleet, max(step for _, step in fleet.commits) + 1, FORWARD)
    dispute(fleet, 7, FORWARD, fence=before)
    (restoring,) = told(fleet, EventReason.RESTORING)
    assert restoring.facts[EventFact.STEP] == 4


def test_a_void_step_that_turns_out_to_be_committed_restores() -> None:
    """The commit was under way when the operator heard of the dispute."""
    fleet = running()
    agent = fleet.agents[A0]
    step = fleet.arbiter.status().progress.committed + 1
    dispute(fleet, step, FORWARD)
    newest = agent.executor.commits[max(agent.executor.commits)]
    agent.executor.commits[step] = replace(newest, step=step)
    fleet.until(lambda: bool(told(fleet, EventReason.RESTORING)))
    (restoring,) = told(fleet, EventReason.RESTORING)
    assert f"step {step} was in dispute" in restoring.message
    assert restoring.facts[EventFact.STEP] == 8


def test_which_checkpoints_are_verified() -> None:
    manifests = tuple(Manifest(n, s, "", "") for n, s in ((0, 4), (0, 8), (1, 6), (1, 8), (1, 12)))
    durable = Durable(attempt=1, manifests=manifests, forks=(Fork(1, 4),))

    def steps(committed: float, every: int) -> list[int]:
        return [m.step for m in verified(durable, committed, every)]

    assert steps(11, 4) == [4, 8]
    assert steps(12, 4) == [4, 8, 12]
    assert steps(7, 4) == [4]
    assert steps(99, 6) == [4, 6, 12]
    assert [m.step for m in verified(durable, 99, 0)] == [4]


@pytest.mark.parametrize("count", [1, 40])
def test_the_facts_are_kept_in_the_status_and_stay_short(count: int) -> None:
    agents = tuple(AgentId(f"a{n}") for n in range(count))
    durable = Durable(voided=tuple(range(count)), suspects=agents, rollbacks=count)
    assert durable.voided == tuple(range(count))[-8:]
    assert durable.suspects == agents[-32:]
    assert from_json(to_json(durable)) == durable
    assert not {"voided", "suspects", "rollbacks"} & to_json(Durable()).keys()
