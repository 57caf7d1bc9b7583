"""Voters have different gradients or losses: the step is void, and if they repeat it, they end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.events import EventFact, EventReason
from bamboo_core.api.reasons import FailureCause
from bamboo_core.api.spec import CorruptionMode, CorruptionSpec
from bamboo_core.arbiter_state import events as a
from bamboo_core.model.claims import GRADIENTS
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import Claim, Dispute

from .fleet import Fleet, spec
from .test_corruption import dispute, running, told

A0, A1, A2 = map(AgentId, ("a0", "a1", "a2"))
TWO = Dispute(1, 2, GRADIENTS, (Claim(A0, 0, 6), Claim(A1, 0, 7)))
THREE = Dispute(1, 2, GRADIENTS, (Claim(A0, 0, 6), Claim(A1, 0, 7), Claim(A2, 0, 6)))


def twice(found: Dispute) -> Fleet:
    fleet = running()
    for _ in range(2):
        fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
        assert not told(fleet, EventReason.WORKER_FAILED)
        dispute(fleet, found=(found,))
    return fleet


@pytest.mark.parametrize("found", [TWO, THREE])
def test_a_difference_that_has_passed_costs_no_agent_and_no_committed_step(found: Dispute) -> None:
    fleet = running()
    dispute(fleet, found=(found,))
    assert fleet.arbiter.durable.void == fleet.arbiter.fence
    fleet.run()
    assert fleet.commits.keys() == {(0, step) for step in range(41)}
    for reason in (EventReason.WORKER_FAILED, EventReason.AGENT_LOST, EventReason.RESTORING):
        assert not told(fleet, reason)


@pytest.mark.parametrize(
    ("mode", "remedy"),
    [
        (CorruptionMode.OFF, "; with spec.corruption.mode Detect agents check their own work"),
        (CorruptionMode.DETECT, ""),
    ],
)
def test_the_event_names_agents_layer_step_and_remedy(mode: CorruptionMode, remedy: str) -> None:
    fleet = running(job=replace(spec(stages=3, steps=40), corruption=CorruptionSpec(mode)))
    dispute(fleet, found=(TWO,))
    (record,) = told(fleet, EventReason.CORRUPTION)
    assert record.message == (
        "a0 and a1 vote with different gradients or losses of layer 1 in step 3: look for a faulty"
        f" device or memory{remedy}"
    )
    assert record.facts[EventFact.MICROBATCH] == GRADIENTS
    assert record.severity == "Warning"


def test_who_differs_again_from_the_majority_ends_and_its_node_is_avoided() -> None:
    fleet = twice(THREE)
    (record,) = told(fleet, EventReason.WORKER_FAILED)
    assert (record.agents, record.facts[EventFact.CAUSE]) == ((A1,), FailureCause.CORRUPTION)
    assert "in step 3, and a1 is wrong: the others agree" in record.message
    assert fleet.arbiter.state.membership.fenced == {A1}
    assert fleet.arbiter.durable.void == fleet.arbiter.fence > Fence(0, 1, 2)
    fleet.run()
    assert fleet.commits.keys() == {(0, step) for step in range(41)}
    assert not told(fleet, EventReason.RESTORING)


def test_of_two_that_differ_again_both_end_since_nobody_knows_who_is_right() -> None:
    """Both counts are failures, so a job that never agrees ends by its backoffLimit."""
    fleet = twice(TWO)
    found = told(fleet, EventReason.WORKER_FAILED)
    assert [record.agents for record in found] == [(A0,), (A1,)]
    assert {record.facts[EventFact.CAUSE] for record in found} == {FailureCause.CORRUPTION}
    assert all("nobody knows who is right" in record.message for record in found)
    assert fleet.arbiter.state.membership.fenced == {A0, A1}
    assert fleet.arbiter.durable.question is None


def test_a_difference_that_is_known_only_after_the_commit_is_rolled_back() -> None:
    fleet = running()
    fleet.until(lambda: (0, 5) in fleet.commits)
    dispute(fleet, found=(TWO,))
    (record,) = told(fleet, EventReason.RESTORING)
    assert "what is wrong is committed" in record.message
    assert not told(fleet, EventReason.WORKER_FAILED)
    assert set(fleet.arbiter.durable.suspects) == {A0, A1}
