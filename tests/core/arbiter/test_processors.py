"""The job remembers on which kind of processor it was computed, and tells when that changes."""

from __future__ import annotations

import pytest

from bamboo_core.api.events import EventFact, EventReason, Severity
from bamboo_core.api.outcome import Outcome
from bamboo_core.arbiter_state import events as a
from bamboo_core.arbiter_state.durable import Durable, Fork, computed_on
from bamboo_core.job.training_view import LastReported, ended, view
from bamboo_core.model.processors import ProcessorKind, merged
from bamboo_core.protocol.messages import Fingerprint

from .fleet import Fleet, committed, is_running, spec

ONE, TWO = Fingerprint(device="cpu:ONE"), Fingerprint(device="cpu:TWO")
KNOWN, OTHER = Fingerprint(device="cpu", products="1" * 64), Fingerprint(device="cpu", products="2")


def grid(fleet: Fleet, prefix: str, fingerprint: Fingerprint, agents: int = 2) -> None:
    for n in range(agents):
        fleet.add(f"{prefix}{n}", f"z{n % 2}", fingerprint=fingerprint)


def trained(fingerprint: Fingerprint, *, every: int = 2, steps: int = 40, until: int = 5) -> Fleet:
    """A job of 1 x 2 that has committed step ``until``."""
    fleet = Fleet(spec(every=every, steps=steps))
    grid(fleet, "a", fingerprint)
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: committed(fleet, until))
    return fleet


def lose_all(fleet: Fleet) -> None:
    for name in list(fleet.agents):
        fleet.kill(name)


def changes(fleet: Fleet) -> list[a.Record]:
    return [r for r in fleet.records if r.reason is EventReason.PROCESSOR_CHANGED]


def shown(fleet: Fleet) -> tuple[ProcessorKind, ...]:
    """The kinds that users see."""
    return ended(fleet.arbiter.durable, LastReported()).processors


def spans(fleet: Fleet) -> list[tuple[str, int]]:
    return [(p.device, p.step) for p in shown(fleet)]


def test_the_kind_of_the_first_plan_is_remembered_before_a_directive_leaves() -> None:
    fleet = trained(KNOWN, until=0)
    kinds = (ProcessorKind("cpu", "1" * 64),)
    assert fleet.arbiter.durable.processors == kinds
    planned = next(p.durable for p in fleet.persists if p.durable.pipelines)
    assert planned.processors == kinds
    assert not changes(fleet)


def test_a_restore_on_another_kind_goes_on_and_is_told() -> None:
    fleet = trained(ONE)
    lose_all(fleet)
    grid(fleet, "b", TWO)
    fleet.until(lambda: committed(fleet, 8))
    (told,) = changes(fleet)
    step = int(told.facts[EventFact.STEP])
    assert told.severity is Severity.WARNING
    assert step == fleet.arbiter.durable.manifest.step > 0  # type: ignore[union-attr]
    assert told.facts == {
        EventFact.ATTEMPT: 1,
        EventFact.STEP: step,
        EventFact.PROCESSOR: "cpu:TWO",
        EventFact.PROCESSOR_BEFORE: "cpu:ONE",
    }
    assert f"from step {step} on another kind of processor: cpu:TWO, before cpu:ONE" in told.message
    assert f"from step {step} on the bits are not those of a run on one kind" in told.message
    assert "nodeSelector in spec.worker.podTemplate" in told.message
    assert spans(fleet) == [("cpu:ONE", 0), ("cpu:TWO", step)]


def test_processors_of_one_name_may_differ_in_their_products() -> None:
    fleet = trained(KNOWN)
    lose_all(fleet)
    grid(fleet, "b", OTHER)
    fleet.until(lambda: committed(fleet, 8))
    (told,) = changes(fleet)
    assert "cpu (products 2), before cpu (products 111111111111);" in told.message


def test_a_restore_on_the_same_kind_is_not_told() -> None:
    fleet = trained(KNOWN)
    lose_all(fleet)
    grid(fleet, "b", KNOWN)
    fleet.until(lambda: committed(fleet, 8))
    assert fleet.arbiter.durable.attempt == 1
    assert not changes(fleet)
    assert spans(fleet) == [("cpu", 0)]


def test_each_change_is_told_once_also_under_a_new_leader() -> None:
    fleet = trained(ONE)
    lose_all(fleet)
    grid(fleet, "b", TWO)
    fleet.until(lambda: committed(fleet, 8))
    fleet.restart()
    fleet.tell(a.DesiredState(1))
    fleet.reconnect()
    fleet.until(lambda: committed(fleet, 10))
    fleet.kill("b0")
    fleet.add("b2", "z0", fingerprint=TWO)
    fleet.until(lambda: committed(fleet, 14))
    assert len(changes(fleet)) == 1
    lose_all(fleet)
    grid(fleet, "c", ONE)
    fleet.until(lambda: committed(fleet, 20))
    assert [r.facts[EventFact.PROCESSOR] for r in changes(fleet)] == ["cpu:TWO", "cpu:ONE"]
    assert [device for device, _ in spans(fleet)] == ["cpu:ONE", "cpu:TWO", "cpu:ONE"]


def test_a_change_while_the_job_was_suspended_is_told() -> None:
    fleet = trained(ONE)
    fleet.tell(a.DesiredState(1, suspended=True))
    fleet.run()
    assert fleet.arbiter.durable.outcome is Outcome.SUSPENDED
    fleet.restart()
    fleet.tell(a.DesiredState(1))
    grid(fleet, "b", TWO)
    fleet.until(lambda: is_running(fleet))
    (told,) = changes(fleet)
    assert told.facts[EventFact.STEP] == fleet.arbiter.durable.target > 5


def test_nothing_of_another_kind_is_left_when_the_job_begins_anew() -> None:
    fleet = trained(ONE, every=0)
    lose_all(fleet)
    grid(fleet, "b", TWO)
    fleet.until(lambda: committed(fleet, 2))
    (told,) = changes(fleet)
    assert "no step is left that was computed on another kind" in told.message
    assert "not those of a run" not in told.message
    assert spans(fleet) == [("cpu:TWO", 0)]


def test_a_checkpoint_of_before_the_change_is_of_one_kind() -> None:
    """The second kind has computed nothing that is left, and the first one goes on."""
    fleet = trained(ONE)
    lose_all(fleet)
    grid(fleet, "b", TWO)
    fleet.until(lambda: is_running(fleet))  # it has sealed nothing
    lose_all(fleet)
    grid(fleet, "c", ONE)
    fleet.until(lambda: committed(fleet, 8))
    assert fleet.arbiter.durable.attempt == 2
    assert len(changes(fleet)) == 2
    assert "no step is left that was computed on another kind" in changes(fleet)[1].message
    assert spans(fleet) == [("cpu:ONE", 0)]


def test_the_view_of_users_has_the_kinds_also_of_a_job_that_has_ended() -> None:
    fleet = trained(ONE, steps=6)
    known = fleet.arbiter.durable
    found = view(
        fleet.arbiter.status(),
        known,
        dismissed=frozenset(),
        departing=frozenset(),
        reported=LastReported(),
    )
    assert found.processors == known.processors == (ProcessorKind("cpu:ONE"),)
    fleet.run()
    assert fleet.over is not None
    assert shown(fleet) == known.processors


def test_each_attempt_that_goes_on_with_the_state_of_another_kind_is_told() -> None:
    """The first one on the second kind has committed nothing."""
    fleet = trained(ONE)
    lose_all(fleet)
    grid(fleet, "b", TWO)
    fleet.until(lambda: is_running(fleet))
    lose_all(fleet)
    grid(fleet, "c", TWO)
    fleet.until(lambda: committed(fleet, 8))
    assert [r.facts[EventFact.ATTEMPT] for r in changes(fleet)] == [1, 2]
    assert [device for device, _ in spans(fleet)] == ["cpu:ONE", "cpu:TWO"]


# ---------------------------------------------------------------- what is not known


@pytest.mark.parametrize("first", [Fingerprint(device="cpu"), Fingerprint()])
def test_an_empty_value_equals_any_and_is_filled_in(first: Fingerprint) -> None:
    fleet = trained(first)
    lose_all(fleet)
    grid(fleet, "b", KNOWN)
    fleet.until(lambda: committed(fleet, 8))
    lose_all(fleet)
    grid(fleet, "c", Fingerprint(device="cpu"))
    fleet.until(lambda: committed(fleet, 12))
    assert not changes(fleet)
    assert shown(fleet) == (ProcessorKind("cpu", "1" * 64),)
    lose_all(fleet)
    grid(fleet, "d", OTHER)
    fleet.until(lambda: committed(fleet, 16))
    assert len(changes(fleet)) == 1


def test_a_job_of_the_version_before_is_told_of_changes_from_then_on() -> None:
    fleet = trained(ONE)
    lose_all(fleet)
    fleet.run()
    del fleet.stored["processors"]
    fleet.restart()
    fleet.tell(a.DesiredState(1))
    grid(fleet, "b", TWO)
    fleet.until(lambda: committed(fleet, 10))
    assert not changes(fleet)  # nobody knows what was before
    assert spans(fleet) == [("cpu:TWO", fleet.arbiter.durable.manifest.step)]  # type: ignore[union-attr]
    lose_all(fleet)
    grid(fleet, "c", ONE)
    fleet.until(lambda: committed(fleet, 16))
    assert len(changes(fleet)) == 1


# ---------------------------------------------------------------- who wins at a start


def restored(own: int, others: int, *, pipelines: int) -> Fleet:
    """All agents of ONE are lost; so many of each kind come, those of TWO first."""
    fleet = Fleet(spec(pipelines=2, steps=40))
    grid(fleet, "a", ONE, 4)
    fleet.tell(a.DesiredState(2))
    fleet.until(lambda: committed(fleet, 5))
    lose_all(fleet)
    fleet.dismissed.clear()
    fleet.tell(a.DesiredState(9, least=9))  # until all are here
    fleet.run()
    grid(fleet, "b", TWO, others)
    grid(fleet, "c", ONE, own)
    fleet.tell(a.DesiredState(pipelines))
    fleet.until(lambda: is_running(fleet))
    return fleet


@pytest.mark.parametrize(
    ("own", "others", "pipelines", "winner"),
    [
        (2, 2, 2, "c"),  # none are more
        (2, 4, 1, "c"),  # they are enough
        (2, 4, 2, "b"),
        (1, 4, 1, "b"),
        (3, 2, 2, "c"),
    ],
)
def test_the_remembered_kind_is_preferred(
    own: int, others: int, pipelines: int, winner: str
) -> None:
    fleet = restored(own, others, pipelines=pipelines)
    assert {str(member)[0] for member in fleet.arbiter.durable.members} == {winner}
    assert len(changes(fleet)) == (winner == "b")
    refused = {r.agents[0][0] for r in fleet.records if r.reason is EventReason.AGENT_REFUSED}
    assert refused == {"b" if winner == "c" else "c"}


# ---------------------------------------------------------------- the list


def test_the_list_is_bounded_and_keeps_the_first() -> None:
    kinds = tuple(ProcessorKind(f"cpu:{step}", "", step) for step in range(12))
    known = Durable(processors=kinds)
    assert [kind.step for kind in known.processors] == [0, 5, 6, 7, 8, 9, 10, 11]
    assert [kind.step for kind in ended(known, LastReported()).processors] == [0, 9, 10, 11]


def test_texts_of_agents_are_cut() -> None:
    kind = ProcessorKind("d" * 1000, "p" * 1000)
    assert (len(kind.device), len(kind.products)) == (128, 64)
    assert kind.is_like(ProcessorKind("d" * 1001, "p" * 1001))


@pytest.mark.parametrize(
    ("forks", "left"),
    [
        ([], ["one"]),
        ([Fork(1, 8)], ["one", "two"]),
        ([Fork(1, 8), Fork(2, 12)], ["one", "two"]),
        ([Fork(1, 8), Fork(2, 8)], ["one"]),  # attempt 2 begins where the second one had begun
        ([Fork(1, 8), Fork(2, 0)], []),
        ([Fork(2, 12)], ["one"]),  # attempt 1 has committed nothing: this is of attempt 0
    ],
)
def test_what_a_restore_has_undone_is_of_no_kind(forks: list[Fork], left: list[str]) -> None:
    kinds = (ProcessorKind("one"), ProcessorKind("two", "", 8, 1))
    attempt = forks[-1].attempt if forks else 0
    known = Durable(attempt=attempt, forks=tuple(forks), processors=kinds)
    assert [kind.device for kind in computed_on(known)] == left


def test_neighbours_that_are_alike_are_one() -> None:
    kinds = (ProcessorKind("cpu"), ProcessorKind("cpu", "1", 4, 1), ProcessorKind("gpu", "2", 8, 2))
    assert merged(kinds) == (ProcessorKind("cpu", "1"), kinds[2])
