"""Voters disagree: the step is void, durably, and is computed again; if they repeat it, restore."""

from __future__ import annotations

from bamboo_core.api.events import EventFact, EventReason, RestoreCause
from bamboo_core.arbiter import events as a
from bamboo_core.arbiter.durable import Durable, from_json, to_json
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import Claim, Dispute, Disputed, Stop

from .fleet import Fleet, spec

A0, A1, A2 = map(AgentId, ("a0", "a1", "a2"))
FOUND = (Dispute(1, 2, 3, (Claim(A0, 5, 6), Claim(A1, 5, 7))),)


def running() -> Fleet:
    fleet = Fleet(spec(stages=3, steps=40), layers=3)
    fleet.add_grid(1, 3)
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: (0, 2) in fleet.commits)
    return fleet


def dispute(fleet: Fleet, fence: Fence | None = None, step: int = 3) -> None:
    fleet.receive(A2, Disputed(fence or fleet.arbiter.fence, step, FOUND))


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
        " faulty device or memory"
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
    dispute(fleet)
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
