"""Plans come in two parts: the directives leave first, the programs of later steps follow."""

from __future__ import annotations

import pytest

from bamboo_core.api.events import EventFact, EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.arbiter_state import events as a
from bamboo_core.model.ids import AgentId
from bamboo_core.planning.requests import Continuations, PlannerFault
from bamboo_core.protocol.messages import Continuation, Directive

from .fleet import Fleet, committed, running, spec

A0, A1 = AgentId("a0"), AgentId("a1")


class Planner:
    """Holds back the second part of every plan."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.late: list[a.Planned] = []
        self.sent: list[tuple[AgentId, object]] = []
        self._perform = fleet.perform
        fleet.perform = self.perform  # type: ignore[method-assign]

    def perform(self, effect: a.Effect) -> None:
        if isinstance(effect, a.Send):
            self.sent.append((effect.agent, effect.message))
        self._perform(effect)
        if isinstance(effect, a.ComputePlan):
            wire = self.fleet.wire
            parts = [m for _, m in wire if isinstance(m, a.Planned)]
            self.late += [p for p in parts if isinstance(p.result, Continuations)]
            for part in self.late:
                if (AgentId(""), part) in wire:
                    wire.remove((AgentId(""), part))

    def continued(self) -> list[AgentId]:
        return [agent for agent, message in self.sent if isinstance(message, Continuation)]


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(spec(pipelines=2, steps=20), layers=2)


@pytest.fixture
def planner(fleet: Fleet) -> Planner:
    """A fleet that has run its first step and waits for the programs of the later ones."""
    planner = Planner(fleet)
    fleet.add_grid(2, 2)
    fleet.tell(a.DesiredState(2))
    fleet.until(lambda: committed(fleet, 0))
    while fleet.step():
        pass
    assert len(planner.late) == 1
    assert not planner.continued()
    return planner


def drain(fleet: Fleet) -> None:
    while fleet.step():
        pass


def test_the_wait_is_reported(fleet: Fleet, planner: Planner) -> None:
    assert fleet.arbiter.status().detail == "the programs of later steps are being computed"
    fleet.tell(planner.late[0])
    assert fleet.arbiter.status().detail == ""


def test_members_go_on_when_the_second_part_is_there(fleet: Fleet, planner: Planner) -> None:
    drain(fleet)
    assert not committed(fleet, 1)
    fleet.tell(planner.late[0])
    assert sorted(planner.continued()) == sorted(fleet.agents)
    fleet.until(lambda: committed(fleet, 3))


@pytest.mark.parametrize("is_there", [False, True])
def test_a_member_that_reconnects_gets_all_parts_that_are_there(
    fleet: Fleet, planner: Planner, is_there: bool
) -> None:
    if is_there:
        fleet.tell(planner.late[0])
        fleet.wire.clear()  # the stream broke before anything arrived
    planner.sent.clear()
    fleet.tell(a.Disconnected(A1))
    fleet.connect(fleet.agents[A1])
    mine = [type(m) for agent, m in planner.sent if agent == A1]
    assert mine.count(Directive) == 1
    assert mine.count(Continuation) == is_there


def test_a_second_part_that_comes_after_the_next_stop_is_not_sent(
    fleet: Fleet, planner: Planner
) -> None:
    fleet.kill("a1")
    assert fleet.arbiter.status().phase is a.ArbiterPhase.COLLECTING
    fleet.tell(planner.late[0])
    assert not planner.continued()
    drain(fleet)
    assert len(planner.late) == 2
    fleet.tell(planner.late[0])  # the old request's answer, while the new plan runs
    assert not planner.continued()
    fleet.tell(planner.late[1])
    assert A1 not in planner.continued()
    fleet.until(lambda: committed(fleet, 3))


def test_a_stop_withdraws_a_second_part_that_waits_for_facts(
    fleet: Fleet, planner: Planner
) -> None:
    fleet.hold_persists = True
    fleet.tell(a.DesiredState(2, suspended=True))  # the STOP changes no fact
    fleet.hold_persists = False
    fleet.tell(planner.late[0])
    assert not planner.continued()


@pytest.mark.parametrize("is_running", [True, False])
def test_a_fault_in_the_second_part_means_a_new_plan_if_its_plan_is_in_force(
    fleet: Fleet, planner: Planner, is_running: bool
) -> None:
    if not is_running:
        fleet.kill("a1")
        assert fleet.arbiter.status().phase is a.ArbiterPhase.COLLECTING
    before = fleet.arbiter.fence
    fleet.tell(a.Planned(planner.late[0].id, PlannerFault("a defect")))
    assert fleet.arbiter.status().outcome is None
    assert (fleet.arbiter.fence > before) is is_running


def test_the_cause_of_a_stop_is_a_fact() -> None:
    fleet = running(pipelines=2, stages=2, steps=20)
    fleet.kill("a1")
    stop = [r for r in fleet.records if r.reason is EventReason.STOPPED][-1]
    assert stop.agents == (A1,)
    assert stop.facts[EventFact.EPOCH] == fleet.arbiter.fence.epoch
    start = next(r for r in fleet.records if r.reason is EventReason.STOPPED)
    assert start.agents == ()


def test_a_member_that_comes_back_without_its_state_is_the_cause_of_a_stop() -> None:
    fleet = running(pipelines=2, stages=2, steps=20)
    fleet.tell(a.Connected(fleet.agents[A1].hello, b""))
    stop = [r for r in fleet.records if r.reason is EventReason.STOPPED][-1]
    assert stop.message.endswith("a1 came back without its state")
    assert stop.agents == (A1,)


def test_a_planner_that_fails_is_asked_again_and_ends_the_job_in_the_end() -> None:
    fleet = running(pipelines=2, stages=2, steps=20)
    fleet.until(lambda: committed(fleet, 1))
    fleet.kill("a1")
    pauses = (5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0, 0.0)
    for pause_s in pauses:
        fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.PLANNING)
        fleet.wire.clear()
        fleet.tell(a.Planned(fleet.arbiter.state.requests, PlannerFault("a defect")))
        status = fleet.arbiter.status()
        if pause_s:
            assert status.phase is a.ArbiterPhase.HOLDING
            assert status.detail == "the planner failed: a defect; it is asked again"
            fleet.idle(pause_s - 0.5)
            assert fleet.arbiter.status().phase is a.ArbiterPhase.HOLDING
            fleet.idle(0.5)
    assert (status.outcome, status.reason) == (Outcome.FAILED, "PlanningFailed")
    assert status.message == "the planner failed: a defect"


def test_a_job_waits_for_an_operator_without_room_for_as_long_as_it_takes() -> None:
    fleet = running(pipelines=2, stages=2, steps=20)
    fleet.until(lambda: committed(fleet, 1))
    fleet.kill("a1")
    for _ in range(20):
        fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.PLANNING)
        fleet.wire.clear()
        full = PlannerFault("no room", is_defect=False)
        fleet.tell(a.Planned(fleet.arbiter.state.requests, full))
        assert fleet.arbiter.status().detail == "no room; it is asked again"
        fleet.idle(60.0)
    assert fleet.over is None
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_a_plan_in_between_forgives_the_planner() -> None:
    fleet = running(pipelines=2, stages=2, steps=40)
    for name in ("a1", "a2", "a3"):
        fleet.kill(name)
        fleet.add(f"b{name}", "z1")
        fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.PLANNING)
        fleet.wire.clear()
        fleet.tell(a.Planned(fleet.arbiter.state.requests, PlannerFault("a defect")))
        fleet.idle(5.0)
        fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
        fleet.run_wire()
    assert fleet.arbiter.status().outcome is None


def test_a_planner_that_does_not_answer_is_asked_again() -> None:
    fleet = running(pipelines=2, stages=2, steps=20)
    fleet.until(lambda: committed(fleet, 1))
    fleet.kill("a1")
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.PLANNING)
    (answer,) = [m for _, m in fleet.wire if isinstance(m, a.Planned)][:1]
    fleet.wire.clear()
    fleet.idle(119.0)
    assert fleet.arbiter.status().phase is a.ArbiterPhase.PLANNING
    fleet.idle(1.5)
    assert "has not answered in time" in fleet.arbiter.status().detail
    fleet.idle(5.0)
    before = fleet.arbiter.fence
    fleet.tell(answer)  # too late: another one is awaited
    assert fleet.arbiter.status().phase is a.ArbiterPhase.PLANNING
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    assert fleet.arbiter.fence == before
