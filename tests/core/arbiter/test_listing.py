"""A layer is given up only when the checkpoints have been listed, or that takes too long."""

from __future__ import annotations

import pytest

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import RedundancyMode
from bamboo_core.arbiter_state import events as a
from bamboo_core.arbiter_state.durable import to_json
from bamboo_core.arbiter_state.state import Listing
from bamboo_core.model.ids import Fence
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
    fleet.receive(next(iter(fleet.agents)), Listed(tuple(fleet.sealed)))
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
        fleet.receive(next(iter(fleet.agents)), Listed(tuple(fleet.sealed)))
    assert fleet.arbiter.fence.epoch == before.epoch + 1


def test_a_list_that_comes_late_does_not_count_at_the_next_loss() -> None:
    """A slower member's answer to the question before comes when the new plan runs already."""
    fleet = lost()
    first, second, *_ = fleet.agents
    before = fleet.arbiter.fence
    fleet.receive(first, Listed(tuple(fleet.sealed)))
    fleet.until(lambda: fleet.arbiter.durable.attempt == 1 and committed(fleet, 9))
    state = fleet.arbiter.state
    for late in (Listed(), Listed((), before)):
        fleet.receive(second, late)
        assert not state.listing.is_here
    state.out.save(manifests=tuple(m for m in state.durable.manifests if m.step < 8))
    fleet.sealed = [m for m in fleet.sealed if m.step <= 8]
    for name in list(fleet.agents)[:2]:
        fleet.kill(name)
    fleet.add("c0", "z0")
    fleet.add("c1", "z1")
    fleet.run()
    fleet.receive(second, Listed((), before))
    assert fleet.arbiter.status().phase is a.ArbiterPhase.HOLDING, "it was begun before the loss"
    fleet.receive(second, Listed(tuple(fleet.sealed), fleet.arbiter.fence))
    fleet.run()
    manifest = fleet.arbiter.durable.manifest
    assert manifest is not None
    assert (fleet.arbiter.durable.attempt, manifest.step) == (2, 8)


def test_what_a_partial_list_names_is_known_but_the_job_waits_for_a_whole_one() -> None:
    fleet = lost(is_told=False)
    first, second, *_ = fleet.agents
    four = Manifest(0, 4, "0/4", "d")
    fleet.receive(first, Listed((four,), fleet.arbiter.fence, is_partial=True))
    fleet.run()
    assert fleet.arbiter.durable.attempt == 0
    assert four in fleet.arbiter.durable.manifests
    fleet.receive(second, Listed((), fleet.arbiter.fence))
    fleet.run()
    assert fleet.arbiter.durable.attempt == 0, "the second one does not even see what is known"
    fleet.receive(second, Listed((four,), fleet.arbiter.fence))
    fleet.run()
    assert fleet.arbiter.durable.manifest == four


def test_a_few_members_list() -> None:
    fleet = running(pipelines=4, stages=4, steps=20, every=2, mode=RedundancyMode.NONE)
    fleet.until(lambda: committed(fleet, 5))
    fleet.lists = False
    for pipeline in fleet.arbiter.state.durable.pipelines:
        fleet.kill(str(pipeline[0]))
    told: list[str] = []
    deliver = fleet.deliver
    fleet.deliver = lambda agent, x: (  # type: ignore[method-assign]
        told.extend([agent.name] * (isinstance(x, Stop) and x.want_manifests)),
        deliver(agent, x),
    )[1]
    fleet.run()
    assert fleet.arbiter.status().phase is a.ArbiterPhase.HOLDING
    assert len(told) == len(set(told)) == 8


def test_a_member_that_comes_back_is_asked_again() -> None:
    fleet = lost()
    name = next(iter(fleet.agents))
    fleet.lists = True
    fleet.connect(fleet.agents[name])
    fleet.run()
    assert fleet.arbiter.durable.attempt == 1


def test_a_list_for_the_first_question_counts_after_the_second() -> None:
    """More agents make the job ask again. Nothing was sealed since the loss."""
    fleet = lost()
    first = fleet.arbiter.fence
    fleet.idle(50.0)
    fleet.add("a-newcomer", "z0")
    fleet.run()
    assert fleet.arbiter.fence > first
    fleet.receive("a3", Listed(tuple(fleet.sealed), first))
    fleet.run()
    assert fleet.arbiter.durable.attempt == 1


def test_a_second_question_gives_no_more_time() -> None:
    fleet = lost()
    fleet.idle(50.0)
    fleet.add("a-newcomer", "z0")
    fleet.run()
    assert fleet.arbiter.durable.attempt == 0
    fleet.idle(11.0)
    assert fleet.arbiter.durable.attempt == 1


def test_a_newcomer_does_not_take_the_place_of_a_member_that_was_asked() -> None:
    listing = Listing()
    listing.ask(["b", "c"], Fence(0, 1, 2), 5.0)
    assert listing.first(["a", "b", "c", "d"], 3) == ["b", "c", "a"]


# ---------------------------------------------------------------- what cannot be there


@pytest.mark.parametrize("step", [8, 20, 21])
def test_a_checkpoint_beyond_the_newest_commit_is_none(step: int) -> None:
    """Step 5 is committed, and voters are connected: nothing is committed without them."""
    fleet = running(steps=20, stages=4, every=2)
    fleet.until(lambda: committed(fleet, 5))
    before = fleet.arbiter.durable.manifests
    newest = fleet.arbiter.state.ledger.newest(fleet.arbiter.durable)
    invented = Manifest(0, step, f"0/{step}", "d")
    fleet.receive("a0", Listed((invented,), fleet.arbiter.fence))
    assert fleet.arbiter.durable.manifests == before
    next_one = Manifest(0, newest + 1, "0/next", "d")
    fleet.receive("a0", Listed((next_one,), fleet.arbiter.fence))
    assert fleet.arbiter.durable.manifests == (*before, next_one)


def test_an_invented_checkpoint_is_not_restored_from() -> None:
    fleet = lost()
    assert fleet.arbiter.status().phase is a.ArbiterPhase.HOLDING
    invented = Manifest(0, 14, "0/14", "d")
    fleet.receive(next(iter(fleet.agents)), Listed((*fleet.sealed, invented)))
    fleet.run()
    manifest = fleet.arbiter.durable.manifest
    assert manifest is not None
    assert manifest.step == 4
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_what_voters_have_reported_counts() -> None:
    """The leader has heard of no commit since the plan; the report of a voter tells it."""
    fleet = lost(is_told=False)
    state = fleet.arbiter.state
    state.ledger.forget_commit()
    four = Manifest(0, 4, "0/4", "d")
    fleet.receive(next(iter(fleet.agents)), Listed((four,), is_partial=True))
    assert four in fleet.arbiter.durable.manifests


def test_where_no_voter_is_left_only_the_last_step_of_the_job_is_a_limit() -> None:
    """While no operator was there, agents may have come so far."""
    fleet = alone(knows_deaths=False)
    fleet.lists = False
    fleet.add_grid(1, 4, prefix="b")
    fleet.run()
    far, too_far = (Manifest(0, step, f"0/{step}", "d") for step in (20, 21))
    fleet.receive("b0", Listed((far, too_far), fleet.arbiter.fence, is_partial=True))
    assert far in fleet.arbiter.durable.manifests
    assert too_far not in fleet.arbiter.durable.manifests
