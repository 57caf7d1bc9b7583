"""``spec.training.steps`` of a complete job is raised: it goes on from its last checkpoint.

It ends at exactly the new number, and repeats no committed step.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.events import EventFact, EventReason, RestoreCause
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import Reason
from bamboo_core.arbiter.arbiter import Arbiter
from bamboo_core.arbiter_state import events as a
from bamboo_core.arbiter_state.durable import Durable, from_json, to_json
from bamboo_core.model.ids import Fence
from bamboo_core.protocol.messages import Manifest

from .fleet import Fleet, spec


def complete(steps: int = 6) -> Fleet:
    """A job that has run to its end."""
    fleet = Fleet(spec(steps=steps))
    fleet.tell(a.DesiredState(1))
    fleet.add_grid(1, 2)
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    return fleet


def lead(facts: Durable, steps: int, *, every: int = 2) -> Arbiter:
    job = a.ArbiterJob("ns/job", "uid", spec(steps=steps, every=every), "{}", a.Timing())
    return Arbiter(job, facts, facts.term + 1)


def as_read(facts: Durable) -> Durable:
    return from_json(to_json(facts))


def test_a_raised_job_goes_on_to_exactly_the_new_number() -> None:
    before = complete(6)
    facts = as_read(before.arbiter.durable)
    assert facts.steps == 6
    fleet = Fleet(spec(steps=11), durable=facts)
    fleet.sealed = before.sealed
    assert fleet.arbiter.durable.outcome is Outcome.SUSPENDED
    fleet.tell(a.DesiredState(1))
    assert fleet.arbiter.durable.outcome is None
    assert fleet.arbiter.durable.steps == 11
    restoring = next(r for r in fleet.records if r.reason is EventReason.RESTORING)
    assert restoring.facts[EventFact.CAUSE] == RestoreCause.RESUMED
    assert restoring.facts[EventFact.REPEATED_STEPS] == 0
    assert restoring.facts[EventFact.STEP] == 6
    assert "spec.training.steps is raised to 11" in restoring.message
    fleet.add_grid(1, 2, prefix="b")
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert {step for attempt, step in fleet.commits if attempt == 1 and step < 11} == {
        *range(6, 11)
    }
    facts = as_read(fleet.arbiter.durable)
    assert (facts.steps, facts.committed) == (11, 10)
    assert facts.manifests[-1].step == 11


def test_a_raised_job_may_be_suspended_before_it_goes_on() -> None:
    facts = as_read(complete(6).arbiter.durable)
    arbiter = lead(facts, 8)
    arbiter.handle(a.DesiredState(1, suspended=True), 0.0)
    assert arbiter.durable.outcome is Outcome.SUSPENDED
    assert arbiter.durable.attempt == facts.attempt
    again = lead(as_read(arbiter.durable), 8)
    again.handle(a.DesiredState(1), 0.0)
    assert again.durable.outcome is None
    assert again.durable.attempt == facts.attempt + 1


def test_a_complete_job_stays_complete_while_the_number_is_the_same() -> None:
    facts = as_read(complete(6).arbiter.durable)
    arbiter = lead(facts, 6)
    arbiter.handle(a.DesiredState(1), 0.0)
    assert arbiter.durable.outcome is Outcome.COMPLETE


@pytest.mark.parametrize(("steps", "outcome"), [(4, Outcome.COMPLETE), (5, None)])
def test_facts_of_an_earlier_version_do_not_name_the_number(
    steps: int, outcome: Outcome | None
) -> None:
    facts = replace(as_read(complete(4).arbiter.durable), steps=0)
    assert "steps" not in to_json(facts)
    arbiter = lead(as_read(facts), steps)
    arbiter.handle(a.DesiredState(1), 0.0)
    assert arbiter.durable.outcome is outcome


def test_without_a_checkpoint_nothing_goes_on() -> None:
    job = replace(spec(steps=8), checkpoint=None)
    facts = Durable(term=1, outcome=Outcome.COMPLETE, committed=3)
    arbiter = Arbiter(a.ArbiterJob("ns/job", "uid", job, "{}", a.Timing()), facts, 2)
    arbiter.handle(a.DesiredState(1), 0.0)
    assert arbiter.durable.outcome is Outcome.COMPLETE


def test_a_failed_job_stays_failed() -> None:
    done = (Manifest(0, 4, "/x/4", 1),)
    facts = Durable(
        term=1, steps=4, plan=Fence(0, 1, 1), outcome=Outcome.FAILED, committed=3, manifests=done,
        reason=str(Reason.CHECKPOINT_FAILED),
    )  # fmt: skip
    arbiter = lead(facts, 9)
    arbiter.handle(a.DesiredState(1), 0.0)
    assert arbiter.durable.outcome is Outcome.FAILED
