"""All is done but the last checkpoint, which cannot be written: nothing is thrown away for that."""

from __future__ import annotations

from itertools import pairwise

import pytest

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import RedundancyMode
from bamboo_core.arbiter_state import events as a
from bamboo_core.model.ids import AgentId
from bamboo_core.model.program import Op
from bamboo_core.protocol.messages import Directive, Notice, Release

from .fleet import Agent, Fleet, committed, running

FULL = "agent a0: writing below /c/uid failed: No space left on device"


NONE = RedundancyMode.NONE


def full(pipelines: int = 1, stages: int = 2, **options: object) -> Fleet:
    """All steps are committed; the folder takes no file."""
    fleet = running(pipelines, stages, **{"steps": 4, "every": 0, **options})
    fleet.everyone = dict(fleet.agents)  # type: ignore[attr-defined]
    fleet.until(lambda: committed(fleet, fleet.job.spec.training.steps - 1))
    fleet.full = FULL
    fleet.run()
    return fleet


def suspending(*, seconds: float = 3600.0) -> Fleet:
    """A job of 40 steps with checkpoints 2, 4, 6 is to be suspended; the folder takes no file."""
    fleet = running(1, 2, steps=40, every=2)
    fleet.until(lambda: committed(fleet, 6))
    fleet.full = FULL
    fleet.tell(a.DesiredState(1, suspended=True, last_write_s=seconds))
    fleet.run()
    return fleet


def released(fleet: Fleet) -> dict[AgentId, int]:
    everyone: dict[AgentId, Agent] = fleet.everyone  # type: ignore[attr-defined]
    return {name: x.released for name, x in everyone.items() if x.released is not None}


def outcome(fleet: Fleet) -> Outcome | None:
    return None if fleet.over is None else fleet.over.outcome


def restores(fleet: Fleet) -> list[str]:
    return [r.message for r in fleet.records if r.reason is EventReason.RESTORING]


def bad(fleet: Fleet) -> list[str]:
    return [r.message for r in fleet.records if r.reason is EventReason.CHECKPOINT_BAD]


def restart(fleet: Fleet, *, suspended: bool = False) -> None:
    fleet.restart()
    fleet.tell(a.DesiredState(1, suspended=suspended))
    fleet.reconnect()
    fleet.run()


def test_the_facts_keep_few_bytes_of_the_error() -> None:
    fleet = running(1, 2, steps=4, every=0)
    fleet.everyone = dict(fleet.agents)  # type: ignore[attr-defined]
    fleet.until(lambda: committed(fleet, 3))
    fleet.full = "层" * 200
    fleet.run()
    known = fleet.arbiter.durable.last_write
    assert known is not None
    assert known.why == "层" * 99 + "..."


def test_a_finished_job_waits_for_its_last_checkpoint_and_is_complete() -> None:
    fleet = full()
    assert fleet.over is None
    fleet.wait(10.0)
    assert fleet.over is None
    fleet.full = ""
    fleet.wait(30.0)
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    durable = fleet.arbiter.durable
    assert ([m.step for m in durable.manifests], durable.last_write) == ([4], None)
    assert durable.attempt == 0
    assert {agent.released for agent in fleet.agents.values()} <= {None}


@pytest.mark.parametrize(
    ("shape", "mode", "staying"),
    [
        ((2, 2), NONE, 2),
        ((3, 4), NONE, 4),
        ((1, 2), NONE, 2),
        ((1, 4), RedundancyMode.REPLICA, 2),
        ((2, 2), RedundancyMode.REPLICA, 1),
    ],
)
def test_one_holder_of_each_layer_stays_and_the_others_end_as_those_of_a_finished_job(
    shape: tuple[int, int], mode: RedundancyMode, staying: int
) -> None:
    fleet = full(*shape, mode=mode)
    layers = [x for agent in fleet.agents.values() for x in agent.executor.versions]
    assert len(fleet.agents) == staying
    assert sorted(layers) == list(range(shape[1]))
    assert len(released(fleet)) == shape[0] * shape[1] - staying
    assert set(released(fleet).values()) <= {0}
    assert fleet.dismissed == []  # a deleted pod would lose its log
    assert not [r for r in fleet.records if r.reason is EventReason.AGENT_LOST]
    members = tuple(sorted(fleet.agents))
    assert (fleet.arbiter.durable.members, fleet.arbiter.durable.voters) == (members, members)
    fleet.full = ""
    fleet.wait(30.0)
    assert outcome(fleet) is Outcome.COMPLETE
    assert set(released(fleet).values()) == {0}


def test_the_pod_of_a_released_agent_is_not_deleted_once_it_has_ended() -> None:
    fleet = full(2, 2)
    for agent in released(fleet):
        fleet.tell(a.Lost(agent, confirmed=True, evidence="its pod has ended with exit code 0"))
    assert len(released(fleet)) == 3
    assert fleet.dismissed == []


def test_agents_that_will_leave_do_not_stay_if_others_hold_their_layers() -> None:
    fleet = running(2, 2, steps=4, every=0, mode=NONE)
    fleet.until(lambda: committed(fleet, 3))
    fleet.full = FULL
    going, staying = fleet.arbiter.durable.pipelines
    for agent in going:
        assert agent is not None
        fleet.receive(agent, Notice(1e6, "preempted"))
    fleet.run()
    assert sorted(fleet.agents) == sorted(map(str, staying))


def test_an_agent_that_comes_while_the_job_waits_is_released() -> None:
    """Also one whose release was lost with its session."""
    fleet = full(2, 2)
    (kept,) = fleet.agents
    newcomer = fleet.add("b0", "z0")
    fleet.run()
    assert newcomer.released == 0
    fleet.connect(fleet.agents[kept])
    fleet.full = ""
    fleet.wait(30.0)
    assert outcome(fleet) is Outcome.COMPLETE


def test_pauses_grow_from_a_second_to_half_a_minute() -> None:
    fleet = full()
    tried = []
    for _ in range(480):
        before = len(fleet.requests)
        fleet.wait(0.25)
        tried += [fleet.now] * (len(fleet.requests) - before)
    pauses = [round(y - x) for x, y in pairwise(tried)]
    assert pauses[:6] == [2, 4, 8, 16, 30, 30]
    assert all(request.rewrites == 4 for request in fleet.requests[1:])


def test_validation_is_not_repeated() -> None:
    fleet = full()
    fleet.wait(10.0)
    assert fleet.commits[0, 4] == 1  # the epilogue's, with the loss of the validation


def test_after_the_deadline_the_job_fails_and_says_why_and_for_how_long() -> None:
    fleet = full()
    fleet.wait(3590.0, step_s=0.5)
    assert fleet.over is None
    fleet.wait(15.0)
    assert fleet.over is not None
    assert (fleet.over.outcome, fleet.over.reason) == (Outcome.FAILED, "CheckpointFailed")
    assert "not saved: spec.checkpoint.uri file:///tmp/x could not be written" in fleet.over.message
    assert "for 3600 s: agent a0: writing below" in fleet.over.message
    assert fleet.agents == {}


def test_the_deadline_may_be_changed_while_the_job_waits() -> None:
    fleet = full()
    fleet.wait(100.0)
    epoch = fleet.arbiter.fence.epoch
    fleet.tell(a.DesiredState(1, last_write_s=120.0))
    assert fleet.arbiter.fence.epoch == epoch
    fleet.wait(15.0)
    assert fleet.over is None
    fleet.wait(10.0)
    assert outcome(fleet) is Outcome.FAILED


@pytest.mark.parametrize(("seconds", "waits"), [(3600.0, 300.0), (40.0, 40.0)])
def test_a_suspension_waits_shorter_and_says_what_will_be_repeated(
    seconds: float, waits: float
) -> None:
    fleet = suspending(seconds=seconds)
    committed_steps = fleet.arbiter.status().progress.committed + 1
    fleet.wait(waits - 5.0)
    assert fleet.over is None
    fleet.wait(10.0)
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.SUSPENDED
    newest = fleet.sealed[-1].step
    assert f"could not be written for {waits:.0f} s: agent a0" in fleet.over.message
    assert f"since the checkpoint of step {newest} will be repeated" in fleet.over.message
    repeated = committed_steps - newest
    assert repeated > 0
    assert f"; {repeated} committed step" in fleet.over.message
    fleet.full = ""
    fleet.tell(a.DesiredState(1))
    fleet.add_grid(1, 2, "b")
    fleet.run()
    assert f"{repeated} committed step" in restores(fleet)[-1]


def test_a_suspension_whose_checkpoint_is_written_late_repeats_nothing() -> None:
    fleet = suspending()
    steps = fleet.arbiter.status().progress.committed + 1
    fleet.wait(100.0)
    assert fleet.arbiter.status().progress.committed + 1 == steps  # nothing is trained meanwhile
    fleet.full = ""
    fleet.wait(30.0)
    assert outcome(fleet) is Outcome.SUSPENDED
    assert fleet.sealed[-1].step == steps
    fleet.tell(a.DesiredState(1))
    fleet.add_grid(1, 2, "b")
    fleet.run()
    assert f"from the checkpoint of step {steps}: 0 committed steps repeated" in restores(fleet)[-1]
    fleet.wait(15.0)
    assert outcome(fleet) is Outcome.COMPLETE


def test_a_suspension_that_is_taken_back_goes_on_at_once_and_repeats_nothing() -> None:
    fleet = running(2, 2, steps=40, every=2, mode=NONE)
    fleet.until(lambda: committed(fleet, 6))
    fleet.full = FULL
    fleet.tell(a.DesiredState(2, suspended=True))
    fleet.run()
    fleet.wait(20.0)
    assert len(fleet.agents) == 2
    fleet.tell(a.DesiredState(2))
    fleet.add_grid(1, 2, "b")
    fleet.wait(10.0)
    assert fleet.arbiter.durable.last_write is None or committed(fleet, 39)
    fleet.full = ""
    fleet.wait(40.0)
    assert (outcome(fleet), fleet.arbiter.durable.attempt) == (Outcome.COMPLETE, 0)
    assert not [key for key, count in fleet.commits.items() if count > 4]


def test_a_finished_job_that_is_suspended_while_it_waits_has_five_more_minutes() -> None:
    """It is not failed then: it can be resumed."""
    fleet = full(steps=5, every=2)
    fleet.wait(100.0)
    fleet.tell(a.DesiredState(1, suspended=True))
    fleet.wait(295.0)
    assert fleet.over is None
    fleet.wait(10.0)
    assert outcome(fleet) is Outcome.SUSPENDED


def test_the_clock_of_a_suspension_that_is_taken_back_does_not_count() -> None:
    fleet = full()
    fleet.wait(10.0)
    fleet.tell(a.DesiredState(1, suspended=True))
    fleet.wait(200.0)
    fleet.tell(a.DesiredState(1))
    fleet.wait(200.0)
    assert fleet.over is None
    fleet.full = ""
    fleet.wait(31.0)
    assert outcome(fleet) is Outcome.COMPLETE


def test_a_new_leader_goes_on_with_the_wait_and_its_deadline() -> None:
    fleet = full(2, 2)
    fleet.wait(2000.0, step_s=0.5)
    restart(fleet)
    assert len(fleet.agents) == 1
    fleet.wait(1500.0, step_s=0.5)
    assert fleet.over is None
    fleet.wait(130.0)
    assert outcome(fleet) is Outcome.FAILED


def test_a_new_leader_writes_at_once() -> None:
    fleet = full(2, 2)
    fleet.wait(200.0)
    fleet.full = ""
    restart(fleet)
    assert outcome(fleet) is Outcome.COMPLETE


def test_a_new_leader_goes_on_with_the_wait_of_a_suspension() -> None:
    fleet = suspending()
    steps = fleet.arbiter.status().progress.committed + 1
    fleet.wait(200.0)
    restart(fleet, suspended=True)
    fleet.wait(60.0)
    assert fleet.over is None
    assert fleet.arbiter.status().progress.committed + 1 in (0, steps)
    fleet.wait(75.0)  # what it had waited since its last try is forgotten
    assert outcome(fleet) is Outcome.SUSPENDED


def test_if_the_last_holder_of_a_layer_dies_the_job_goes_on_from_the_newest_checkpoint() -> None:
    fleet = full(2, 2, mode=NONE, steps=5, every=2)
    first, _ = sorted(fleet.agents)
    fleet.kill(first)
    fleet.full = ""
    fleet.wait(5.0)
    assert "no live copy of layers 0" in restores(fleet)[0]
    assert "from the checkpoint of step 4: 1 committed step repeated" in restores(fleet)[0]
    assert fleet.arbiter.durable.last_write is None
    fleet.add_grid(2, 2, "b")
    fleet.wait(30.0)
    assert outcome(fleet) is Outcome.COMPLETE


def test_a_holder_that_gets_notice_hands_its_layers_over() -> None:
    fleet = full(2, 2, mode=NONE)
    first, second = sorted(fleet.agents)
    fleet.wait(100.0)
    fleet.receive(AgentId(first), Notice(30.0, "preempted"))
    fleet.wait(2.0)
    assert sorted(fleet.agents[AgentId(second)].executor.versions) == [0, 1]
    assert list(fleet.agents) == [second]
    fleet.full = ""
    fleet.wait(31.0)
    assert (outcome(fleet), fleet.arbiter.durable.attempt) == (Outcome.COMPLETE, 0)


def test_a_try_that_hangs_does_not_outlast_the_deadline() -> None:
    fleet = full(mode=NONE)
    fleet.hold_files = True
    fleet.wait(3610.0, step_s=0.5)
    assert outcome(fleet) is Outcome.FAILED


def test_the_release_leaves_only_after_the_facts() -> None:
    fleet = running(2, 2, steps=4, every=0, mode=NONE)
    fleet.full = FULL
    fleet.until(lambda: len(fleet.arbiter.state.membership.agents) == 2)
    assert len(fleet.arbiter.durable.members) == 2
    assert not [m for _, m in fleet.wire if isinstance(m, Release)]
    fleet.run()
    assert len(fleet.agents) == 2


def test_a_sole_holder_that_gets_notice_goes_on_trying() -> None:
    fleet = full(2, 2)
    (holder,) = fleet.agents
    fleet.receive(holder, Notice(30.0, "preempted"))
    fleet.wait(5.0)
    assert fleet.arbiter.fence.epoch < 8
    fleet.full = ""
    fleet.wait(5.0)
    assert outcome(fleet) is Outcome.COMPLETE


def test_only_another_cause_is_said_again() -> None:
    fleet = full()
    fleet.wait(200.0)
    assert len(bad(fleet)) == 1
    fleet.full = FULL.replace("No space left on device", "Permission denied")
    fleet.wait(31.0)
    assert ["Permission denied" in text for text in bad(fleet)] == [False, True]


@pytest.mark.parametrize("suspended", [False, True])
def test_a_holder_that_leaves_soon_stops_nothing_once_all_is_saved(suspended: bool) -> None:
    fleet = full(1, 1)
    fleet.tell(a.DesiredState(1, suspended=suspended))
    (holder,) = fleet.agents
    fleet.receive(holder, Notice(4.0, "preempted"))
    fleet.run(2_000)
    fleet.full = ""
    fleet.wait(2.0)
    assert outcome(fleet) is Outcome.COMPLETE
    assert fleet.arbiter.durable.attempt == 0


def test_tries_are_not_rare_shortly_before_a_sole_holder_leaves() -> None:
    fleet = full(1, 1)
    (holder,) = fleet.agents
    fleet.wait(100.0)
    fleet.receive(holder, Notice(30.0, "preempted"))
    fleet.wait(26.0)
    assert outcome(fleet) is None
    fleet.full = ""
    fleet.wait(3.5)
    assert outcome(fleet) is Outcome.COMPLETE


def wanted(fleet: Fleet) -> int:
    unwritten = fleet.arbiter.status().unwritten
    assert unwritten is not None
    return unwritten.successors


def test_an_agent_takes_the_state_over_from_a_sole_holder_that_will_leave() -> None:
    fleet = full(2, 2)
    (holder,) = fleet.agents
    assert wanted(fleet) == 0
    fleet.receive(holder, Notice(60.0, "preempted"))
    fleet.wait(2.0)
    assert wanted(fleet) == 1
    successor = fleet.add("b0", "z0")
    fleet.wait(2.0)
    assert sorted(successor.executor.versions) == [0, 1]
    assert (list(fleet.agents), fleet.arbiter.durable.members) == (["b0"], ("b0",))
    assert wanted(fleet) == 0
    late = fleet.add("b1", "z1")
    fleet.wait(60.0)
    assert (late.released, successor.released, restores(fleet)) == (0, None, [])
    fleet.full = ""
    fleet.wait(31.0)
    assert (outcome(fleet), fleet.arbiter.durable.attempt) == (Outcome.COMPLETE, 0)


def test_a_try_that_hangs_does_not_keep_the_state_from_a_successor() -> None:
    fleet = full(1, 2, mode=NONE)
    fleet.hold_files = True
    fleet.wait(60.0)
    for agent in list(fleet.agents):
        fleet.receive(agent, Notice(60.0, "preempted"))
    fleet.wait(1.0)
    successor = fleet.add("b0", "z0")
    fleet.wait(2.0)
    assert sorted(successor.executor.versions) == [0, 1]
    fleet.full = ""
    for agent in ("a0", "a1"):
        fleet.kill(agent)
    fleet.wait(2.0)
    assert (outcome(fleet), fleet.arbiter.durable.attempt) == (Outcome.COMPLETE, 0)


def test_the_state_waits_until_as_many_agents_have_come_as_can_hold_it() -> None:
    """No agent takes more than two stages. Until then the holders write on, with pauses."""
    fleet = full(1, 4, mode=NONE)
    holders = list(fleet.agents)
    for agent in holders:
        fleet.receive(agent, Notice(200.0, "preempted"))
    fleet.wait(2.0)
    assert wanted(fleet) == 2
    first = fleet.add("b0", "z0")
    before = len(fleet.requests)
    fleet.wait(60.0)
    assert 1 <= len(fleet.requests) - before <= 6
    assert (first.released, wanted(fleet)) == (None, 2)
    fleet.add("b1", "z1")
    fleet.wait(2.0)
    assert sorted(fleet.agents) == ["b0", "b1"]
    layers = [x for agent in fleet.agents.values() for x in agent.executor.versions]
    assert sorted(layers) == [0, 1, 2, 3]
    fleet.full = ""
    fleet.wait(31.0)
    assert (outcome(fleet), fleet.arbiter.durable.attempt) == (Outcome.COMPLETE, 0)


def test_nobody_takes_over_for_a_job_that_is_to_be_suspended() -> None:
    fleet = suspending()
    for agent in list(fleet.agents):
        fleet.receive(agent, Notice(250.0, "preempted"))
    fleet.wait(2.0)
    assert wanted(fleet) == 0
    newcomer = fleet.add("b0", "z0")
    fleet.run()
    assert newcomer.released == 0


def test_a_new_leader_that_has_heard_no_holder_wants_nobody() -> None:
    fleet = full(2, 2)
    (holder,) = fleet.agents
    fleet.restart()
    fleet.tell(a.DesiredState(2))
    assert wanted(fleet) == 0
    fleet.connect(fleet.agents[holder])
    fleet.receive(holder, Notice(60.0, "preempted"))
    fleet.run()
    assert wanted(fleet) == 1


def test_the_status_names_the_layers_without_a_file() -> None:
    fleet = full(1, 2, mode=NONE)
    fleet.wait(10.0)
    unwritten = fleet.arbiter.status().unwritten
    assert unwritten is not None
    assert unwritten.layers == (0, 1)


def looks(fleet: Fleet, usual_s: float = 75.0) -> list[tuple[float, Agent]]:
    """Another node does not see the files: each seal comes after all the time to look. Returns the
    seals that are under way, with their times."""
    under_way, complete = list[tuple[float, Agent]](), fleet.complete

    def begin(agent: Agent) -> None:
        instruction, told = agent.executor.running, agent.executor.directive
        assert instruction is not None
        assert told is not None
        if instruction.op is Op.SEAL and not fleet.full:
            under_way.append((fleet.now + (told.look_s or usual_s), agent))
        else:
            complete(agent)

    fleet.complete = begin  # type: ignore[method-assign]
    fleet.seal = complete  # type: ignore[attr-defined]
    return under_way


@pytest.mark.parametrize("left_s", [40.0, 10.0, 2.0])
def test_space_that_comes_back_shortly_before_the_deadline_is_used(left_s: float) -> None:
    """Though another node does not see the files, and would be waited for longer."""
    fleet = full(1, 2)
    under_way = looks(fleet)
    fleet.tell(a.DesiredState(1, last_write_s=120.0))
    unwritten = fleet.arbiter.status().unwritten
    while unwritten is not None and unwritten.left_s > left_s:
        fleet.wait(0.25)
        unwritten = fleet.arbiter.status().unwritten
    fleet.full = ""
    for _ in range(round(4 * left_s)):
        fleet.wait(0.25)
        for due, agent in under_way:
            running = agent.executor.running
            if fleet.now >= due and running is not None and running.op is Op.SEAL:
                fleet.seal(agent)  # type: ignore[attr-defined]
        fleet.run()
    assert outcome(fleet) is Outcome.COMPLETE


def test_the_look_before_the_seal_ends_in_time_for_the_deadline() -> None:
    """A file that another node does not see is no reason to give the weights up."""
    fleet = full(1, 2)
    told = list[tuple[float, float]]()  # (for how long agents may look, seconds left)
    deliver = fleet.deliver

    def note(agent: Agent, message: object) -> None:
        if isinstance(message, Directive):
            unwritten = fleet.arbiter.status().unwritten
            assert unwritten is not None
            told.append((message.look_s, unwritten.left_s))
        deliver(agent, message)

    fleet.deliver = note  # type: ignore[method-assign]
    fleet.tell(a.DesiredState(1, last_write_s=40.0))
    fleet.wait(39.0)
    assert len(told) > 8
    assert all(0 < look_s <= left_s / 3 for look_s, left_s in told)
    assert told[0][0] > 5.0


def test_a_plan_that_trains_says_nothing_of_looks() -> None:
    fleet = running(1, 2, steps=4, every=0)
    assert fleet.arbiter.state.in_force is not None
    assert {d.look_s for d in fleet.arbiter.state.in_force.directives.values()} == {0.0}
