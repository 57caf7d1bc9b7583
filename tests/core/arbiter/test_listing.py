"""A layer is given up only when the checkpoints have been listed, or that takes too long."""

from __future__ import annotations

import pytest

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.arbiter import events as a
from bamboo_core.arbiter.durable import Fork, eligible, from_json, to_json, with_newer
from bamboo_core.protocol.messages import BadCheckpoint, Listed, Manifest, Stop

from .fleet import Fleet, committed, running


def lost(*, is_told: bool = True, every: int = 2) -> Fleet:
    """Step 5 is committed and version 4 sealed; layer 1 and its copy die. Nobody lists yet.

    is_told: the arbiter has heard of the newest checkpoint.
    """
    fleet = running(steps=20, stages=4, every=every)
    fleet.until(lambda: committed(fleet, 5))
    if not is_told:
        state = fleet.arbiter.state
        state.out.save(manifests=tuple(m for m in state.durable.manifests if m.step < 4))
    fleet.lists = False
    for name in ("a0", "a1"):
        fleet.kill(name)
    fleet.add("b0", "z0")
    fleet.add("b1", "z1")
    fleet.run()
    return fleet


def asked(fleet: Fleet) -> set[str]:
    return {to for to, m in fleet.wire if isinstance(m, Stop) and m.want_manifests}


def test_the_job_waits_for_a_list() -> None:
    fleet = lost()
    status = fleet.arbiter.status()
    assert status.phase is a.ArbiterPhase.HOLDING
    assert status.detail == "no live copy of layers 1; the checkpoints are being listed"
    fleet.receive(next(iter(fleet.agents)), Listed())
    fleet.run()
    assert fleet.arbiter.durable.attempt == 1
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_a_checkpoint_that_nobody_has_told_is_used() -> None:
    """Its writer died before it could say that it was complete."""
    fleet = lost(is_told=False)
    assert fleet.arbiter.status().phase is a.ArbiterPhase.HOLDING
    fleet.receive(next(iter(fleet.agents)), Listed((Manifest(0, 4, "0/4", "d"),)))
    fleet.run()
    manifest = fleet.arbiter.durable.manifest
    assert manifest is not None
    assert manifest.step == 4


def alone(*, knows_deaths: bool) -> Fleet:
    """While no operator is there, version 4 is sealed, version 2 is deleted, and all agents die."""
    fleet = running(steps=20, stages=4, every=2)
    fleet.until(lambda: committed(fleet, 5))
    state = fleet.arbiter.state
    state.out.save(manifests=tuple(m for m in state.durable.manifests if m.step < 4))
    fleet.stored = to_json(state.durable)
    fleet.sealed = [m for m in fleet.sealed if m.step >= 4]
    names = list(fleet.agents)
    fleet.agents.clear()
    fleet.restart()
    fleet.tell(a.DesiredState(1))
    for name in names if knows_deaths else ():
        fleet.tell(a.Lost(name, True, "its pod is gone"))
    return fleet


@pytest.mark.parametrize("knows_deaths", [True, False])
def test_a_new_operator_does_not_restore_before_the_checkpoints_are_listed(
    knows_deaths: bool,
) -> None:
    fleet = alone(knows_deaths=knows_deaths)
    fleet.wait(130.0)
    assert fleet.arbiter.durable.attempt == 0, "nobody can list"
    fleet.add_grid(1, 4, prefix="b")
    fleet.run()
    fleet.wait(130.0)
    manifest = fleet.arbiter.durable.manifest
    assert manifest is not None
    assert (fleet.arbiter.durable.attempt, manifest.step) == (1, 4)
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_a_list_that_does_not_come_is_waited_for_only_so_long() -> None:
    fleet = lost()
    fleet.idle(59.0)
    assert fleet.arbiter.durable.attempt == 0
    fleet.idle(2.0)
    assert fleet.arbiter.durable.attempt == 1


def test_a_job_without_checkpoints_waits_for_no_list() -> None:
    fleet = running(steps=20, stages=4, every=0)
    fleet.arbiter.state.job.spec.__dict__["checkpoint"] = None
    fleet.until(lambda: committed(fleet, 5))
    fleet.lists = False
    for name in ("a0", "a1"):
        fleet.kill(name)
    fleet.add("b0", "z0")
    fleet.add("b1", "z1")
    fleet.run()
    assert fleet.arbiter.durable.attempt == 1


@pytest.mark.parametrize("name", ["a2", "stranger"])
def test_no_report_waits_for_a_list(name: str) -> None:
    """Neither at a start nor at a loss: files are of no interest while every layer is held."""
    fleet = running(steps=20)
    fleet.lists = False
    fleet.until(lambda: committed(fleet, 2))
    fleet.kill("a0")
    assert not asked(fleet)
    fleet.receive(name, Listed())  # type: ignore[arg-type]
    fleet.run()
    assert fleet.over is not None
    assert fleet.arbiter.durable.attempt == 0


@pytest.mark.parametrize(("step", "cause", "is_planned"), [(0, "", True), (0, "full", False)])
def test_a_file_of_the_running_step_that_is_torn_means_a_new_plan(
    step: int, cause: str, is_planned: bool
) -> None:
    """Its layers may be written again. A file that could not be written costs no new plan."""
    fleet = running(steps=20)
    before = fleet.arbiter.fence
    assert fleet.arbiter.state.in_force is not None
    assert fleet.arbiter.state.in_force.plan.target == step
    fleet.receive(next(iter(fleet.agents)), BadCheckpoint(0, step, "torn", cause))
    assert (fleet.arbiter.fence > before) is is_planned


def test_only_the_first_list_makes_agents_report_anew() -> None:
    fleet = lost()
    before = fleet.arbiter.fence
    for _ in range(2):
        fleet.receive(next(iter(fleet.agents)), Listed())
    assert fleet.arbiter.fence.epoch == before.epoch + 1


def restored_late() -> Fleet:
    """Nobody lists in time: attempt 1 is to begin from version 2, which is deleted."""
    fleet = lost(is_told=False)
    fleet.idle(61.0)
    fleet.run()
    assert fleet.arbiter.durable.attempt == 1
    fleet.idle(61.0)
    fleet.until(lambda: fleet.arbiter.status().plan is not None)
    fleet.receive(next(iter(fleet.agents)), BadCheckpoint(0, 2, "no such file"))
    fleet.run()
    return fleet


def test_an_attempt_that_has_computed_nothing_hides_no_newer_file() -> None:
    fleet = restored_late()
    fleet.receive(next(iter(fleet.agents)), Listed((Manifest(0, 4, "0/4", "d"),)))
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


def test_an_old_record_of_a_rollback_keeps_its_fork() -> None:
    assert from_json({"attempt": 3, "rollbacks": 1}).rolled_back == 3
    assert from_json({"attempt": 3}).rolled_back == 0


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
