"""The desired state changes at any moment; draining agents stay while they are needed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.outcome import Outcome
from bamboo_core.arbiter_state import events as a
from bamboo_core.arbiter_state.state import Running
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Notice

from .fleet import Fleet, committed, running, spec


def finished(fleet: Fleet) -> set[AgentId]:
    state = fleet.arbiter.state.phase
    return state.finished if isinstance(state, Running) else set()


def phase(fleet: Fleet) -> a.ArbiterPhase:
    return fleet.arbiter.status().phase


def pipelines(fleet: Fleet) -> int:
    plan = fleet.arbiter.status().plan
    return len(plan.pipelines) if plan is not None else 0


def check_complete(fleet: Fleet) -> None:
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert fleet.arbiter.durable.attempt == 0


def test_a_goal_that_changes_while_a_plan_is_computed_counts() -> None:
    fleet = running(pipelines=2, stages=2, steps=40)
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: phase(fleet) is a.ArbiterPhase.PLANNING)
    fleet.tell(a.DesiredState(2))
    fleet.until(lambda: phase(fleet) is a.ArbiterPhase.RUNNING)
    assert pipelines(fleet) == 2
    assert fleet.arbiter.fence.epoch == 2  # they were stopped once
    check_complete(fleet)


def test_a_goal_that_changes_back_when_the_plan_is_there_counts() -> None:
    fleet = running(pipelines=2, stages=2, steps=40)
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: pipelines(fleet) == 1)
    fleet.idle(2.0)  # until newcomers are taken in
    fleet.tell(a.DesiredState(2))
    fleet.until(lambda: pipelines(fleet) == 2)
    check_complete(fleet)


def test_as_many_pipelines_are_needed_as_the_goal_says_now() -> None:
    fleet = running(pipelines=3, stages=2, steps=40, microbatches=6)
    fleet.tell(a.DesiredState(3, least=3))
    for name in ("a0", "a1", "a2", "a3"):
        fleet.kill(name)
    fleet.until(lambda: phase(fleet) is a.ArbiterPhase.HOLDING)
    assert "2 agents are too few" in fleet.arbiter.status().detail
    fleet.tell(a.DesiredState(3, least=1))
    fleet.until(lambda: phase(fleet) is a.ArbiterPhase.RUNNING)
    assert pipelines(fleet) == 1
    check_complete(fleet)


@pytest.mark.parametrize(("least", "starts"), [(2, False), (1, True), (3, False)])
def test_a_start_needs_as_many_too(least: int, starts: bool) -> None:
    fleet = Fleet(spec(pipelines=2, stages=2), timing=a.Timing(start_grace_s=0.0))
    fleet.add_grid(1, 2)
    fleet.tell(a.DesiredState(2, least=least))
    assert (phase(fleet) is not a.ArbiterPhase.WAITING) == starts
    if not starts:
        assert "2 x 2 are needed at least" in fleet.arbiter.status().detail
        fleet.tell(a.DesiredState(1, least=least))
        assert phase(fleet) is not a.ArbiterPhase.WAITING


@pytest.mark.parametrize("is_restart", [False, True])
def test_draining_agents_keep_working_while_no_other_is_there(is_restart: bool) -> None:
    """All nodes are about to be replaced, and then something happens."""
    fleet = running(pipelines=2, stages=2, steps=60)
    goal = a.DesiredState(2, drained=frozenset(fleet.agents))
    fleet.until(lambda: committed(fleet, 2))
    fleet.tell(goal)
    before = fleet.arbiter.fence
    if is_restart:
        fleet.restart()
        fleet.tell(goal)
        fleet.reconnect()
    else:
        fleet.kill("a0")
    fleet.until(lambda: phase(fleet) is a.ArbiterPhase.RUNNING and fleet.arbiter.fence > before)
    step = max(step for _, step in fleet.commits)
    fleet.until(lambda: committed(fleet, step + 5))
    assert not [name for name in fleet.dismissed if name != "a0"]
    for i in range(4):
        fleet.add(f"n{i}", f"z{i % 2}")
    fleet.idle(1.5)
    fleet.until(lambda: {AgentId("a1"), AgentId("a2"), AgentId("a3")} <= {*fleet.dismissed})
    check_complete(fleet)


@pytest.mark.parametrize("departs_at", [2.0, 1000.0])
def test_agents_that_have_said_that_they_go_are_kept_while_they_have_time(
    departs_at: float,
) -> None:
    fleet = running(pipelines=1, stages=2, steps=60)
    for known in fleet.arbiter.state.membership.agents.values():
        known.departs_at = departs_at
    fleet.kill("a0")
    if departs_at < 10.0:
        fleet.until(lambda: phase(fleet) is a.ArbiterPhase.HOLDING)
        assert "0 agents are too few" in fleet.arbiter.status().detail
    else:
        fleet.run()
        check_complete(fleet)


def test_desired_states_are_compared_without_expected_agents() -> None:
    goal = a.DesiredState(2, expected=frozenset({AgentId("a0")}))
    assert replace(goal, expected=frozenset()) == a.DesiredState(2)
    assert [a.DesiredState(2, least=x).at_least for x in (0, 1, 2, 3)] == [1, 1, 2, 2]


# ---------------------------------------------------------------- suspend and resume


@pytest.mark.parametrize("is_noticed", [False, True])
def test_agents_that_will_go_away_save_the_job_before(is_noticed: bool) -> None:
    """They live, and as long as the last step takes: nothing need be lost."""
    fleet = running(pipelines=2, stages=2, steps=60, every=0)
    fleet.until(lambda: committed(fleet, 9))
    drained = frozenset[AgentId]() if is_noticed else frozenset(fleet.agents)
    for name in fleet.agents if is_noticed else ():
        fleet.receive(name, Notice(120.0, "spot"))
    fleet.tell(a.DesiredState(2, suspended=True, drained=drained))
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.SUSPENDED
    assert [m.step for m in fleet.arbiter.durable.manifests] == [
        fleet.arbiter.durable.committed + 1
    ]


@pytest.mark.parametrize("has_finished", [False, True])
def test_a_job_that_is_resumed_before_it_rests_goes_on(has_finished: bool) -> None:
    """Without a checkpoint all of it would be lost."""
    fleet = Fleet(replace(spec(pipelines=2, stages=2, steps=40), checkpoint=None), layers=2)
    fleet.add_grid(2, 2)
    fleet.tell(a.DesiredState(2))
    fleet.until(lambda: committed(fleet, 9))
    fleet.tell(a.DesiredState(2, suspended=True))
    fleet.until(lambda: phase(fleet) is a.ArbiterPhase.RUNNING)
    plan = fleet.arbiter.status().plan
    assert plan is not None
    if has_finished:
        fleet.until(lambda: len(finished(fleet)) == len(plan.live) - 1)
    fleet.tell(a.DesiredState(2))
    check_complete(fleet)
    told = [n for (_, step), n in fleet.commits.items() if step < 40]
    assert set(told) == {4}  # once by each of four agents: nothing was done again
