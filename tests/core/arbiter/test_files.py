"""A checkpoint that cannot be read is waited for; one that is wrong has to be confirmed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bamboo_core.api.events import EventFact, EventReason, RestoreCause
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import RedundancyMode, RestoreSpec
from bamboo_core.arbiter_state import events as a
from bamboo_core.arbiter_state.durable import Restored
from bamboo_core.arbiter_state.findings import AGAIN_S
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import BadCheckpoint, Fork, Listed, Mark, Stop

from .fleet import Fleet, committed, running, spec

WRONG = "0/4/layer-0001 has been altered"
MISSING = "reading /x/manifest.json failed: No such file or directory"


def restored(*, nodes: Sequence[str] = ("n0", "n1")) -> Fleet:
    """Checkpoints 2 and 4 are sealed, all agents die, and others are told to load version 4."""
    fleet = running(steps=20, stages=2, every=2, mode=RedundancyMode.NONE)
    fleet.until(lambda: committed(fleet, 5))
    fleet.sealed = [m for m in fleet.sealed if m.step <= 4]
    for name in list(fleet.agents):
        fleet.kill(name)
    for n, node in enumerate(nodes):
        add(fleet, f"b{n}", node)
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    assert fleet.arbiter.durable.attempt == 1
    assert fleet.arbiter.durable.manifest is not None
    assert fleet.arbiter.durable.manifest.step == 4
    return fleet


def add(fleet: Fleet, name: str, node: str) -> None:
    zone = f"z{name[-1]}"
    agent = fleet.add(name, zone)
    agent.hello = replace(agent.hello, node=node)
    fleet.connect(agent)


def says_wrong(fleet: Fleet, name: str, fence: Fence | None = None) -> None:
    fence = fence or fleet.arbiter.fence
    fleet.receive(AgentId(name), BadCheckpoint(0, 4, WRONG, fence=fence))


def stalled(fleet: Fleet) -> str:
    return fleet.arbiter.status().unreachable


# ---------------------------------------------------------------- absent


def test_what_is_not_there_is_waited_for_however_often_it_is_said() -> None:
    fleet = restored()
    fleet.run_wire()
    fence = fleet.arbiter.fence
    for name in ("b0", "b1", "b0", "b1"):
        fleet.receive(AgentId(name), Listed((), fence, is_partial=True, error=MISSING))
        fleet.idle(100.0)
    assert fleet.arbiter.fence == fence
    assert (fleet.arbiter.durable.attempt, fleet.arbiter.durable.bad) == (1, ())
    assert stalled(fleet) == (
        f"a checkpoint cannot be read, so the job waits: b0: {MISSING} and 1 more; make the files"
        " reachable on every node, or go back on purpose: bamboo restore job --from-step N|start"
    )
    assert fleet.arbiter.state.stalls.text == ""


def test_the_words_go_when_the_file_is_there() -> None:
    fleet = restored()
    lost = Listed((), fleet.arbiter.fence, is_partial=True, error=MISSING)
    fleet.receive(AgentId("b0"), lost)
    assert stalled(fleet)
    fleet.receive(AgentId("b0"), replace(lost, error=""))
    assert not stalled(fleet)
    fleet.receive(AgentId("b0"), lost)
    fleet.until(lambda: committed(fleet, 4))
    assert not stalled(fleet)


def test_what_an_agent_without_a_part_cannot_read_stalls_nothing() -> None:
    fleet = restored()
    lost = Listed((), fleet.arbiter.fence, is_partial=True, error=MISSING)
    fleet.receive(AgentId("stranger"), lost)
    fleet.receive(AgentId("b1"), lost)
    fleet.kill("b1")
    assert not stalled(fleet)


def test_a_list_of_an_agent_that_does_not_see_the_folder_is_no_list() -> None:
    fleet = running(steps=20, stages=2, every=2, mode=RedundancyMode.NONE)
    fleet.until(lambda: committed(fleet, 5))
    fleet.lists = False
    for name in list(fleet.agents):
        fleet.kill(name)
    fleet.add_grid(1, 2, prefix="b")
    fleet.run()
    fleet.receive(AgentId("b0"), Listed((), fleet.arbiter.fence))
    assert not fleet.arbiter.state.listing.is_here
    fleet.receive(AgentId("b1"), Listed(tuple(fleet.sealed), fleet.arbiter.fence))
    assert fleet.arbiter.state.listing.is_here


# ---------------------------------------------------------------- wrong


def test_one_word_is_not_enough_and_another_node_is_asked() -> None:
    fleet = restored()
    asked: list[tuple[AgentId, Stop]] = []
    deliver = fleet.deliver

    def note(agent: object, message: object) -> None:
        if isinstance(message, Stop) and message.suspect is not None:
            asked.append((agent.name, message))  # type: ignore[attr-defined]
        deliver(agent, message)  # type: ignore[arg-type]

    fleet.deliver = note  # type: ignore[method-assign]
    says_wrong(fleet, "b0")
    fleet.run()
    assert fleet.arbiter.durable.bad == ()
    assert fleet.arbiter.status().phase is a.ArbiterPhase.HOLDING
    assert WRONG in stalled(fleet)
    ((name, stop),) = asked
    assert name == "b1", "the other one has said it"
    assert stop.suspect is not None
    assert (stop.suspect.attempt, stop.suspect.step) == (0, 4)
    says_wrong(fleet, "b1")
    fleet.run()
    assert fleet.arbiter.durable.bad[:1] == ((0, 4),)
    assert fleet.arbiter.durable.attempt == 2
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_it_is_read_again_after_a_pause_if_nobody_else_finds_it_wrong() -> None:
    """One agent has read something wrong; the file is right."""
    fleet = restored()
    says_wrong(fleet, "b0")
    fleet.run()
    fleet.idle(AGAIN_S - 1.0)
    assert fleet.arbiter.status().phase is a.ArbiterPhase.HOLDING
    fleet.wait(2.0)
    assert fleet.arbiter.durable.attempt == 1
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert not stalled(fleet)


def test_two_agents_of_one_node_are_one_word() -> None:
    fleet = restored(nodes=("n0", "n0"))
    says_wrong(fleet, "b0")
    says_wrong(fleet, "b1")
    fleet.run()
    assert fleet.arbiter.durable.bad == ()


def again(fleet: Fleet) -> None:
    """The only node reads it for another plan."""
    fleet.idle(AGAIN_S + 1.0)
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)


def test_the_only_node_is_believed_when_it_has_read_it_again_later() -> None:
    fleet = restored(nodes=("n0", "n0"))
    says_wrong(fleet, "b0")
    fleet.run()
    assert fleet.arbiter.durable.bad == ()
    again(fleet)
    says_wrong(fleet, "b0")
    assert fleet.arbiter.durable.bad == ((0, 4),)
    fleet.run()
    assert fleet.arbiter.durable.attempt == 2


def test_a_word_that_is_repeated_is_no_second_look() -> None:
    """A new session repeats what was said in the last one."""
    fleet = restored(nodes=("n0", "n0"))
    first = fleet.arbiter.fence
    says_wrong(fleet, "b0")
    fleet.run()
    again(fleet)
    says_wrong(fleet, "b0", first)
    assert fleet.arbiter.durable.bad == ()


@pytest.mark.parametrize("fences", [(None, None), (None, True), (True, None)])
def test_the_words_of_agents_of_an_earlier_version_confirm_nothing(
    fences: tuple[bool | None, bool | None],
) -> None:
    """They say the same of a file that is not there, and do not say for which order they read."""
    fleet = restored()
    for name, has_fence in zip(("b0", "b1"), fences, strict=True):
        fence = fleet.arbiter.fence if has_fence else None
        fleet.receive(AgentId(name), BadCheckpoint(0, 4, MISSING, fence=fence))
    fleet.run()
    assert (fleet.arbiter.durable.attempt, fleet.arbiter.durable.bad) == (1, ())
    assert stalled(fleet)
    fleet.wait(AGAIN_S + 1.0)
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert fleet.arbiter.durable.attempt == 1


def test_an_agent_of_an_earlier_version_cannot_say_that_it_has_looked_again() -> None:
    fleet = restored(nodes=("n0", "n0"))
    old = BadCheckpoint(0, 4, WRONG)
    fleet.receive(AgentId("b0"), old)
    fleet.run()
    again(fleet)
    fleet.receive(AgentId("b0"), old)
    assert fleet.arbiter.durable.bad == ()


def test_a_second_look_that_comes_too_soon_is_not_enough() -> None:
    fleet = restored(nodes=("n0", "n0"))
    says_wrong(fleet, "b0")
    fleet.run()
    fleet.idle(AGAIN_S - 5.0)
    says_wrong(fleet, "b0")
    assert fleet.arbiter.durable.bad == ()


def test_while_others_could_look_one_node_is_never_enough() -> None:
    """Agents of an earlier version do not say that it is right."""
    fleet = restored()
    for _ in range(4):
        says_wrong(fleet, "b0")
        fleet.run()
        again(fleet)
    assert (fleet.arbiter.durable.attempt, fleet.arbiter.durable.bad) == (1, ())
    assert "b0" in fleet.agents


def says_right(fleet: Fleet, name: str, step: int = 4) -> None:
    right = Mark(0, step)
    fleet.receive(AgentId(name), Listed(tuple(fleet.sealed), fleet.arbiter.fence, right=right))


def blamed(fleet: Fleet) -> list[str]:
    return [r.message for r in fleet.records if r.reason is EventReason.WORKER_FAILED]


def goes_on(fleet: Fleet) -> None:
    """With the checkpoint, and with another agent instead of the one that is at fault, whose last
    words may still come."""
    says_wrong(fleet, "b0")
    assert "b0" in fleet.dismissed
    assert "b0" not in fleet.arbiter.durable.members
    assert blamed(fleet) == [
        "b0: Corruption: it has found the checkpoint of step 4 wrong twice, and an agent on another"
        " node has read all of it, and it is right: look for a faulty memory or disk"
    ]
    assert not stalled(fleet)
    add(fleet, "b2", "n2")
    fleet.wait(10.0)
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert (fleet.arbiter.durable.attempt, fleet.arbiter.durable.bad) == (1, ())


def test_an_agent_that_alone_reads_it_wrong_is_replaced() -> None:
    fleet = restored()
    says_wrong(fleet, "b0")
    fleet.run()
    says_right(fleet, "b1")
    again(fleet)
    assert not blamed(fleet), "once may be an accident"
    says_wrong(fleet, "b0")
    fleet.run()
    goes_on(fleet)


def test_the_look_of_another_node_may_end_last() -> None:
    fleet = restored()
    says_wrong(fleet, "b0")
    fleet.run()
    again(fleet)
    says_wrong(fleet, "b0")
    fleet.run()
    assert not blamed(fleet)
    says_right(fleet, "b1", 2)  # of another one
    says_right(fleet, "stranger")
    assert not blamed(fleet)
    says_right(fleet, "b1")
    fleet.run()
    goes_on(fleet)


def test_a_second_look_too_soon_blames_nobody() -> None:
    fleet = restored()
    says_wrong(fleet, "b0")
    fleet.run()
    says_right(fleet, "b1")
    fleet.idle(AGAIN_S - 5.0)
    says_wrong(fleet, "b0")
    assert not blamed(fleet)


def test_its_own_node_does_not_refute_an_agent() -> None:
    fleet = restored(nodes=("n0", "n0"))
    says_wrong(fleet, "b0")
    fleet.run()
    says_right(fleet, "b1")
    again(fleet)
    says_wrong(fleet, "b0")
    assert not blamed(fleet)
    assert fleet.arbiter.durable.bad == ((0, 4),)


def test_the_only_node_that_is_left_is_not_believed_against_one_that_was_there() -> None:
    fleet = restored()
    says_wrong(fleet, "b0")
    fleet.run()
    says_right(fleet, "b1")
    fleet.kill("b1")
    add(fleet, "b3", "n0")
    again(fleet)
    says_wrong(fleet, "b0")
    assert fleet.arbiter.durable.bad == ()
    assert len(blamed(fleet)) == 1


def test_a_checkpoint_that_could_not_be_written_is_bad_at_once() -> None:
    fleet = running(steps=20)
    fleet.receive(AgentId("a0"), BadCheckpoint(0, 4, "not complete", cause="disk full"))
    assert fleet.arbiter.durable.bad == ((0, 4),)


def test_a_plan_tells_agents_what_they_may_prune() -> None:
    fleet = restored()
    for name in ("b0", "b1"):
        says_wrong(fleet, name)
    fleet.run_wire()
    fleet.until(lambda: fleet.arbiter.durable.attempt == 2 and fleet.arbiter.status().plan)
    assert fleet.arbiter.state.in_force is not None
    told = fleet.arbiter.state.in_force.directives.values()
    assert {(d.forks, d.bad) for d in told} == {((Fork(2, 2),), (Mark(0, 4),))}


# ---------------------------------------------------------------- the user's order


def order(fleet: Fleet, step: int, name: str = "one") -> None:
    fleet.tell(a.DesiredState(1, restore=RestoreSpec(name, step)))


def restores(fleet: Fleet) -> list[a.Record]:
    return [
        r
        for r in fleet.records
        if r.reason is EventReason.RESTORING
        and r.facts[EventFact.CAUSE] == RestoreCause.USER_REQUESTED
    ]


@pytest.mark.parametrize(("step", "source"), [(2, "the checkpoint of step 2"), (0, "the start")])
def test_the_user_may_go_back(step: int, source: str) -> None:
    fleet = restored()
    fleet.receive(AgentId("b0"), Listed((), fleet.arbiter.fence, is_partial=True, error=MISSING))
    order(fleet, step)
    durable = fleet.arbiter.durable
    assert (durable.attempt, durable.rolled_back) == (2, 2)
    assert durable.restored == (Restored("one", step, attempt=2),)
    assert (durable.manifest.step if durable.manifest is not None else 0) == step
    (record,) = restores(fleet)
    assert f"spec.restore asks for it; attempt 2 from {source}: " in record.message
    order(fleet, step)  # the same
    fleet.run()
    fleet.wait(120.0)
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert len(restores(fleet)) == 1
    assert fleet.arbiter.durable.attempt == 2, "newer checkpoints are left behind"


def test_a_new_leader_does_not_obey_again() -> None:
    fleet = restored()
    order(fleet, 2)
    fleet.run_wire()
    fleet.restart()
    fleet.reconnect()
    order(fleet, 2)
    fleet.wait(20.0)
    assert len(restores(fleet)) == 1
    order(fleet, 0, "two")
    assert fleet.arbiter.durable.attempt in (2, 3)


def test_an_order_without_a_checkpoint_is_refused_once() -> None:
    fleet = restored()
    for _ in range(2):
        order(fleet, 3)
    (said,) = (r for r in fleet.records if r.reason is EventReason.RESTORE_REFUSED)
    assert said.message == (
        "spec.restore.fromStep 3 is no step of a checkpoint that can be used: choose one of 2, 4,"
        " or 0 for the start, with a new spec.restore.id"
    )
    assert fleet.arbiter.durable.attempt == 1


def refusals(fleet: Fleet) -> list[str]:
    return [r.message for r in fleet.records if r.reason is EventReason.RESTORE_REFUSED]


def test_an_id_that_comes_back_after_another_one_is_not_carried_out_again() -> None:
    """As when the change of a manifest is reverted."""
    fleet = restored()
    for name in ("one", "two"):
        order(fleet, 2, name)
    assert fleet.arbiter.durable.attempt == 3
    for _ in range(2):
        order(fleet, 2, "one")
    assert fleet.arbiter.durable.attempt == 3
    assert len(restores(fleet)) == 2
    assert refusals(fleet) == [
        'spec.restore.id "one" was given before, and each id is carried out once: to go back again,'
        " use a new spec.restore.id"
    ]
    order(fleet, 2, "two")
    assert fleet.arbiter.durable.attempt == 3


def test_an_id_with_another_step_is_refused_once() -> None:
    fleet = restored()
    order(fleet, 2)
    for _ in range(2):
        order(fleet, 0)
    assert fleet.arbiter.durable.attempt == 2
    assert refusals(fleet) == [
        'spec.restore.id "one" was given before with fromStep 2, and each id is carried out once:'
        " to go back to step 0, use a new spec.restore.id"
    ]
    order(fleet, 2)
    assert len(refusals(fleet)) == 2
    assert fleet.arbiter.durable.attempt == 2


def test_sixteen_orders_are_remembered() -> None:
    fleet = restored()
    for n in range(17):
        order(fleet, 0, f"order-{n}")
    restored_ids = [each.id for each in fleet.arbiter.durable.restored]
    assert restored_ids == [f"order-{n}" for n in range(1, 17)]
    assert len(restores(fleet)) == 17
    order(fleet, 0, "order-1")
    assert len(restores(fleet)) == 17


def test_an_order_may_choose_a_checkpoint_that_was_found_wrong() -> None:
    """An operator of an earlier version has marked what was not there for a while."""
    fleet = restored()
    fleet.arbiter.state.out.save(bad=((0, 4), (0, 9)))
    order(fleet, 4)
    durable = fleet.arbiter.durable
    assert (durable.attempt, durable.bad) == (2, ((0, 9),))
    assert durable.manifest is not None
    assert durable.manifest.step == 4
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_a_good_checkpoint_of_the_step_is_preferred_to_a_wrong_one() -> None:
    fleet = restored()
    older, *_ = fleet.arbiter.durable.manifests
    newer = replace(older, attempt=1)
    fleet.arbiter.state.out.save(manifests=(older, newer), bad=((1, older.step),))
    order(fleet, older.step)
    assert fleet.arbiter.durable.manifest == older
    assert fleet.arbiter.durable.bad == ((1, older.step),)


def test_an_order_for_a_job_that_has_computed_nothing_changes_nothing() -> None:
    """Somebody has created a job from the manifest of another one."""
    fleet = Fleet(running().job.spec, layers=3)
    order(fleet, 4)
    fleet.add_grid(1, 3)
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert fleet.arbiter.durable.attempt == 0
    assert not restores(fleet)


def test_a_suspended_job_obeys_when_it_is_resumed() -> None:
    fleet = restored()
    fleet.tell(a.DesiredState(1, suspended=True))
    fleet.run()
    assert fleet.arbiter.durable.outcome is Outcome.SUSPENDED
    step = fleet.arbiter.durable.manifests[0].step
    assert step < fleet.arbiter.durable.manifests[-1].step
    fleet.tell(a.DesiredState(1, suspended=True, restore=RestoreSpec("one", step)))
    assert not restores(fleet)
    order(fleet, step)
    assert len(restores(fleet)) == 1
    assert fleet.arbiter.durable.manifest is not None
    assert fleet.arbiter.durable.manifest.step == step


def test_what_agents_delete_is_forgotten() -> None:
    """Else the job would wait for it one day."""
    fleet = running(steps=9, every=2)
    known = lambda: [m.step for m in fleet.arbiter.durable.manifests]  # noqa: E731
    fleet.until(lambda: 8 in known())
    assert known() == [6, 8]


def test_two_checkpoints_are_kept_even_if_one_is_asked_for() -> None:
    """The newest one is verified by a commit that may not have come yet."""
    job = spec(stages=3, steps=9, every=2)
    assert job.checkpoint is not None
    fleet = Fleet(replace(job, checkpoint=replace(job.checkpoint, keep=1)), layers=3)
    fleet.add_grid(1, 3)
    fleet.tell(a.DesiredState(1))
    known = lambda: [m.step for m in fleet.arbiter.durable.manifests]  # noqa: E731
    fleet.until(lambda: 8 in known())
    assert known() == [6, 8]
