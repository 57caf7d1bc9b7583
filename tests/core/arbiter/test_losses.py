"""Losses: what is redone, who decides, when a restore is legal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.events import EventFact, EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import RedundancyMode
from bamboo_core.arbiter_state import events as a
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol.messages import (
    Cause,
    Failure,
    Fingerprint,
    Heartbeat,
    Hello,
    Notice,
    Release,
    Stop,
)

from .fleet import Fleet, committed, running, spec

A1 = AgentId("a1")


@pytest.mark.parametrize("victim", ["a0", "a1", "a2"])
@pytest.mark.parametrize("after", range(5, 120, 23))
def test_one_loss_costs_no_committed_step(victim: str, after: int) -> None:
    fleet = running(steps=3)
    while fleet.events < after:
        assert fleet.step()
    fleet.kill(victim)
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert fleet.arbiter.durable.attempt == 0


def test_a_job_of_an_earlier_version_keeps_its_sums_through_a_loss() -> None:
    fleet = running(2, 2, durable=Durable(batch=BatchShape(4, 2, 2)), steps=3)
    plan = fleet.arbiter.status().plan
    assert plan is not None
    assert (plan.batch.leaf_size, plan.batch.chunks) == (2, 2)
    while fleet.events < 60:
        assert fleet.step()
    fleet.kill("a1")
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert fleet.arbiter.durable.attempt == 0


def test_a_time_out_is_enough_while_a_voter_reports() -> None:
    fleet = running(steps=8)
    fleet.kill("a2", confirmed=False)
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    assert fleet.arbiter.durable.attempt == 0


def test_without_a_voter_only_a_new_attempt_goes_on() -> None:
    """Behind a partition the old plan may still run: the end of its members was not seen."""
    timing = a.Timing(voter_wait_s=30.0, return_s=15.0)
    fleet = Fleet(spec(stages=2, steps=8, every=2), layers=2, timing=timing)
    fleet.add_grid(1, 2)
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: committed(fleet, 5))
    fleet.restart()
    fleet.tell(a.DesiredState(1))
    fleet.agents.clear()
    fleet.add_grid(1, 2, "b")
    fleet.wait(20.0)
    assert fleet.arbiter.status().phase is a.ArbiterPhase.HOLDING
    assert fleet.arbiter.durable.attempt == 0
    fleet.wait(30.0)
    assert fleet.arbiter.durable.attempt == 1
    assert fleet.over is not None


def test_a_voter_that_comes_back_in_time_is_heard_though_newcomers_fill_the_grid() -> None:
    fleet = Fleet(spec(stages=2, steps=8, every=2), layers=2)
    fleet.add_grid(1, 2)
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: committed(fleet, 5))
    alive = dict(fleet.agents)
    for name in alive:
        fleet.tell(a.Disconnected(name))
    fleet.agents.clear()
    fleet.idle(5.0)
    fleet.add_grid(1, 2, "b")
    fleet.wait(5.0)
    fence = fleet.arbiter.fence
    fleet.wait(5.0)
    assert fleet.arbiter.fence == fence  # nobody is stopped again and again
    fleet.agents.update(alive)
    fleet.reconnect()
    fleet.run()
    assert fleet.over is not None
    assert fleet.arbiter.durable.attempt == 0


def test_voters_that_are_certainly_dead_do_not_hold_up_the_job() -> None:
    fleet = Fleet(spec(stages=2, steps=8, every=2), layers=2)
    fleet.add_grid(1, 2)
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: committed(fleet, 5))
    fleet.restart()
    fleet.tell(a.DesiredState(1))
    for name in list(fleet.agents):
        fleet.kill(name)
    fleet.add_grid(1, 2, "b")
    fleet.run()
    assert fleet.arbiter.durable.attempt == 1
    assert fleet.over is not None


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("UserCodeFailed", "UserCodeFailed"),
        ("DataTooSmall", "DataTooSmall"),
        ("CheckpointFailed", "CheckpointFailed"),
        ("WorkerExited", "UserCodeFailed"),
        ("StepsReached", "UserCodeFailed"),
    ],
)
def test_a_user_s_error_on_two_agents_ends_the_job_with_its_reason(said: str, reason: str) -> None:
    """No agent has ever become ready."""
    fleet = Fleet(spec(steps=40))
    fleet.tell(a.DesiredState(1))
    for name in ("a0", "a1"):
        fleet.tell(a.Connected(Hello(AgentId(name), name, name, "z", name, "", ""), b""))
    fleet.receive(AgentId("a0"), Failure(said, "too bad", True, 2))
    fleet.receive(AgentId("a0"), Failure(said, "too bad", True, 2))  # it may be heard twice
    assert fleet.over is None
    assert fleet.records[-1].reason is EventReason.WORKER_FAILED
    fleet.receive(A1, Failure(said, "too bad", True, 2))
    fleet.run()
    assert fleet.over is not None
    assert (fleet.over.outcome, fleet.over.reason) == (Outcome.FAILED, reason)
    assert fleet.over.message == f"{A1}: {said}: too bad"


def test_the_worker_s_end_is_a_confirmed_loss() -> None:
    fleet = running(steps=40)
    fleet.receive(A1, Failure("Overdue", "killed", False, -9))
    del fleet.agents[A1]
    assert fleet.arbiter.status().phase is a.ArbiterPhase.COLLECTING
    assert A1 not in fleet.arbiter.status().members


@pytest.mark.parametrize("name", ["a1", "b0"])
def test_one_agent_s_user_error_does_not_end_a_running_job(name: str) -> None:
    """Neither a member's nor a newcomer's."""
    fleet = running(steps=40)
    if name == "b0":
        hello = Hello(AgentId(name), name, name, "z", name, "", "")
        fleet.tell(a.Connected(hello, b""))
    fleet.receive(AgentId(name), Failure("LayerRaised", "division by zero", True, 2))
    fleet.agents.pop(AgentId(name), None)
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    failed = [r for r in fleet.records if r.reason is EventReason.WORKER_FAILED]
    assert [r.facts[EventFact.CAUSE] for r in failed] == ["UserCodeFailed"]


def fail_in_mid_job(fleet: Fleet, name: str, text: str, reason: str = "UserCodeFailed") -> None:
    fleet.until(lambda: name in fleet.arbiter.status().members)
    fleet.receive(AgentId(name), Failure(reason, text, True, 2))
    fleet.agents.pop(AgentId(name), None)


def test_a_user_s_error_that_two_members_meet_ends_a_running_job() -> None:
    """The second has taken over the work of the first."""
    fleet = running(pipelines=2, stages=2, steps=400)
    fail_in_mid_job(fleet, "a1", "micro-batch 3 of step 9 ignores 0 of 24")
    assert fleet.over is None
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    fail_in_mid_job(fleet, "a3", "micro-batch 3 of step 9 ignores 0 of 24")
    fleet.run()
    assert fleet.over is not None
    assert (fleet.over.outcome, fleet.over.reason) == (Outcome.FAILED, "UserCodeFailed")
    found = "a3: UserCodeFailed: micro-batch 3 of step 9 ignores 0 of 24; "
    assert fleet.over.message.startswith(found)
    assert fleet.over.message == found + "no step was committed"


@pytest.mark.parametrize(
    ("text", "reason"), [("another text", "UserCodeFailed"), ("too bad", "WorkerExited")]
)
def test_members_that_fail_otherwise_do_not_end_a_running_job(text: str, reason: str) -> None:
    fleet = running(pipelines=2, stages=2, steps=40)
    fail_in_mid_job(fleet, "a1", "too bad")
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    fail_in_mid_job(fleet, "a3", text, reason)
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_newcomers_that_fail_alike_do_not_end_a_running_job() -> None:
    fleet = running(steps=40)
    for name in ("b0", "b1"):
        hello = Hello(AgentId(name), name, name, "z", name, "", "")
        fleet.tell(a.Connected(hello, b""))
        fleet.receive(AgentId(name), Failure("UserCodeFailed", "too bad", True, 2))
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_suspected_and_disconnected_is_lost_at_once() -> None:
    fleet = running(steps=40)
    fleet.tell(a.Disconnected(A1))
    assert A1 in fleet.arbiter.status().members
    fleet.suspect("a0", "a1", Cause.LIVENESS_CLOSED)
    assert A1 not in fleet.arbiter.status().members
    assert fleet.arbiter.status().phase is a.ArbiterPhase.COLLECTING


def test_suspicions_of_another_epoch_do_not_count() -> None:
    fleet = running(steps=40)
    fleet.tell(a.Disconnected(A1))
    fleet.suspect("a0", "a1", Cause.LIVENESS_CLOSED, Fence(0, 1, 0))
    assert A1 in fleet.arbiter.status().members


def test_a_frozen_agent_is_lost_after_a_second_of_silence() -> None:
    fleet = running(steps=40)
    for at in (0.3, 0.6, 0.9, 1.2):
        fleet.now = at
        for name in ("a0", "a2"):
            fleet.receive(AgentId(name), Heartbeat(1, 0, 0))
    fleet.suspect("a0", "a1", Cause.LIVENESS_SILENT)
    assert A1 not in fleet.arbiter.status().members


def test_a_suspicion_from_before_a_wait_does_not_count_after_it() -> None:
    fleet = running(steps=40, stages=5)
    for name in ("a2", "a3", "a4"):
        fleet.kill(name)
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.HOLDING)
    fleet.suspect("a0", "a1", Cause.CHANNEL_BROKEN)
    before = fleet.arbiter.fence
    fleet.add("b2", "z2")
    fleet.until(lambda: fleet.arbiter.fence > before)
    for _ in range(5):
        fleet.now += 0.3
        for name in sorted(fleet.agents.keys() - {A1}):
            fleet.receive(name, Heartbeat(1, 0, 0))
        fleet.tell(a.Tick())
    assert A1 in fleet.arbiter.status().members


def test_a_broken_link_costs_an_epoch_first_and_an_agent_then() -> None:
    fleet = running(steps=400, stages=3)

    def break_link() -> None:
        fleet.suspect(AgentId("a0"), A1, Cause.CHANNEL_BROKEN)
        fleet.idle(1.5)

    def settle() -> None:
        fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)

    break_link()
    assert len(fleet.arbiter.status().members) == 3
    settle()
    break_link()
    assert len(fleet.arbiter.status().members) == 2


def test_an_agent_that_was_left_out_is_fenced_when_it_comes_back() -> None:
    fleet = running(steps=40)
    agent = fleet.agents[A1]
    fleet.kill("a1", confirmed=False)
    assert A1 not in fleet.dismissed
    fleet.until(lambda: A1 in fleet.dismissed)
    assert fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING
    fleet.connect(agent)
    assert (A1, Release(3, "left out of the plan")) in fleet.wire


def test_an_agent_that_comes_back_before_the_plan_brings_its_holdings() -> None:
    """All but one member are cut off; when one of them is back nothing is lost."""
    fleet = running(stages=4, steps=40)
    fleet.until(lambda: committed(fleet, 3))
    back = fleet.agents[A1]
    fleet.kill("a0", confirmed=False)
    fleet.kill("a1", confirmed=False)
    fleet.kill("a2", confirmed=False)
    fleet.run()
    assert fleet.arbiter.status().phase is a.ArbiterPhase.HOLDING  # one of four is too few
    fleet.agents[A1] = back
    fleet.connect(back)
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert fleet.arbiter.durable.attempt == 0


def test_an_operator_that_was_cut_off_finds_everything_again() -> None:
    """All sessions break though no agent died: no restore, and nothing is lost."""
    fleet = running(steps=40)
    fleet.until(lambda: committed(fleet, 3))
    alive = dict(fleet.agents)
    for name in alive:
        fleet.tell(a.Disconnected(name))
    fleet.agents.clear()
    fleet.idle(10.0)
    assert fleet.arbiter.status().phase is a.ArbiterPhase.HOLDING
    fleet.agents.update(alive)
    fleet.reconnect()
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert fleet.arbiter.durable.attempt == 0


def test_agents_given_up_for_a_broken_link_are_asked_again() -> None:
    """Two agents of three that cannot reach each other: one alone is too few; the link heals."""
    fleet = running(steps=40)
    fleet.kill("a2")
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    for _ in range(2):
        fleet.suspect(AgentId("a0"), A1, Cause.CHANNEL_BROKEN)
        fleet.idle(1.25)
        fleet.until(
            lambda: fleet.arbiter.status().phase in (a.ArbiterPhase.RUNNING, a.ArbiterPhase.HOLDING)
        )
    assert fleet.arbiter.status().phase is a.ArbiterPhase.HOLDING
    fleet.idle(6.0)
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert fleet.arbiter.durable.attempt == 0


def held_with_a_suspect() -> Fleet:
    """a1 is dead, and a0, which holds the other copy of its layer, is given up by mistake."""
    fleet = running(stages=4, steps=20)
    fleet.until(lambda: committed(fleet, 2))
    fleet.tell(a.Lost(AgentId("a0"), confirmed=False, evidence="unreachable"))
    fleet.kill("a1")
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.HOLDING)
    assert "no live copy" in fleet.arbiter.status().detail
    return fleet


def test_a_holder_that_was_given_up_is_asked_again_before_a_restore() -> None:
    fleet = held_with_a_suspect()
    fleet.wait(6.0)
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert fleet.arbiter.durable.attempt == 0


def given_up_before_ready() -> Fleet:
    """Two of three live, and a new leader gives one of them up before it has said what it is."""
    fleet = running(stages=3, steps=20)
    fleet.until(lambda: committed(fleet, 2))
    fleet.kill("a1")
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    fleet.run_wire()
    fleet.restart()
    early = fleet.agents[AgentId("a0")]
    fleet.tell(a.DesiredState(1))
    fleet.tell(a.Connected(replace(early.hello, fence=early.executor.fence), b"a0"))
    fleet.tell(a.Lost(early.name, confirmed=False, evidence="unreachable"))
    return fleet


def test_what_is_said_once_by_one_that_was_given_up_counts_when_it_is_asked_again() -> None:
    fleet = given_up_before_ready()
    fleet.receive(AgentId("a0"), fleet.agents[AgentId("a0")].ready)
    fleet.connect(fleet.agents[AgentId("a2")])
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.HOLDING)
    fleet.wait(6.0)
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert fleet.arbiter.durable.attempt == 0


@pytest.mark.parametrize("when", ["as it is given up", "when it is asked again"])
def test_one_that_was_given_up_and_will_go_away_hands_over(when: str) -> None:
    """It alone holds what is missing; its notice is not forgotten."""
    fleet = running(stages=3, steps=20, mode=RedundancyMode.NONE)
    fleet.until(lambda: committed(fleet, 2))
    fleet.tell(a.Lost(A1, confirmed=False, evidence="unreachable"))
    if when == "as it is given up":
        fleet.receive(A1, Notice(600.0, "spot"))
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.HOLDING)
    fleet.add("n1", "z1")
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.HOLDING)
    fleet.idle(5.5)
    if when == "when it is asked again":
        fleet.receive(A1, Notice(600.0, "spot"))
    fleet.run()
    assert A1 in fleet.dismissed
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert fleet.arbiter.durable.attempt == 0


def test_one_that_was_given_up_and_does_not_fit_is_not_asked_again() -> None:
    fleet = given_up_before_ready()
    fleet.receive(AgentId("a0"), replace(fleet.agents[AgentId("a0")].ready, layers=1))
    fleet.connect(fleet.agents[AgentId("a2")])
    fleet.wait(6.0)
    assert fleet.arbiter.status().ready == ("a2",)
    fleet.add("n1", "z1")
    fleet.add("n2", "z0")
    fleet.wait(2.0)
    assert AgentId("a0") in fleet.dismissed


def test_how_long_a_holder_is_waited_for_does_not_depend_on_how_often_that_has_happened() -> None:
    fleet = running(pipelines=1, stages=2, steps=200, mode=RedundancyMode.NONE)
    for _ in range(6):
        step = max(step for _, step in fleet.commits) if fleet.commits else 0
        fleet.until(lambda step=step: committed(fleet, step + 3))
        fleet.tell(a.Lost(A1, confirmed=False, evidence="unreachable"))
        fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.HOLDING)
        fleet.idle(5.5)
        fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    assert fleet.arbiter.durable.attempt == 0


def test_newcomers_do_not_put_off_that_a_holder_is_asked_again() -> None:
    fleet = running(stages=4, steps=200, mode=RedundancyMode.NONE)
    fleet.until(lambda: committed(fleet, 2))
    fleet.tell(a.Lost(AgentId("a3"), confirmed=False, evidence="unreachable"))
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.HOLDING)
    for i in range(4):
        fleet.idle(3.0)
        fleet.add(f"n{i}", f"z{i % 2}")
        fleet.until(
            lambda: fleet.arbiter.status().phase in (a.ArbiterPhase.HOLDING, a.ArbiterPhase.RUNNING)
        )
    assert fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING
    assert fleet.arbiter.durable.attempt == 0


@pytest.mark.parametrize("is_first", [False, True])
def test_a_leaver_that_was_given_up_is_asked_when_all_others_are_dead(is_first: bool) -> None:
    fleet = running(pipelines=2, stages=1, steps=200)
    fleet.until(lambda: committed(fleet, 2))
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: bool(fleet.arbiter.status().leaving))
    plan = fleet.arbiter.status().plan
    assert plan is not None
    (stays,), (leaves,) = plan.live, plan.leaving
    mistake = a.Lost(leaves, confirmed=False, evidence="not heard of")
    if is_first:
        fleet.tell(mistake)
    fleet.kill(stays)
    if not is_first:
        fleet.tell(mistake)
    fleet.wait(7.0)
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert fleet.arbiter.durable.attempt == 0


def test_a_spare_that_was_silent_counts_again_when_it_is_heard() -> None:
    fleet = running(pipelines=2, stages=2, steps=200)
    spare = fleet.add("n1", "z1")
    for _ in range(16):
        fleet.now += 0.25
        for name in fleet.agents:
            if name != spare.name:
                fleet.receive(name, fleet.beat)
        fleet.tell(a.Tick())
    assert spare.name not in fleet.arbiter.status().standby
    fleet.receive(spare.name, fleet.beat)
    assert spare.name in fleet.arbiter.status().standby
    fleet.kill("a1")
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    plan = fleet.arbiter.status().plan
    assert plan is not None
    assert spare.name in plan.live


def test_a_holder_that_is_dead_for_certain_is_not_waited_for() -> None:
    fleet = held_with_a_suspect()
    fleet.kill("a0")
    fleet.until(lambda: fleet.arbiter.durable.attempt == 1, limit=2000)


def test_a_holder_that_has_come_back_is_asked_before_a_restore() -> None:
    fleet = running(stages=4, steps=20)
    fleet.until(lambda: committed(fleet, 2))
    away = fleet.agents[AgentId("a0")]
    fleet.tell(a.Lost(away.name, confirmed=False, evidence="unreachable"))
    fleet.kill("a1")
    fleet.connect(away)  # after the stop: it is not asked with the others
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert fleet.arbiter.durable.attempt == 0


def test_every_wait_for_a_voter_has_its_own_deadline() -> None:
    fleet = running(stages=4, steps=20)
    for name in ("a1", "a2", "a3"):
        fleet.kill(name)
    for _ in range(3):
        fleet.until(lambda: "too few" in fleet.arbiter.status().detail)
        fleet.tell(a.Lost(AgentId("a0"), confirmed=False, evidence="unreachable"))
        fleet.until(lambda: "no voter" in fleet.arbiter.status().detail)
        fleet.wait(90.0)
    assert fleet.arbiter.durable.attempt == 0


def test_a_stop_is_said_again_to_a_member_that_reconnects() -> None:
    fleet = running(steps=40)
    fleet.run_wire()
    fleet.kill("a2")
    fleet.wire.clear()
    fleet.connect(fleet.agents[A1])
    assert any(to == A1 and isinstance(m, Stop) for to, m in fleet.wire)


def test_a_new_leader_goes_on_where_the_members_are() -> None:
    fleet = running(pipelines=2, stages=2, steps=6)
    fleet.until(lambda: committed(fleet, 2))
    fleet.restart()
    fleet.tell(a.DesiredState(2))
    assert fleet.arbiter.status().phase is a.ArbiterPhase.RETURNING
    fleet.reconnect()
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert fleet.arbiter.durable.attempt == 0
    assert fleet.arbiter.durable.plan.term == 2


def test_a_refused_newcomer_costs_no_suspect_its_place() -> None:
    """a1 alone holds its layer; it is only silent, so it is asked again."""
    fleet = running(steps=40, stages=3, mode=RedundancyMode.NONE)
    fleet.until(lambda: committed(fleet, 2))
    fleet.tell(a.Lost(A1, confirmed=False, evidence="unreachable"))
    fleet.add("n0", "z1", fingerprint=Fingerprint(code="other"))
    assert "n0" in fleet.arbiter.state.membership.fenced
    assert A1 not in fleet.dismissed
    fleet.wait(8.0)
    assert fleet.arbiter.durable.attempt == 0
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_a_new_leader_does_not_take_a_stranger_for_the_job() -> None:
    """It hears the newcomer before any member: members hold the state, and none may be refused."""
    fleet = running(pipelines=2, stages=2, steps=40)
    fleet.until(lambda: committed(fleet, 2))
    fleet.restart()
    fleet.tell(a.DesiredState(2))
    fleet.add("b0", "z0", fingerprint=Fingerprint(products="other", device="cpu:other"))
    fleet.reconnect()
    fleet.run()
    refused = [r.agents for r in fleet.records if r.reason is EventReason.AGENT_REFUSED]
    assert refused == [("b0",)]
    assert "b0" in fleet.arbiter.state.membership.fenced
    assert fleet.arbiter.durable.attempt == 0
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_newcomers_that_differ_from_each_other_are_not_taken_together() -> None:
    """The members are of the version before, and equal both."""
    fleet = running(pipelines=3, stages=2, steps=80)
    for name in ("a0", "a1"):
        fleet.kill(name)
        fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    for n, products in enumerate(("one", "two")):
        fleet.add(f"b{n}", f"z{n}", fingerprint=Fingerprint(products=products))
    fleet.idle(1.5)
    fleet.run()
    refused = [r.agents for r in fleet.records if r.reason is EventReason.AGENT_REFUSED]
    assert refused == [("b1",)]
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
