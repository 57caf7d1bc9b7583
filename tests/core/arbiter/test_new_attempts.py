"""A new attempt begins with the newest checkpoint, if members can find it before its first plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.events import EventFact, EventReason, RestoreCause
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import RedundancyMode
from bamboo_core.arbiter import endings
from bamboo_core.arbiter_state import events as a
from bamboo_core.arbiter_state.durable import (
    Durable,
    Fork,
    eligible,
    from_json,
    to_json,
    with_listed,
    with_newer,
)
from bamboo_core.planning.requests import PlannerFault
from bamboo_core.protocol.messages import Listed, Manifest, Sealed

from .fleet import Fleet, committed, running, spec
from .test_listing import alone, lost


def restored_late() -> Fleet:
    """Nobody lists in time: attempt 1 is to begin from version 2, which is deleted."""
    fleet = lost(is_told=False)
    fleet.idle(61.0)
    fleet.run()
    assert fleet.arbiter.durable.attempt == 1
    fleet.idle(61.0)
    fleet.until(lambda: fleet.arbiter.status().plan is not None)
    fleet.receive(next(iter(fleet.agents)), unreadable(fleet))
    assert fleet.arbiter.durable.attempt == 1
    return fleet


def unreadable(fleet: Fleet, *there: Manifest) -> Listed:
    """The plan's checkpoint is not there, but others are."""
    error = "reading 0/2 failed: No such file or directory"
    return Listed(there, fleet.arbiter.fence, is_partial=True, error=error)


def test_an_attempt_that_has_computed_nothing_hides_no_newer_file() -> None:
    fleet = restored_late()
    fleet.lists = True
    fleet.receive(next(iter(fleet.agents)), unreadable(fleet, Manifest(0, 4, "0/4", "d")))
    fleet.run()
    durable = fleet.arbiter.durable
    assert durable.manifest is not None
    assert (durable.attempt, durable.manifest.step) == (2, 4)
    assert durable.forks == (Fork(2, 4),)
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_wrong_bits_stay_hidden_although_the_attempt_has_computed_nothing() -> None:
    fleet = lost()
    state = fleet.arbiter.state
    state.out.save(attempt=1, forks=(Fork(1, 2),), rolled_back=1)
    assert from_json(to_json(state.durable)) == state.durable
    assert eligible(with_newer(state.durable, newest=1)) == eligible(state.durable)
    state.out.save(rolled_back=0)
    assert [m.step for m in eligible(with_newer(state.durable, newest=1))] == [2, 4]
    assert [m.step for m in eligible(with_newer(state.durable, newest=2))] == [2]


def test_an_old_record_keeps_its_fork() -> None:
    """An earlier version does not say whether its attempt began because of wrong bits."""
    old = from_json({"attempt": 3, "forks": [[3, 2]], "manifests": [[0, 4, "0/4", "d"]]})
    assert old.rolled_back == 3
    assert eligible(with_newer(old, newest=1)) == ()


@pytest.mark.parametrize("lists", [True, False])
def test_a_resumed_job_looks_for_files_that_no_operator_has_seen(lists: bool) -> None:
    """It was suspended while no operator was there, and all agents have died since."""
    fleet = alone(knows_deaths=True)
    fleet.tell(a.DesiredState(1, suspended=True))
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.SUSPENDED
    fleet.over, fleet.lists = None, lists
    fleet.tell(a.DesiredState(1))
    fleet.add_grid(1, 4, prefix="b")
    fleet.until(lambda: fleet.arbiter.durable.attempt == 1)
    if not lists:
        fleet.run()
        fleet.idle(59.0)
        assert fleet.arbiter.status().plan is None
        assert "checkpoints are being listed" in fleet.arbiter.status().detail
        fleet.idle(2.0)
    fleet.until(lambda: fleet.arbiter.status().plan is not None)
    durable = fleet.arbiter.durable
    assert durable.manifest is not None
    assert (durable.attempt, durable.manifest.step) == (1, 4 if lists else 2)
    assert durable.forks == (Fork(1, durable.manifest.step),)
    told = [r.message for r in fleet.records if r.reason is EventReason.CHECKPOINT_FOUND]
    text = "attempt 1 begins from the checkpoint of step 4, which was not known"
    assert told == ([text] if lists else [])


def resumed_alone() -> Fleet:
    """As above: no member can list yet."""
    fleet = alone(knows_deaths=True)
    fleet.tell(a.DesiredState(1, suspended=True))
    fleet.run()
    fleet.over, fleet.lists = None, False
    fleet.tell(a.DesiredState(1))
    return fleet


def test_agents_that_come_when_those_that_listed_have_died_have_time_to_list() -> None:
    fleet = running(steps=20, stages=1, every=2, mode=RedundancyMode.NONE)
    fleet.until(lambda: committed(fleet, 5))
    state = fleet.arbiter.state
    state.out.save(manifests=tuple(m for m in state.durable.manifests if m.step < 4))
    fleet.lists = False
    fleet.tell(a.DesiredState(1, suspended=True))
    for name in list(fleet.agents):
        fleet.kill(name)
    fleet.run()
    fleet.sealed, fleet.over = [m for m in fleet.sealed if m.step <= 4], None
    fleet.tell(a.DesiredState(1))
    fleet.add("b0", "z0")
    fleet.run()
    fleet.idle(10.0)
    fleet.kill("b0")
    fleet.run()
    fleet.idle(55.0)
    fleet.lists = True
    fleet.add("c0", "z0")
    fleet.until(lambda: fleet.arbiter.status().plan is not None)
    manifest = fleet.arbiter.durable.manifest
    assert manifest is not None
    assert manifest.step == 4


def test_a_planner_in_trouble_gives_no_second_time_to_list() -> None:
    fleet = resumed_alone()
    fleet.add_grid(1, 4, prefix="b")
    fleet.run()
    begin, asked = fleet.now, list[float]()

    def plan(*_: object) -> object:
        asked.append(fleet.now - begin)
        yield PlannerFault("no", is_defect=False)

    fleet._plan = plan  # type: ignore[method-assign, assignment]
    fleet.wait(80.0)
    assert asked == [60.0, 65.0, 75.0]


def test_wrong_bits_are_left_for_what_this_attempt_was_made_from() -> None:
    """It has committed nothing, and its base was verified. Nobody has compared 1/7."""
    fleet = lost()
    state = fleet.arbiter.state
    base, newer = Manifest(1, 4, "1/4", "d"), Manifest(1, 7, "1/7", "d")
    forks = (Fork(1, 2), Fork(2, 4))
    state.out.save(attempt=2, manifest=base, forks=forks, committed=3, manifests=(base, newer))
    state.ledger.forget_commit()
    endings.restore(state, RestoreCause.CORRUPTION, "test", fleet.now, wrong_step=4)
    assert state.durable.manifest == base
    assert state.durable.forks == (*forks, Fork(3, 4))


def test_an_attempt_that_began_because_of_wrong_bits_waits_for_no_list() -> None:
    fleet = lost()
    endings.restore(fleet.arbiter.state, RestoreCause.CORRUPTION, "test", fleet.now, wrong_step=3)
    fleet.tell(a.Tick())
    fleet.until(lambda: fleet.arbiter.status().plan is not None)
    assert fleet.arbiter.durable.manifest == Manifest(0, 2, "0/2", "d")


def test_a_list_keeps_the_base_and_what_may_be_read() -> None:
    def files(attempt: int, *steps: int) -> tuple[Manifest, ...]:
        return tuple(Manifest(attempt, step, f"{attempt}/{step}", "d") for step in steps)

    base, *hidden = files(0, *range(2, 22, 2))
    rolled = Durable(
        attempt=1, manifest=base, forks=(Fork(1, 2),), manifests=(base,), rolled_back=1
    )
    assert with_listed(rolled, (base, *hidden), newest=1) == (base,)
    own = files(1, *range(4, 24, 2))
    known = with_listed(rolled, (*hidden, *own, *files(2, 30)), newest=21)
    assert known == (base, *own[-6:])
    known = with_listed(replace(rolled, manifests=(base, hidden[0])), own[:1], newest=3)
    assert known == (base, hidden[0], own[0]), "what is known is forgotten only for room"
    full = replace(rolled, manifests=(base, *hidden[:5]))
    assert with_listed(full, own[:2], newest=5) == (base, *hidden[2:5], *own[:2])


def test_the_restart_of_a_resumed_job_is_measured() -> None:
    """Mode Auto decides by it."""
    fleet = running(steps=40, stages=4, every=2, mode=RedundancyMode.AUTO)
    fleet.until(lambda: committed(fleet, 5))
    fleet.tell(a.DesiredState(1, suspended=True))
    fleet.run()
    protection = fleet.arbiter.state.protection
    protection.measured = replace(protection.measured, pipelines=1, step_s=0.1)
    fleet.over = None
    fleet.now += 10
    fleet.tell(a.DesiredState(1))
    fleet.add_grid(1, 4, prefix="c")
    fleet.until(lambda: fleet.arbiter.status().plan is not None)
    fleet.now += 7
    fleet.run()
    (restart_s,) = fleet.arbiter.state.protection.measured.restarts
    assert restart_s == pytest.approx(6.9)


def undone(fleet: Fleet) -> list[object]:
    """The steps that the leader has counted as undone, at each change of plan."""
    resumed = [r for r in fleet.records if r.reason is EventReason.RESUMED]
    return [r.facts[EventFact.UNDONE_STEPS] for r in resumed]


def test_only_steps_that_are_computed_again_count_as_undone() -> None:
    """Steps up to 5 are committed. A restore goes back to 2, and then 4 is found."""
    fleet = lost(is_told=False)
    fleet.idle(61.0)
    assert fleet.arbiter.durable.attempt == 1
    fleet.restart()
    fleet.reconnect()
    fleet.tell(a.DesiredState(1))
    fleet.lists = True
    fleet.wait(70.0)
    assert undone(fleet)[-1] == 2
    fleet.tell(a.DesiredState(1))
    assert fleet.arbiter.durable.undone == 0
    assert sum(map(int, map(str, undone(fleet)))) == 2


def test_an_attempt_that_computes_nothing_undoes_nothing_by_itself() -> None:
    """It went back to 2, and the next one begins from 4."""
    fleet = restored_late()
    fleet.lists = True
    fleet.receive(next(iter(fleet.agents)), unreadable(fleet, Manifest(0, 4, "0/4", "d")))
    fleet.run()
    assert fleet.arbiter.durable.attempt == 2
    assert sum(map(int, map(str, undone(fleet)))) == 2


def test_members_have_time_again_before_the_first_plan() -> None:
    """A list takes 70 s."""
    fleet = lost(is_told=False)
    ask = fleet.arbiter.fence
    fleet.idle(61.0)
    fleet.run()
    assert fleet.arbiter.durable.attempt == 1
    fleet.idle(9.0)
    assert fleet.arbiter.status().plan is None
    fleet.receive(next(iter(fleet.agents)), Listed((Manifest(0, 4, "0/4", "d"),), ask))
    fleet.until(lambda: fleet.arbiter.status().plan is not None)
    manifest = fleet.arbiter.durable.manifest
    assert manifest is not None
    assert manifest.step == 4


def blocked(seconds: float) -> Fleet:
    """Layer 1 is lost, and version 4 not known. So long the facts cannot be written, so that no
    STOP leaves."""
    fleet = running(steps=20, stages=4, every=2)
    fleet.add("b0", "z0")
    fleet.add("b1", "z1")
    fleet.until(lambda: committed(fleet, 5))
    state = fleet.arbiter.state
    state.out.save(manifests=tuple(m for m in state.durable.manifests if m.step < 4))
    fleet.sealed = [m for m in fleet.sealed if m.step <= 4]
    for name in ("a0", "a1"):
        fleet.kill(name)
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.PLANNING)
    fleet.hold_persists = True
    fleet.run()
    fleet.idle(seconds)
    fleet.hold_persists = False
    return fleet


def test_time_counts_from_when_a_member_was_asked() -> None:
    fleet = blocked(50.0)
    fleet.lists = False
    fleet.tell(a.Persisted(fleet.persists[-1].version))
    fleet.run()
    fleet.idle(59.0)
    assert fleet.arbiter.durable.attempt == 0
    fleet.idle(2.0)
    assert fleet.arbiter.durable.attempt == 1


def test_members_that_could_not_be_asked_are_asked_before_the_first_plan() -> None:
    fleet = blocked(65.0)
    fleet.tell(a.Persisted(fleet.persists[-1].version))
    fleet.run()
    fleet.wait(5.0)
    manifest = fleet.arbiter.durable.manifest
    assert manifest is not None
    assert manifest.step == 4


def test_a_seal_that_is_told_after_the_restore_counts_until_the_first_plan() -> None:
    fleet = resumed_alone()
    before = fleet.arbiter.durable
    assert [m.step for m in before.manifests] == [2]
    fleet.add_grid(1, 4, prefix="b")
    fleet.run()
    assert fleet.arbiter.durable.attempt == 1
    name, four = next(iter(fleet.agents)), Manifest(0, 4, "0/4", "d")
    fleet.receive(name, Sealed(four))
    assert four in fleet.arbiter.durable.manifests
    fleet.idle(61.0)
    fleet.until(lambda: fleet.arbiter.status().plan is not None)
    assert fleet.arbiter.durable.manifest == four
    fleet.receive(name, Sealed(Manifest(0, 6, "0/6", "d")))
    assert [m.step for m in fleet.arbiter.durable.manifests] == [2, 4]


def test_a_late_seal_does_not_push_out_the_base() -> None:
    fleet = lost()
    base, *hidden = (Manifest(0, step, f"0/{step}", "d") for step in range(2, 16, 2))
    state = fleet.arbiter.state
    facts = {"manifest": base, "manifests": (base, *hidden[:5]), "voters": ()}
    state.out.save(attempt=1, rolled_back=1, forks=(Fork(1, 2),), **facts)
    fleet.receive(next(iter(fleet.agents)), Sealed(hidden[5]))
    assert base in state.durable.manifests


def test_a_job_that_is_suspended_while_it_is_held_can_be_resumed() -> None:
    fleet = Fleet(spec(pipelines=1, stages=4, steps=20), layers=4)
    fleet.tell(a.DesiredState(1))
    fleet.add_grid(1, 4)
    for name in ("a0", "a1", "a2"):
        fleet.kill(name)
    fleet.run()
    fleet.tell(a.DesiredState(1, suspended=True))
    fleet.run()
    assert fleet.over is not None
    fleet.tell(a.DesiredState(1))
    fleet.run()
    assert fleet.arbiter.status().phase is a.ArbiterPhase.WAITING
