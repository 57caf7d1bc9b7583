"""Changes that no loss forces: suspend and resume, drain, refill, more or fewer pipelines."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import inf

import pytest

from bamboo_core.api.events import EventReason, Severity
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.progress import TrainingProgress
from bamboo_core.api.spec import Adjacency, PlacementSpec
from bamboo_core.arbiter import arbiter, changes
from bamboo_core.arbiter_state import events as a
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.membership import AgentRecord
from bamboo_core.arbiter_state.state import InForce, Ledger, Running
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.placement.plan import Plan
from bamboo_core.planning.requests import PlannerFault
from bamboo_core.protocol.messages import Fingerprint, Hello, Left, Notice, Ready, Release

from .fleet import Fleet, committed, spec

A1, N1 = AgentId("a1"), AgentId("n1")


def running(pipelines: int = 2, stages: int = 2, **options: object) -> Fleet:
    fleet = Fleet(spec(pipelines=pipelines, stages=stages, **options), layers=stages)  # type: ignore[arg-type]
    fleet.add_grid(pipelines, stages)
    fleet.tell(a.DesiredState(pipelines))
    fleet.until(lambda: committed(fleet, 1))
    return fleet


def grid(fleet: Fleet) -> tuple[tuple[AgentId | None, ...], ...]:
    plan = fleet.arbiter.status().plan
    assert plan is not None
    return plan.pipelines


# ---------------------------------------------------------------- suspend


def test_suspending_saves_and_releases_everyone() -> None:
    fleet = running(steps=20, every=0)
    fleet.tell(a.DesiredState(2, suspended=True))
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.SUSPENDED
    assert not fleet.agents
    newest = max(step for _, step in fleet.commits)
    assert fleet.arbiter.durable.manifests[-1].step == newest + 1
    assert newest < 19
    (told,) = [r for r in fleet.records if r.reason is EventReason.SUSPENDED]
    assert told.message == f"suspended after {newest + 1} of 20 steps"


def test_a_resumed_job_repeats_nothing_in_another_grid() -> None:
    fleet = running(steps=8, every=0)
    fleet.tell(a.DesiredState(2, suspended=True))
    fleet.run()
    done = max(step for _, step in fleet.commits)
    fleet.over = None
    fleet.tell(a.DesiredState(1))
    fleet.add_grid(1, 2, "b")
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert {s for attempt, s in fleet.commits if attempt == 1} == set(range(done + 1, 9))
    assert not any(r.severity is Severity.WARNING for r in fleet.records)


def test_a_job_that_never_ran_is_suspended_at_once() -> None:
    fleet = Fleet(spec())
    fleet.tell(a.DesiredState(1, suspended=True))
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.SUSPENDED
    fleet.over = None
    fleet.tell(a.DesiredState(1))
    fleet.add_grid(1, 2)
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert fleet.arbiter.durable.attempt == 0


def test_a_job_in_its_last_step_completes_instead() -> None:
    fleet = running(steps=3)
    fleet.until(lambda: committed(fleet, 2))
    fleet.tell(a.DesiredState(2, suspended=True))
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


@pytest.mark.parametrize("fault", ["fails", "is slow"])
def test_a_planner_in_trouble_costs_a_job_that_is_suspended_no_step(fault: str) -> None:
    """The planner is asked again, as in any other change: all agents live."""
    fleet = running(steps=20, every=0)
    fleet.tell(a.DesiredState(2, suspended=True))
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.PLANNING)
    fleet.wire.clear()
    if fault == "fails":
        fleet.tell(a.Planned(fleet.arbiter.state.requests, PlannerFault("a defect")))
    fleet.wait(125.0)
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.SUSPENDED
    newest = max(step for _, step in fleet.commits)
    assert fleet.arbiter.durable.manifests[-1].step == newest + 1


def test_a_job_that_is_suspended_waits_for_a_voter_as_long_as_any_other() -> None:
    fleet = running(pipelines=1, stages=2, steps=40)
    fleet.until(lambda: committed(fleet, 5))
    for name in ("a0", "a1"):
        fleet.kill(name, confirmed=False)
    fleet.add_grid(1, 2, "b")
    fleet.idle(10.0)
    assert fleet.arbiter.status().phase is a.ArbiterPhase.HOLDING
    fleet.tell(a.DesiredState(1, suspended=True))
    fleet.wait(30.0)
    assert fleet.over is None
    fleet.wait(40.0)
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.SUSPENDED


# ---------------------------------------------------------------- leavers


@pytest.mark.parametrize("lead_s", [0.5, 4.0])
def test_a_noticed_agent_hands_over_and_is_let_go(lead_s: float) -> None:
    fleet = running(steps=6)
    fleet.receive(A1, Notice(lead_s, "SIGTERM"))
    fleet.run()
    assert A1 in fleet.dismissed
    assert any(r.reason is EventReason.AGENT_LEFT for r in fleet.records)
    assert not any(r.reason is EventReason.AGENT_LOST for r in fleet.records)
    assert fleet.arbiter.durable.attempt == 0
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_a_long_notice_waits_for_the_replacement() -> None:
    fleet = running(steps=40)
    fence = fleet.arbiter.fence
    fleet.receive(A1, Notice(120.0, "spot"))
    assert fleet.arbiter.fence == fence
    fleet.add("n1", "z1")
    fleet.idle(1.5)
    fleet.until(lambda: N1 in {x for p in grid(fleet) for x in p})
    assert A1 not in {x for p in grid(fleet) for x in p}
    fleet.until(lambda: (A1, Release(143, "drained")) in fleet.wire)


def pass_time(fleet: Fleet, seconds: float) -> None:
    """Messages arrive, but no instruction runs."""
    for _ in range(round(4 * seconds)):
        fleet.idle(0.25)
        fleet.run_wire()


@pytest.mark.parametrize("is_noticed", [True, False])
def test_no_seat_is_given_up_for_nothing(is_noticed: bool) -> None:
    """Three leavers with time are replaced in one stop, once three others are there."""
    fleet = running(pipelines=1, stages=4, steps=4000)
    leavers = frozenset(AgentId(f"a{i}") for i in range(3))
    fleet.tell(a.DesiredState(1, drained=frozenset() if is_noticed else leavers))
    for agent in sorted(leavers) if is_noticed else ():
        fleet.receive(agent, Notice(600.0, "spot"))
    fence = fleet.arbiter.fence
    for name, zone in (("n0", "z0"), ("n1", "z1")):
        fleet.add(name, zone)
        pass_time(fleet, 5.0)
        assert fleet.arbiter.fence == fence
    fleet.add("n2", "z0")
    pass_time(fleet, 1.5)
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    assert {x for p in grid(fleet) for x in p} == {"n0", "n1", "n2", "a3"}
    assert fleet.arbiter.fence.epoch == fence.epoch + 1


def test_a_leaver_with_time_is_kept_while_the_others_are_too_few() -> None:
    fleet = running(pipelines=1, stages=4, steps=4000)
    for agent in ("a0", "a1", "a2"):
        fleet.receive(AgentId(agent), Notice(600.0, "spot"))
    fleet.kill("a3")
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    assert {x for p in grid(fleet) for x in p} == {"a0", "a1", "a2", None}


def test_a_leaver_without_time_goes_without_a_replacement() -> None:
    fleet = running(pipelines=1, stages=4, steps=40000)
    fleet.receive(A1, Notice(30.0, "spot"))
    pass_time(fleet, 20.0)
    assert A1 in {x for p in grid(fleet) for x in p}
    pass_time(fleet, 5.75)
    fleet.until(lambda: A1 in fleet.dismissed)
    assert fleet.arbiter.durable.attempt == 0


def test_a_smaller_grid_leaves_out_agents_that_will_leave() -> None:
    fleet = running(pipelines=2, stages=2, steps=4000)
    fleet.receive(A1, Notice(600.0, "spot"))
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: len(grid(fleet)) == 1)
    assert A1 not in grid(fleet)[0]


def test_agents_drained_by_the_goal_leave_once_they_can_be_replaced() -> None:
    fleet = running(steps=40)
    fence = fleet.arbiter.fence
    fleet.tell(a.DesiredState(2, drained=frozenset({A1})))
    fleet.idle(5.0)
    assert fleet.arbiter.fence == fence
    fleet.add("n1", "z1")
    fleet.idle(1.5)
    fleet.until(lambda: A1 in fleet.dismissed)
    assert N1 in {x for p in grid(fleet) for x in p}


@pytest.mark.parametrize(("every", "is_missed"), [(0, False), (1, True)])
def test_a_leaver_that_dies_is_missed_only_if_a_checkpoint_waits_for_its_files(
    every: int, is_missed: bool
) -> None:
    fleet = running(steps=40, every=every)
    fleet.until(lambda: committed(fleet, 3))
    fleet.hold_files = True
    fleet.receive(A1, Notice(4.0, "SIGTERM"))
    target = fleet.arbiter.status().plan
    fleet.until(lambda: fleet.arbiter.status().plan not in (None, target))
    plan = fleet.arbiter.status().plan
    assert plan is not None
    assert plan.leaving == (A1,)
    fleet.until(lambda: committed(fleet, plan.target + 1))
    assert (A1 in fleet.agents) == is_missed
    if is_missed:
        fleet.kill("a1")
    assert (fleet.arbiter.status().phase is a.ArbiterPhase.COLLECTING) == is_missed
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


# ---------------------------------------------------------------- newcomers


def test_a_hole_is_filled_by_a_newcomer() -> None:
    fleet = running(steps=60)
    fleet.kill("a1")
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    assert sum(x is None for p in grid(fleet) for x in p) == 1
    fleet.add("n1", "z1")
    fleet.idle(1.5)
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    assert {x for p in grid(fleet) for x in p} == {"a0", "n1", "a2", "a3"}


def test_a_newcomer_without_a_seat_does_not_stop_training() -> None:
    fleet = running(steps=60)
    fence = fleet.arbiter.fence
    fleet.add("n1", "z1")
    fleet.idle(5.0)
    assert fleet.arbiter.fence == fence
    assert fleet.arbiter.status().standby == (N1,)


def test_a_newcomer_that_the_zone_rule_cannot_seat_is_tried_once() -> None:
    fleet = running(steps=200)
    fleet.kill("a1")
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    fleet.add("n1", "z0")  # the hole's neighbours are in z0
    for _ in range(5):
        fleet.idle(1.5)
        fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    assert fleet.arbiter.fence.epoch == 3


def test_a_pipeline_goes_when_as_many_seats_are_empty_and_comes_back_with_newcomers() -> None:
    fleet = running(stages=3, steps=80)
    for name in ("a1", "a2"):
        fleet.kill(name)
        fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    assert len(grid(fleet)) == 2
    fleet.kill("a3")
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    assert len(grid(fleet)) == 1
    fleet.add_grid(1, 3, "b")
    fleet.idle(1.5)
    fleet.until(lambda: len(grid(fleet)) == 2)
    fleet.run()
    assert fleet.arbiter.durable.attempt == 0
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_pipelines_come_and_go_with_the_goal() -> None:
    fleet = running(steps=60)
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: len(grid(fleet)) == 1)
    fleet.until(lambda: len(fleet.arbiter.status().standby) == 2)
    fleet.tell(a.DesiredState(2))
    fleet.idle(1.5)
    fleet.until(lambda: len(grid(fleet)) == 2)
    fleet.run()
    assert fleet.arbiter.durable.attempt == 0
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_too_few_survivors_keep_their_state_and_wait() -> None:
    fleet = running(pipelines=1, stages=4, steps=40)
    for name in ("a1", "a2", "a3"):
        fleet.kill(name)
    fleet.run()
    status = fleet.arbiter.status()
    assert status.phase is a.ArbiterPhase.HOLDING
    assert "too few" in status.detail


def test_a_job_that_cannot_go_on_can_be_suspended() -> None:
    fleet = running(pipelines=1, stages=4, steps=40, every=2)
    fleet.until(lambda: committed(fleet, 5))
    for name in ("a1", "a2", "a3"):
        fleet.kill(name)
    fleet.run()
    assert fleet.arbiter.status().phase is a.ArbiterPhase.HOLDING
    fleet.tell(a.DesiredState(1, suspended=True))
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.SUSPENDED
    assert "will be repeated" in fleet.over.message
    assert not fleet.agents


# ---------------------------------------------------------------- the rule itself


def plan(live: tuple[str, ...] = ("a", "b")) -> Plan:
    agents = tuple(AgentId(x) for x in live)
    return Plan(
        fence=Fence(0, 1, 1),
        pipelines=(agents,),
        cut=((0, 1), (1, 2)),
        step_cut=((0, 1), (1, 2)),
        target=0,
        last=9,
        live=agents,
        leaving=(),
        short_notice=(),
        wants={},
        coordinator=agents[0],
        batch=BatchShape(2, 1, 1),
    )


def record(name: AgentId, departs_at: float) -> AgentRecord:
    hello = Hello(name, "uid", "node", "z", "", "127.0.0.1:1", "127.0.0.1:2")
    return AgentRecord(hello, b"", Ready(Fingerprint(), 2, 9, 0), departs_at=departs_at)


def due(
    *,
    the_plan: Plan | None = None,
    desired: a.DesiredState = a.DesiredState(1),  # noqa: B008 - frozen
    members: Collection[str] = ("a", "b"),
    departures: Mapping[str, float] | None = None,
    standby: Collection[str] = (),
    is_suspending: bool = False,
    caught_up: Collection[AgentId] = (),
    is_overdue: bool = False,
    committed: int = -1,
) -> str:
    """Call changes.due at 100 s for a job with steps of 2 s; the last one contains a pause."""
    now, leave_at = 100.0, departures or {}
    state = arbiter.initial_state(
        a.ArbiterJob("ns/job", "uid", spec(), "{}"),
        Durable(members=tuple(map(AgentId, members))),
        1,
    )
    state.membership.agents = {
        AgentId(name): record(AgentId(name), leave_at.get(name, inf))
        for name in {*members, *standby}
    }
    state.real_s = now
    state.ledger = Ledger(9, TrainingProgress(committed, step_s=50.0), whole_s=2.0)
    state.desired, state.phase = desired, Running()
    state.in_force = InForce(
        the_plan or plan(),
        {},
        is_suspending,
        catch_up_by=now if is_overdue else inf,
        caught_up=set(caught_up),
    )
    return changes.due(state, now)[0]


def test_nothing_is_due_in_a_quiet_job() -> None:
    assert due() == ""


def test_no_agent_joins_when_every_step_is_committed() -> None:
    assert due(standby=["n"], members=["a"]) == "1 agent can join"
    assert due(standby=["n"], members=["a"], committed=8) == ""


def test_copies_take_only_so_long() -> None:
    n, slow = AgentId("n"), AgentId("slow")
    learning = replace(plan(), learners={n: ((0, 1),), slow: ((1, 2),)})
    members = ["a", "b", n, slow]
    assert due(the_plan=learning, members=members, caught_up={n}) == ""
    text = due(the_plan=learning, members=members, caught_up={n}, is_overdue=True)
    assert text == "copies take too long on slow"
    text = due(the_plan=learning, members=members, caught_up={n, slow}, is_overdue=True)
    assert text == "copies are complete on n, slow"


@pytest.mark.parametrize(("departs_at", "is_due"), [(110.0, True), (113.0, True), (115.0, False)])
def test_a_leaver_is_waited_for_while_there_is_time(departs_at: float, is_due: bool) -> None:
    assert bool(due(departures={"a": departs_at})) is is_due


def test_a_plan_that_suspends_is_left_alone() -> None:
    suspended = a.DesiredState(1, suspended=True)
    assert due(desired=suspended, is_suspending=True, departures={"a": 101.0}) == ""
    assert due(is_suspending=True) == "the job is to go on"
    assert due(desired=suspended) == "the job is to be suspended"


# ---------------------------------------------------------------- agents without a seat


def zoned(pipelines: int, **agents: str) -> Fleet:
    """A job on a grid of two stages, with agents in these zones. Its first step is committed."""
    job = replace(spec(pipelines=pipelines, steps=12), placement=PlacementSpec(Adjacency.ALTERNATE))
    fleet = Fleet(job, layers=2, timing=a.Timing(join_grace_s=0.0))
    for name, zone in agents.items():
        fleet.add(name, zone)
    fleet.tell(a.DesiredState(pipelines))
    fleet.until(lambda: committed(fleet, 1))
    return fleet


def test_an_agent_that_the_zone_rule_cannot_seat_does_not_stop_training_again() -> None:
    fleet = zoned(1, a0="z0", a1="z1", b0="z0")
    fleet.kill("a1")
    fleet.until(lambda: committed(fleet, 4))
    plan, epoch = fleet.arbiter.status().plan, fleet.arbiter.fence.epoch
    assert plan is not None
    assert (len(plan.live), plan.holes) == (1, 1)  # two agents of one zone are no neighbours
    fleet.until(lambda: committed(fleet, 9))
    assert fleet.arbiter.fence.epoch == epoch
    fleet.add("c1", "z1")
    fleet.until(lambda: fleet.arbiter.fence.epoch > epoch)
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_after_a_zone_is_lost_all_agents_of_the_other_one_keep_their_copies() -> None:
    fleet = zoned(2, a0="z0", a1="z1", b0="z0", b1="z1")
    fleet.kill("a1")
    fleet.kill("b1")
    fleet.until(lambda: committed(fleet, 4))
    plan = fleet.arbiter.status().plan
    assert plan is not None
    assert (plan.live, len(plan.pipelines), plan.holes) == (("a0", "b0"), 2, 2)
    fleet.kill("a0")
    fleet.run()
    assert fleet.over is not None
    assert (fleet.over.outcome, fleet.arbiter.durable.attempt) == (Outcome.COMPLETE, 0)


def test_an_agent_that_was_never_asked_does_not_stop_training_again() -> None:
    """Members that only help with the present step do not fill seats."""
    job = replace(
        spec(pipelines=2, stages=3, steps=12), placement=PlacementSpec(Adjacency.ALTERNATE)
    )
    fleet = Fleet(job, layers=3, timing=a.Timing(join_grace_s=0.0))
    for name, zone in (("a0", 0), ("a1", 1), ("a2", 2), ("a3", 1), ("a4", 0), ("a5", 0)):
        fleet.add(name, f"z{zone}")
    fleet.tell(a.DesiredState(2))
    fleet.until(lambda: committed(fleet, 1))
    fleet.kill("a2")
    fleet.until(lambda: committed(fleet, 3))
    plan, epoch = fleet.arbiter.status().plan, fleet.arbiter.fence.epoch
    assert plan is not None
    assert (len(plan.pipelines), len(plan.live)) == (2, 4)  # one has no seat by the zone rule
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: committed(fleet, 6))
    assert fleet.arbiter.fence.epoch == epoch + 2
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_a_leaver_that_has_handed_over_is_asked_before_all_agents_count_as_lost() -> None:
    fleet = running(pipelines=2, stages=1, steps=20)
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: len(grid(fleet)) == 1)
    plan = fleet.arbiter.status().plan
    assert plan is not None
    (stays,), (leaves,) = plan.live, plan.leaving
    fleet.kill(stays)
    fleet.receive(leaves, Left(plan.fence))  # sent before the stop has reached it
    assert not any(r.reason is EventReason.RESTORING for r in fleet.records)
    fleet.run()
    assert fleet.arbiter.durable.attempt == 0
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_an_agent_that_leaves_soon_finishes_a_job_that_is_to_rest_with_its_last_step() -> None:
    """No plan leaves it out, since it has time for the transition."""
    fleet = running(1, 1, steps=4, every=0)
    fleet.until(lambda: committed(fleet, 2))
    fleet.tell(a.DesiredState(1, suspended=True))
    fleet.receive(AgentId("a0"), Notice(4.0, "preempted"))
    fleet.run(2_000)
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
