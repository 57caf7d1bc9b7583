"""Restores: a new attempt from the newest file that can be read, and what it repeats is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import RedundancyMode
from bamboo_core.arbiter_state import events as a
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item
from bamboo_core.model.program import Op
from bamboo_core.planning import requests
from bamboo_core.protocol.messages import (
    AgentReport,
    BadCheckpoint,
    CommitRecord,
    Manifest,
    Progress,
    Sealed,
)

from .fleet import Fleet, committed, running, spec

A1 = AgentId("a1")


def replaced() -> Fleet:
    """Steps up to 5 are committed, version 4 is saved; then all agents are lost and others come."""
    fleet = running(steps=8, every=2)
    fleet.until(lambda: committed(fleet, 5))
    for name in list(fleet.agents):
        fleet.kill(name)
    fleet.add_grid(1, 3, "b")
    return fleet


class Deluded(Fleet):
    """From attempt 1 on, agents report a commit that cannot be, as long as ``until_s`` is ahead."""

    until_s = 0.0

    def receive(self, agent: AgentId, message: object) -> None:
        if isinstance(message, AgentReport) and message.fence.attempt and self.now < self.until_s:
            message = replace(message, commits=(CommitRecord(7),))
        super().receive(agent, message)


def check_repeated(fleet: Fleet) -> None:
    """A new attempt began with version 4, though steps 4 and 5 had been committed."""
    durable = fleet.arbiter.durable
    assert durable.attempt == 1
    assert durable.manifest is not None
    assert durable.manifest.step == 4
    assert any("2 committed steps repeated" in r.message for r in fleet.records)


def test_losing_all_copies_restores_the_newest_checkpoint() -> None:
    fleet = replaced()
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    redone = {k for attempt, k in fleet.commits if attempt == 1}
    assert redone == set(range(4, 9))  # 8: the epilogue
    check_repeated(fleet)


def starts(fleet: Fleet) -> list[str]:
    """Why agents stopped that had no plan."""
    stops = [r.message for r in fleet.records if r.reason is EventReason.STOPPED]
    return [text for text in stops if "the job " in text]


def test_a_job_starts_once_and_then_goes_on_from_what_is_left() -> None:
    fleet = replaced()
    fleet.run()
    assert starts(fleet) == [
        "epoch 1: the job starts",
        "epoch 3: the job goes on with attempt 1, from the checkpoint of step 4",
    ]
    unsaved = running(steps=6, every=0)
    unsaved.until(lambda: committed(unsaved, 3))
    for name in list(unsaved.agents):
        unsaved.kill(name)
    unsaved.add_grid(1, 3, "b")
    unsaved.run()
    assert starts(unsaved)[1].endswith(": the job goes on with attempt 1, from the start")


def test_a_resumed_job_says_from_where_it_goes_on() -> None:
    fleet = running(steps=8, every=0)
    fleet.tell(a.DesiredState(1, suspended=True))
    fleet.run()
    step = fleet.arbiter.durable.committed + 1
    fleet.tell(a.DesiredState(1))
    fleet.add_grid(1, 3, "b")
    fleet.run()
    assert starts(fleet)[-1].endswith(f"attempt 1, from the checkpoint of step {step}")


def test_an_attempt_that_begins_where_the_last_one_did_begins_after_a_pause() -> None:
    """Seen in a trial: agents reported steps that nobody holds, and two attempts began each second.
    Each is written to the API server, which all jobs share."""
    job = spec(pipelines=1, stages=3, steps=8, every=2)
    fleet = Deluded(job, layers=3)
    fleet.add_grid(1, 3)
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: committed(fleet, 5))
    for name in list(fleet.agents):
        fleet.kill(name)
    pause_s = fleet.job.timing.voter_wait_s
    fleet.until_s = fleet.now + 2.5 * pause_s
    fleet.add_grid(1, 3, "b")
    fleet.run()
    status = fleet.arbiter.status()
    assert status.phase is a.ArbiterPhase.HOLDING
    assert "attempt 1 has not computed anything yet" in status.detail
    attempts = []
    while fleet.now < fleet.until_s:
        attempts.append(fleet.arbiter.durable.attempt)
        fleet.wait(pause_s / 2)
    assert attempts == [1, 1, 2, 2, 3]
    fleet.wait(2 * pause_s)
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_a_loss_alone_repeats_nothing() -> None:
    fleet = running(steps=8, every=2)
    fleet.until(lambda: committed(fleet, 3))
    fleet.kill("a1")
    fleet.run()
    assert not any("repeated" in r.message for r in fleet.records)


def test_a_new_attempt_begins_without_the_agents_of_the_old_one() -> None:
    fleet = replaced()
    fleet.until(lambda: fleet.arbiter.durable.attempt == 1)
    durable = fleet.arbiter.durable
    assert (durable.members, durable.voters, durable.pipelines) == ((), (), ())
    assert durable.committed == 3


def test_newcomers_that_were_ready_before_all_were_lost_begin_a_new_attempt() -> None:
    fleet = running(steps=8, every=2)
    fleet.until(lambda: committed(fleet, 5))
    old = list(fleet.agents)
    for name in old:
        fleet.tell(a.Lost(AgentId(name), confirmed=False, evidence="unreachable"))
        del fleet.agents[AgentId(name)]
    fleet.add_grid(1, 3, "b")
    fleet.wait(6.0)
    assert "b2" in fleet.arbiter.status().members
    for name in old:
        fleet.tell(a.Lost(AgentId(name), confirmed=True, evidence="the pod is gone"))
    fleet.run()
    check_repeated(fleet)


def test_a_newcomer_with_a_seat_and_nothing_else_does_not_restart_silently() -> None:
    """It votes in the plan, but the holder of its layers dies before they are copied."""
    fleet = running(stages=2, steps=12, every=2)
    fleet.until(lambda: committed(fleet, 5))
    fleet.add("b1", "z1")
    fleet.kill("a1")
    fleet.until(lambda: "b1" in fleet.arbiter.durable.voters)
    fleet.kill("a0")
    fleet.add("b0", "z0")
    fleet.run()
    check_repeated(fleet)


def test_a_voter_is_awaited_for_a_minute() -> None:
    fleet = running(steps=8, every=2)
    fleet.until(lambda: committed(fleet, 5))
    for name in list(fleet.agents):
        fleet.tell(a.Lost(AgentId(name), confirmed=False, evidence="unreachable"))
        del fleet.agents[AgentId(name)]
    fleet.add_grid(1, 3, "b")
    while "no voter" not in fleet.arbiter.status().detail:
        fleet.wait(0.25)
    fleet.wait(59.0)
    assert fleet.arbiter.durable.attempt == 0
    fleet.wait(1.5)
    assert fleet.arbiter.durable.attempt == 1


def test_progress_of_an_attempt_that_is_over_does_not_count() -> None:
    """An agent that was out of reach keeps the message and sends it when it is back."""
    fleet = replaced()
    fleet.until(lambda: fleet.arbiter.durable.attempt == 1 and fleet.arbiter.status().members)
    late = next(iter(fleet.agents.values()))
    fleet.tell(a.Connected(replace(late.hello, fence=Fence(0, 1, 1)), b"key"))
    fleet.receive(late.name, Progress(CommitRecord(6)))
    assert fleet.arbiter.status().progress.committed == -1


def wrong(fleet: Fleet, why: str) -> BadCheckpoint:
    """An agent says this that has read checkpoint 4 for the present plan."""
    return BadCheckpoint(0, 4, why, fence=fleet.arbiter.fence)


def test_a_bad_checkpoint_is_passed_over() -> None:
    fleet = replaced()
    fleet.until(lambda: fleet.arbiter.durable.attempt == 1 and fleet.arbiter.status().plan)
    for name in ("b0", "b1"):
        fleet.receive(AgentId(name), wrong(fleet, "hash of layer 2 differs"))
    fleet.run()
    said = [r for r in fleet.records if r.reason is EventReason.CHECKPOINT_BAD]
    assert [r.agents for r in said] == [(AgentId("b0"),), (AgentId("b1"),)]
    durable = fleet.arbiter.durable
    assert (durable.attempt, durable.bad) == (2, ((0, 4),))
    assert durable.manifest is not None
    assert durable.manifest.step == 2
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


@pytest.mark.parametrize("is_known", [False, True])
def test_a_file_that_repairs_a_layer_and_cannot_be_read_is_passed_over(is_known: bool) -> None:
    fleet = running(pipelines=2, stages=2, steps=8, every=2, mode=RedundancyMode.NONE)
    fleet.until(lambda: committed(fleet, 3))
    mark = Manifest(0, 4, "0/4", "d")
    fleet.receive(A1, Sealed(mark))
    plan = fleet.arbiter.status().plan
    assert plan is not None
    for victim in {p[0] for p in plan.pipelines}:
        fleet.kill(str(victim))
    decisions = lambda: [p for p in fleet.plans if isinstance(p, requests.Decision)]  # noqa: E731
    fleet.until(lambda: len(decisions()) == 2)
    assert decisions()[-1].loads > 0
    assert fleet.arbiter.durable.attempt == 0
    bad = wrong(fleet, "hash of layer 0 differs")
    survivor, other = list(fleet.agents)[:2]
    if is_known:  # said before the plan was there
        fleet.receive(survivor, bad)
        fleet.receive(other, bad)
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    fleet.receive(survivor, bad)
    fleet.receive(other, bad)
    fleet.until(lambda: fleet.arbiter.durable.attempt == 1)
    restored = fleet.arbiter.durable.manifest
    assert restored is None or restored.step < mark.step


def test_a_base_that_turns_out_torn_when_all_have_read_it_repeats_nothing() -> None:
    """A new leader looks at the files again: what was read from them lives on."""
    fleet = replaced()
    fleet.until(lambda: fleet.arbiter.durable.attempt == 1 and committed(fleet, 6))
    for name in ("b0", "b1"):
        fleet.receive(AgentId(name), wrong(fleet, "layer 2 is short"))
    fleet.run()
    durable = fleet.arbiter.durable
    assert (durable.attempt, durable.bad) == (1, ((0, 4),))
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_a_final_checkpoint_that_a_new_leader_cannot_read_is_written_again() -> None:
    fleet = running(steps=4, every=0)
    executors = [agent.executor for agent in fleet.agents.values()]
    fleet.until(lambda: any(x.running and x.running.op is Op.SEAL for x in executors))
    fleet.restart()
    fleet.tell(a.DesiredState(1))
    fleet.reconnect()
    for name in sorted(fleet.agents):  # all of them look at the folder
        fleet.agents[name].executor.unsaved({4})
        fleet.receive(name, wrong(fleet, "layer 2 is short"))
    assert fleet.arbiter.durable.bad == ((0, 4),)
    fleet.run()
    assert [m.step for m in fleet.arbiter.durable.manifests] == [4]
    assert fleet.arbiter.durable.bad == ()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_a_final_checkpoint_that_is_written_again_in_part_stays_bad() -> None:
    """The agent that has written layer 1 still believes in its file."""
    fleet = running(steps=4, every=0)
    executors = [agent.executor for agent in fleet.agents.values()]
    fleet.until(lambda: any(x.running and x.running.op is Op.SEAL for x in executors))
    fleet.restart()
    fleet.tell(a.DesiredState(1))
    fleet.reconnect()
    for name, agent in fleet.agents.items():
        if agent.executor.held.get(Item.file(4, 1), True):  # it has not written this file itself
            agent.executor.unsaved({4})
            fleet.receive(name, wrong(fleet, "layer 2 is short"))
    fleet.run()
    assert fleet.arbiter.durable.bad == ((0, 4),)
    assert fleet.over is not None
    assert (fleet.over.outcome, fleet.over.reason) == (Outcome.FAILED, "CheckpointFailed")


def test_without_any_checkpoint_the_job_says_what_it_repeats() -> None:
    fleet = running(steps=6, every=0)
    fleet.until(lambda: committed(fleet, 3))
    for name in list(fleet.agents):
        fleet.kill(name)
    text = next(r.message for r in fleet.records if r.reason is EventReason.RESTORING)
    assert "attempt 1 from the start: 4 committed steps repeated" in text
