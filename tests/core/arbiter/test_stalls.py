"""Agents live, but training does not go on: plan again, then replace the agent at the root."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.events import EventFact, EventReason, Severity
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import RedundancyMode
from bamboo_core.arbiter_state import events as a
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import Activity, ActivityKind, Cause, Heartbeat, Suspicion

from .fleet import Fleet, committed, running, spec

A0, A1, A2 = (AgentId(f"a{n}") for n in range(3))
OVERDUE = {A1: Activity(ActivityKind.RUNNING, 31.0, 30.0, "F m0")}
CYCLE = {
    A0: Activity(ActivityKind.WAITING, 5.0, instruction="RECV", peer=A1),
    A1: Activity(ActivityKind.WAITING, 5.0, instruction="RECV", peer=A0),
}


def stuck(fleet: Fleet, activities: dict[AgentId, Activity], fence: Fence | None = None) -> None:
    """The agents' next heartbeats, and a look at them, long after the directives have left."""
    pause(fleet)
    beat(fleet, activities, fence)


def beat(fleet: Fleet, activities: dict[AgentId, Activity], fence: Fence | None = None) -> None:
    for name in sorted(fleet.agents):
        said = Heartbeat(1, 0, 0, fence or fleet.arbiter.fence, activities.get(name))
        fleet.receive(name, said)
    fleet.tell(a.Tick())


def pause(fleet: Fleet, seconds: float = 4.0) -> None:
    """Time passes after the directives have left; every agent is heard."""
    in_force = fleet.arbiter.state.in_force
    assert in_force is not None
    if fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING:
        fleet.until(lambda: in_force.sent_at.keys() >= set(in_force.plan.members))
    for _ in range(round(seconds / 0.5)):
        fleet.now += 0.5
        for name in sorted(fleet.agents):
            fleet.receive(name, Heartbeat(1, 0, 0, fleet.arbiter.fence))
        fleet.tell(a.Tick())


def stalls(fleet: Fleet) -> list[tuple[str, str]]:
    found = [r for r in fleet.records if r.reason is EventReason.STALLED]
    return [(str(r.facts[EventFact.CAUSE]), str(r.facts[EventFact.AGENTS])) for r in found]


def settle(fleet: Fleet) -> None:
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)


def test_a_stall_is_told_and_planned_again() -> None:
    fleet = running(steps=40)
    before = fleet.arbiter.fence
    stuck(fleet, OVERDUE)
    assert fleet.arbiter.fence.epoch == before.epoch + 1
    assert stalls(fleet) == [("InstructionOverdue", "a1")]
    assert "F m0 on a1 has taken 31.0 s" in fleet.arbiter.status().stall
    stop = next(r for r in fleet.records if r.reason is EventReason.STOPPED and r.agents)
    assert stop.agents == (A1,)
    assert len(fleet.arbiter.status().members) == 3
    fleet.until(lambda: committed(fleet, 1))
    assert fleet.arbiter.status().stall == ""


@pytest.mark.parametrize(("activities", "gone"), [(OVERDUE, A1), (CYCLE, A0)])
def test_the_same_root_is_replaced(activities: dict[AgentId, Activity], gone: AgentId) -> None:
    fleet = running(steps=40)
    stuck(fleet, activities)
    settle(fleet)
    stuck(fleet, activities)
    assert gone not in fleet.arbiter.status().members
    assert len(fleet.arbiter.status().members) == 2
    assert len(stalls(fleet)) == 2
    failed = [r for r in fleet.records if r.reason is EventReason.WORKER_FAILED]
    assert [(r.agents, r.facts[EventFact.CAUSE]) for r in failed] == [((gone,), "Stalled")]
    assert failed[0].severity is Severity.WARNING
    assert failed[0].message == f"{gone}: Stalled: {fleet.arbiter.status().stall}"
    fleet.run()
    assert gone in fleet.dismissed
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_a_broken_link_is_no_stall() -> None:
    """The operator may hear of the link late: then its ends have waited for long."""
    fleet = running(steps=40)
    pause(fleet)
    fence = fleet.arbiter.fence
    lost = (Suspicion(A1, Cause.CHANNEL_BROKEN, fence),)
    for _ in range(3):
        for name, suspicions in ((A0, lost), (A1, ()), (A2, ())):
            said = Heartbeat(1, 0, 0, fence, CYCLE.get(name), suspicions)
            fleet.receive(name, said)
        fleet.tell(a.Tick())
        fleet.now += 0.5
    assert stalls(fleet) == []
    assert fleet.arbiter.fence.epoch == fence.epoch + 1
    stop = next(r for r in fleet.records if r.reason is EventReason.STOPPED and r.agents)
    assert "connections are broken: a0-a1" in stop.message


def test_progress_in_between_forgives() -> None:
    fleet = running(steps=40)
    stuck(fleet, OVERDUE)
    fleet.until(lambda: committed(fleet, 1))
    stuck(fleet, OVERDUE)
    assert len(fleet.arbiter.status().members) == 3


def test_what_was_done_in_another_epoch_does_not_count() -> None:
    fleet = running(steps=40)
    stuck(fleet, OVERDUE, Fence(0, 1, 0))
    assert stalls(fleet) == []


def test_an_agent_that_goes_on_is_not_stuck() -> None:
    fleet = running(steps=40)
    pause(fleet)
    fleet.receive(A0, Heartbeat(1, 0, 0, fleet.arbiter.fence, CYCLE[A0]))
    fleet.receive(A1, Heartbeat(1, 0, 0, fleet.arbiter.fence, CYCLE[A1]))
    fleet.receive(A1, Heartbeat(1, 0, 0, fleet.arbiter.fence))
    fleet.tell(a.Tick())
    assert stalls(fleet) == []


def test_a_long_step_gives_waits_more_time() -> None:
    fleet = running(steps=40)
    fleet.until(lambda: committed(fleet, 0))
    fleet.arbiter.state.ledger.whole_s = 4.0
    stuck(fleet, CYCLE)
    assert stalls(fleet) == []


def test_a_stopped_job_is_not_stuck() -> None:
    fleet = running(steps=40)
    fleet.kill("a2")
    stuck(fleet, OVERDUE)
    assert stalls(fleet) == []


def test_a_sole_holder_is_replaced_last() -> None:
    """a0 and a1 wait for each other; after the loss of a2 only a0 holds one of its layers."""
    fleet = running(steps=40)
    stuck(fleet, CYCLE)
    settle(fleet)
    assert fleet.arbiter.state.in_force is not None
    wants = fleet.arbiter.state.in_force.plan.wants
    wants[A1] = wants[A2] = ((1, 3),)
    wants[A0] = ((0, 1),)
    stuck(fleet, CYCLE)
    assert A0 in fleet.arbiter.status().members
    assert A1 not in fleet.arbiter.status().members


def test_a_second_part_that_never_comes_means_a_new_plan() -> None:
    fleet = running(steps=40)
    state = fleet.arbiter.state
    assert state.in_force is not None
    state.in_force.continuations_by = state.clock.read(fleet.now)
    before = fleet.arbiter.fence
    fleet.tell(a.Tick())
    assert fleet.arbiter.fence > before


def test_who_waits_for_a_directive_that_is_on_its_way_is_not_stuck() -> None:
    """This process may have stood still since the directives left: the agents' clocks went on."""
    fleet = running(steps=40)
    early = {A0: CYCLE[A0], A1: Activity(ActivityKind.IDLE, 20.0)}
    beat(fleet, early)
    fleet.now += 20.0
    fleet.tell(a.Tick())
    assert stalls(fleet) == []


def test_who_waits_for_a_second_part_that_is_on_its_way_is_not_stuck() -> None:
    """This process may have stood still until it sent it: the agents have waited meanwhile."""
    fleet = running(steps=40)
    in_force = fleet.arbiter.state.in_force
    assert in_force is not None
    fleet.until(lambda: in_force.continued_at.keys() >= set(in_force.plan.members))
    early = {A0: Activity(ActivityKind.WAITING, 20.0)}
    beat(fleet, early)
    assert stalls(fleet) == []
    stuck(fleet, early)
    assert stalls(fleet) == [("ItemNotSent", "a0")]


def test_nobody_has_begun() -> None:
    fleet = running(steps=40)
    idle = Activity(ActivityKind.IDLE, 5.0)
    stuck(fleet, {A0: idle, A1: idle})
    assert stalls(fleet) == []
    stuck(fleet, dict.fromkeys((A0, A1, A2), idle))
    assert stalls(fleet) == [("ItemNotSent", "a0,a1,a2")]
    assert fleet.arbiter.status().stall.startswith("all agents are idle")


def test_agents_that_reconnect_do_not_hide_a_hang() -> None:
    """Each new session gets the directive again."""
    fleet = running(steps=40)
    pause(fleet, 4.0)
    agent = fleet.agents[A2]
    for _ in range(3):
        hello = replace(agent.hello, fence=fleet.arbiter.fence)
        fleet.tell(a.Connected(hello, b""))
        fleet.receive(A2, agent.ready)
    stuck(fleet, OVERDUE)
    assert stalls(fleet) == [("InstructionOverdue", "a1")]


def test_a_slow_storage_is_told_but_replaces_nobody() -> None:
    fleet = running(steps=40)
    before = fleet.arbiter.fence
    slow = {A1: Activity(ActivityKind.LOADING, 200.0, 0.0, "LOAD waits for storage")}
    pause(fleet)
    for _ in range(3):
        beat(fleet, slow)
    assert fleet.arbiter.fence == before
    assert stalls(fleet) == [("StorageSlow", "")]
    assert "storage is slow: a1" in fleet.arbiter.status().stall
    stuck(fleet, {})
    assert fleet.arbiter.status().stall == ""


def test_a_sample_that_does_not_come_is_told_but_replaces_nobody() -> None:
    fleet = running(steps=40)
    before = fleet.arbiter.fence
    pause(fleet)
    reads = Activity(ActivityKind.LOADING, 200.0, 300.0, "F m0 reads sample 9 of spec.data")
    for _ in range(3):
        beat(fleet, {A1: reads})
    assert fleet.arbiter.fence == before
    assert stalls(fleet) == [("DataSlow", "")]
    assert fleet.arbiter.status().stall.startswith("data are slow: F m0 reads sample 9")
    stuck(fleet, {})
    assert fleet.arbiter.status().stall == ""


def test_a_sample_for_which_a_stop_waits_is_told_too() -> None:
    fleet = running(steps=40)
    fleet.kill("a2")
    reads = Activity(ActivityKind.LOADING, 200.0, 300.0, "F m0 reads sample 9 of spec.data")
    for _ in range(3):
        beat(fleet, {A1: reads})
    assert fleet.arbiter.status().phase is a.ArbiterPhase.COLLECTING
    assert stalls(fleet) == [("DataSlow", "")]


def test_several_late_agents_are_told_but_replace_nobody() -> None:
    """A shared storage of samples that hangs: told at its limit, acted upon at four times that."""
    fleet = running(steps=40)
    before = fleet.arbiter.fence

    def reads(age_s: float) -> dict[AgentId, Activity]:
        return {
            a: Activity(ActivityKind.LOADING, age_s, 300.0, "F m0 reads data") for a in (A0, A1)
        }

    pause(fleet)
    beat(fleet, reads(119.0))
    assert fleet.arbiter.status().stall == ""
    for age_s in (301.0, 700.0, 1199.0):
        beat(fleet, reads(age_s))
    assert fleet.arbiter.fence == before
    assert stalls(fleet) == [("SeveralOverdue", "")]
    assert "2 agents are late together (a0, a1)" in fleet.arbiter.status().stall
    beat(fleet, reads(1200.0))
    assert fleet.arbiter.fence.epoch == before.epoch + 1
    assert stalls(fleet)[1:] == [("InstructionOverdue", "a0")]


def trickles(peer: AgentId, still_s: float = 30.0) -> Activity:
    return Activity(ActivityKind.WAITING, 0.2, 0.0, "RECV OUT m0", peer, still_s, 1.0)


def crawl(fleet: Fleet, links: dict[AgentId, Activity], seconds: float = 2.0) -> None:
    """The agents tell of slow links for so long."""
    beat(fleet, links)
    for _ in range(round(seconds / 0.5)):
        fleet.now += 0.5
        beat(fleet, links)


def test_a_link_that_trickles_is_told_and_the_next_plan_does_without_it() -> None:
    fleet = running(steps=40)
    pause(fleet)
    before = fleet.arbiter.fence
    crawl(fleet, {A1: trickles(A0)})
    assert stalls(fleet) == [("LinkTooSlow", "a0,a1")]
    text = "a1 has got 1 B/s from a0 for 30 s (RECV OUT m0): the link counts as standing still"
    assert fleet.arbiter.status().stall == text
    assert fleet.arbiter.fence.epoch == before.epoch + 1
    settle(fleet)
    assert fleet.arbiter.state.in_force is not None
    assert not {A0, A1} <= set(fleet.arbiter.state.in_force.plan.members)
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_who_has_held_up_the_training_before_goes_first() -> None:
    """Two links of one agent trickle, one after the other."""
    fleet = running(steps=40)
    fleet.arbiter.state.stalls.tried.add(A2)
    pause(fleet)
    crawl(fleet, {A1: trickles(A2)})
    assert set(fleet.arbiter.status().members) == {A0, A1}


def test_the_end_that_most_slow_links_have_goes() -> None:
    fleet = running(steps=40)
    pause(fleet)
    crawl(fleet, {A1: trickles(A2), A0: trickles(A2)})
    assert set(fleet.arbiter.status().members) == {A0, A1}


@pytest.mark.parametrize(("receiver", "sender"), [(A1, A2), (A2, A1)])
def test_the_sender_goes_if_nothing_else_tells_the_ends_apart(
    receiver: AgentId, sender: AgentId
) -> None:
    fleet = running(steps=40)
    pause(fleet)
    crawl(fleet, {receiver: trickles(sender)})
    assert set(fleet.arbiter.status().members) == {A0, receiver}


def hold_alone(fleet: Fleet, *agents: AgentId) -> None:
    """Each of these agents holds a layer that nobody else holds."""
    assert fleet.arbiter.state.in_force is not None
    wants = fleet.arbiter.state.in_force.plan.wants
    for n, agent in enumerate((A0, A1, A2)):
        wants[agent] = ((n, n + 1),) if agent in agents else ()


def test_a_sole_holder_stays_and_the_other_end_goes() -> None:
    fleet = running(steps=40)
    pause(fleet)
    hold_alone(fleet, A0)
    crawl(fleet, {A1: trickles(A0)})
    assert set(fleet.arbiter.status().members) == {A0, A2}


def test_a_link_that_every_plan_needs_is_told_and_goes_on() -> None:
    """Layers that only its ends hold can leave them by that link alone."""
    fleet = running(steps=40)
    before = fleet.arbiter.fence
    pause(fleet)
    hold_alone(fleet, A0, A1)
    for still_s in (30.0, 130.0, 500.0):
        crawl(fleet, {A1: trickles(A0, still_s)})
    assert fleet.arbiter.fence == before
    assert stalls(fleet) == [("LinkTooSlow", "")]
    assert fleet.arbiter.status().stall.endswith("no plan can do without it")
    beat(fleet, {})
    assert fleet.arbiter.status().stall == ""


A3 = AgentId("a3")


@pytest.mark.parametrize("mode", [RedundancyMode.REPLICA, RedundancyMode.NONE])
def test_two_links_without_a_common_end_are_left_out_at_once(mode: RedundancyMode) -> None:
    """An end of each goes, and a copy of each layer stays."""
    fleet = running(pipelines=2, stages=2, steps=40, mode=mode)
    before = fleet.arbiter.fence
    pause(fleet)
    crawl(fleet, {A0: trickles(A1)}, 1.5)
    assert fleet.arbiter.fence == before
    crawl(fleet, {A0: trickles(A1, 31.5), A2: trickles(A3)}, 0.5)
    assert stalls(fleet) == [("LinkTooSlow", "a0,a1,a2,a3")]
    members = set(fleet.arbiter.status().members)
    assert len(members & {A0, A1}) == len(members & {A2, A3}) == 1
    assert min(fleet.arbiter.status().copies.values()) >= 1
    settle(fleet)
    assert fleet.arbiter.fence.attempt == before.attempt
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert not [r for r in fleet.records if r.reason is EventReason.RESTORING]


SIX = {AgentId(f"a{n}"): AgentId(f"a{n + 1}") for n in (0, 2, 4)}
"""The links between the stages of three pipelines of two stages."""


def test_many_links_without_a_common_end_have_more_time() -> None:
    """The network may be slow for all: then fewer agents would be no better."""
    fleet = running(pipelines=3, stages=2, steps=40)
    before = fleet.arbiter.fence
    pause(fleet)
    for still_s in (30.0, 119.0):
        crawl(fleet, {a: trickles(b, still_s) for a, b in SIX.items()})
        assert fleet.arbiter.fence == before
        assert fleet.arbiter.status().stall.endswith("the network may be slow for all")
    crawl(fleet, {a: trickles(b, 120.0) for a, b in SIX.items()})
    assert fleet.arbiter.fence.epoch >= before.epoch + 1
    assert len(fleet.arbiter.status().members) == 3


def test_links_that_become_slow_one_after_the_other_may_share_what_is_slow() -> None:
    """Two ends have gone since the last commit: the third one has more time."""
    fleet = running(pipelines=3, stages=2, steps=40)
    for count, (receiver, sender) in enumerate(SIX.items()):
        settle(fleet)
        pause(fleet)
        assert len(fleet.arbiter.status().members) == 6 - count
        crawl(fleet, {receiver: trickles(sender)})
    assert len(fleet.arbiter.status().members) == 4
    assert fleet.arbiter.status().stall.endswith("the network may be slow for all")
    fleet.until(lambda: not fleet.arbiter.state.stalls.tried)
    pause(fleet)
    crawl(fleet, {receiver: trickles(sender)})
    assert len(fleet.arbiter.status().members) == 3


def test_an_agent_that_is_slow_to_all_goes_alone() -> None:
    """The first of its links that is told has the other end as its sender."""
    fleet = running(pipelines=2, stages=2, steps=40)
    pause(fleet)
    crawl(fleet, {A0: trickles(A1)}, 1.5)
    crawl(fleet, {A0: trickles(A1), A2: trickles(A0), A3: trickles(A0)}, 0.5)
    assert set(fleet.arbiter.status().members) == {A1, A2, A3}
    assert stalls(fleet) == [("LinkTooSlow", "a0,a1,a2,a3")]


def test_a_link_that_recovers_while_others_are_awaited_costs_nobody() -> None:
    fleet = running(steps=40)
    before = fleet.arbiter.fence
    pause(fleet)
    for _ in range(3):
        crawl(fleet, {A1: trickles(A0)}, 1.5)
        crawl(fleet, {}, 0.5)
    assert fleet.arbiter.fence == before
    assert stalls(fleet) == []


def test_who_waits_for_its_copy_is_no_holder() -> None:
    """The copy of a newcomer trickles: the newcomer goes, and not the only one that sends it."""
    job = spec(pipelines=2, stages=1, steps=40)
    fleet, newcomer = Fleet(job, layers=1, timing=a.Timing(join_grace_s=0.0)), AgentId("b0")
    fleet.add_grid(2, 1)
    fleet.tell(a.DesiredState(2))
    fleet.until(lambda: committed(fleet, 1))
    fleet.kill("a1")
    fleet.until(lambda: committed(fleet, 3))
    fleet.add("b0", "z1")
    fleet.until(lambda: newcomer in fleet.arbiter.status().members)
    settle(fleet)
    pause(fleet)
    assert fleet.arbiter.state.in_force is not None
    assert set(fleet.arbiter.state.in_force.plan.wants) == {A0, newcomer}
    crawl(fleet, {newcomer: trickles(A0)})
    assert set(fleet.arbiter.status().members) == {A0}


def test_a_very_long_step_gives_waits_a_minute() -> None:
    fleet = running(steps=40)
    fleet.until(lambda: committed(fleet, 0))
    fleet.arbiter.state.ledger.whole_s = 3600.0
    pause(fleet, 61.0)
    beat(fleet, {a: replace(x, age_s=59.0) for a, x in CYCLE.items()})
    assert stalls(fleet) == []
    beat(fleet, {a: replace(x, age_s=60.0) for a, x in CYCLE.items()})
    assert stalls(fleet) == [("WaitCycle", "a0,a1")]


def test_nobody_goes_if_another_slow_link_must_stay() -> None:
    """The job would wait for that one all the same, with a copy less."""
    fleet = running(steps=40)
    pause(fleet)
    hold_alone(fleet, A0, A1)
    crawl(fleet, {A1: trickles(A0, 200.0), A0: trickles(A2, 200.0)})
    assert set(fleet.arbiter.status().members) == {A0, A1, A2}
    assert stalls(fleet) == [("LinkTooSlow", "")]


def test_the_last_two_copies_do_not_go_together() -> None:
    """a1 and a2 hold the same layer, and a0 another one that nobody else holds."""
    fleet = running(steps=40)
    pause(fleet)
    hold_alone(fleet, A0, A1)
    assert fleet.arbiter.state.in_force is not None
    wants = fleet.arbiter.state.in_force.plan.wants
    wants[A2] = wants[A1]
    crawl(fleet, {A1: trickles(A0, 200.0), A2: trickles(A0, 200.0)})
    assert set(fleet.arbiter.status().members) == {A0, A1, A2}


def test_the_end_with_more_copies_goes() -> None:
    fleet = running(steps=40)
    pause(fleet)
    assert fleet.arbiter.state.in_force is not None
    wants = fleet.arbiter.state.in_force.plan.wants
    wants[A0], wants[A1], wants[A2] = ((0, 1),), ((1, 2),), ((0, 3),)
    wants[AgentId("elsewhere")] = ((1, 2),)
    crawl(fleet, {A1: trickles(A0)})
    assert A0 not in fleet.arbiter.status().members  # as many copies, and it sends
    fleet = running(steps=40)
    pause(fleet)
    assert fleet.arbiter.state.in_force is not None
    wants = fleet.arbiter.state.in_force.plan.wants
    wants[A0], wants[A1], wants[A2] = ((0, 1),), (), ((0, 3),)
    crawl(fleet, {A1: trickles(A0)})
    assert A1 not in fleet.arbiter.status().members
