"""Suspects are asked again before anything is given up that they may hold."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import RedundancyMode
from bamboo_core.arbiter_state import events as a
from bamboo_core.arbiter_state.waits import Incident
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.executor import Transmit
from bamboo_core.protocol.messages import (
    AgentReport,
    Cause,
    Heartbeat,
    Stop,
    Suspicion,
)

from .fleet import Agent, Fleet, committed, running, spec

A0, A1 = AgentId("a0"), AgentId("a1")
WAIT_S = a.Timing().voter_wait_s
EIGHTH_S = WAIT_S / 8


class Cut(Fleet):
    """Two agents whose link can be cut. Each of them is connected to the operator all the time."""

    is_cut = False
    broken_in: Fence | None = None  # the epoch in which the connection has broken
    asked: list[float]  # when a0 was told to stop

    def deliver(self, agent: Agent, message: object) -> None:
        if isinstance(message, Transmit) and self.is_cut:
            self.broken_in = self.arbiter.fence
            return
        super().deliver(agent, message)

    def perform(self, effect: a.Effect) -> None:
        if isinstance(effect, a.Send) and isinstance(effect.message, Stop) and effect.agent == A0:
            self.asked.append(self.now)
        super().perform(effect)

    def cut_for(self, seconds: float) -> None:
        self.is_cut = True
        self.live(seconds)
        self.is_cut = False

    def live(self, seconds: float) -> None:
        """Time passes."""
        for _ in range(round(seconds / 0.25)):
            self.pass_on()
            self.run()

    def pass_on(self) -> None:
        """Time passes; a1 says that its connection to a0 is broken, as long as it is."""
        self.now += 0.25
        fence = self.arbiter.fence
        broken = (Suspicion(A0, Cause.CHANNEL_BROKEN, fence),)
        held = broken if self.broken_in == fence else ()
        for name in list(self.agents):
            self.receive(name, Heartbeat(1, 0, 0, fence, None, held if name == A1 else ()))
        self.tell(a.Tick())

    @property
    def restored(self) -> list[str]:
        return [r.message for r in self.records if r.reason is EventReason.RESTORING]


def cut_fleet(steps: int = 40) -> Cut:
    fleet = Cut(spec(stages=2, steps=steps, mode=RedundancyMode.NONE, every=10), layers=2)
    fleet.asked = []
    fleet.add_grid(1, 2)
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: committed(fleet, 5))
    return fleet


def gaps(fleet: Cut) -> list[float]:
    """Seconds between one time that a1 was asked and the next one."""
    return [later - before for before, later in zip(fleet.asked, fleet.asked[1:], strict=False)]


# ---------------------------------------------------------------- a link heals


@pytest.mark.parametrize("seconds", [20.0, 55.0, 98.0, 150.0])
def test_a_link_that_heals_costs_no_rollback(seconds: float) -> None:
    fleet = cut_fleet()
    fleet.cut_for(seconds)
    fleet.live(EIGHTH_S + 5.0)
    assert fleet.restored == []
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_a_suspect_is_asked_every_eighth_of_the_wait() -> None:
    fleet = cut_fleet()
    fleet.cut_for(100.0)
    assert len(fleet.asked) >= 8
    assert max(gaps(fleet)) <= EIGHTH_S + 3.0  # and the link breaks again in the round between


def test_a_link_that_stays_cut_is_given_up_in_the_end() -> None:
    fleet = cut_fleet()
    fleet.cut_for(3 * WAIT_S + 20.0)
    assert len(fleet.restored) == 1
    assert fleet.asked[-1] >= fleet.now - 20.0 - EIGHTH_S


def test_each_incident_begins_with_short_waits() -> None:
    """The commit of the target step shows that training goes on."""
    fleet = cut_fleet()
    fleet.cut_for(100.0)
    assert fleet.arbiter.state.incident.retry_s > WAIT_S
    done = fleet.arbiter.status().progress.committed
    while not committed(fleet, done + 1):
        if not fleet.step():
            fleet.pass_on()
    assert fleet.arbiter.state.incident.retry_s == 5.0


# ---------------------------------------------------------------- late answers


class Late(Fleet):
    """The report of one agent is late."""

    late = AgentId("")
    report: AgentReport | None = None

    def receive(self, agent: AgentId, message: object) -> None:
        if agent == self.late and isinstance(message, AgentReport):
            self.report = message
            return
        super().receive(agent, message)

    def give_up(self, agent: AgentId) -> None:
        """In a round in which others may have answered, but not this agent."""
        self.late = agent
        self.kill("a1")
        self.until(lambda: self.report is not None)
        self.tell(a.Lost(agent, confirmed=False, evidence="no report in time"))
        self.late = AgentId("")


@pytest.mark.parametrize(
    ("phase", "agent", "pipelines", "stages"),
    [
        (a.ArbiterPhase.COLLECTING, "a2", 1, 3),
        (a.ArbiterPhase.PLANNING, "a0", 2, 2),
        (a.ArbiterPhase.HOLDING, "a0", 1, 3),
    ],
)
def test_an_answer_of_a_suspect_counts_at_once(
    phase: a.ArbiterPhase, agent: AgentId, pipelines: int, stages: int
) -> None:
    fleet = Late(spec(pipelines=pipelines, stages=stages, steps=20), layers=stages)
    fleet.add_grid(pipelines, stages)
    fleet.tell(a.DesiredState(pipelines))
    fleet.until(lambda: committed(fleet, 3))
    fleet.give_up(agent)
    fleet.until(lambda: fleet.arbiter.status().phase is phase)
    assert fleet.report is not None
    assert fleet.report.fence == fleet.arbiter.fence
    fleet.receive(agent, fleet.report)
    assert agent in fleet.arbiter.status().members
    fleet.run()
    assert agent not in fleet.dismissed
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert fleet.now == 0.0, "nobody has waited"


def test_an_answer_that_cannot_be_gives_the_suspect_up_for_ever() -> None:
    fleet = Late(spec(stages=3, steps=20), layers=3)
    fleet.add_grid(1, 3)
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: committed(fleet, 3))
    fleet.give_up(A0)
    assert fleet.report is not None
    fleet.receive(A0, replace(fleet.report, versions={99: 1}))
    assert A0 in fleet.dismissed


def test_an_answer_to_an_older_stop_does_not_count() -> None:
    fleet = Late(spec(stages=3, steps=20), layers=3)
    fleet.add_grid(1, 3)
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: committed(fleet, 3))
    fleet.give_up(A0)
    assert fleet.report is not None
    older = fleet.arbiter.fence._replace(epoch=fleet.arbiter.fence.epoch - 1)
    fleet.receive(A0, replace(fleet.report, fence=older))
    assert A0 not in fleet.arbiter.status().members


# ---------------------------------------------------------------- before the end


def held() -> tuple[Cut, float]:
    """a0 is given up though nothing is wrong with it, and a restore is due at this instant."""
    fleet = cut_fleet()
    fleet.tell(a.Lost(A0, confirmed=False, evidence="unreachable"))
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.HOLDING)
    fleet.run_wire()
    return fleet, fleet.now + WAIT_S


def test_one_that_is_given_up_shortly_before_a_restore_is_asked_before_it() -> None:
    """It answers, so nothing is restored."""
    fleet, due_by = held()
    fleet.arbiter.state.deadlines.retry_at = inf
    asked = len(fleet.asked)
    fleet.idle(due_by - fleet.now - 0.25)
    assert len(fleet.asked) == asked
    fleet.idle(0.25)
    assert len(fleet.asked) == asked + 1
    assert fleet.restored == []
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_one_that_was_asked_a_last_time_and_is_given_up_again_is_not_asked_for_ever() -> None:
    fleet, due_by = held()
    fleet.arbiter.state.deadlines.retry_at = inf
    fleet.idle(due_by - fleet.now)
    asked = len(fleet.asked)
    fleet.tell(a.Lost(A0, confirmed=False, evidence="unreachable"))
    del fleet.agents[A0]
    fleet.live(1.0)
    assert len(fleet.asked) == asked
    assert len(fleet.restored) == 1


def test_a_round_under_way_is_finished_before_a_restore() -> None:
    fleet, _ = held()
    fleet.idle(5.0)
    assert fleet.arbiter.status().phase is a.ArbiterPhase.COLLECTING
    fleet.arbiter.state.deadlines.copy_by = fleet.now + 0.5
    fleet.idle(1.0)
    assert fleet.restored == []
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_a_layer_that_is_lost_again_after_another_wait_has_all_its_time() -> None:
    """Between the two losses the job waits for more agents, which has no end."""
    fleet, _ = held()
    del fleet.agents[A0]  # it is in session, but does not answer
    fleet.live(30.0)
    fleet.tell(a.DesiredState(2, least=2))
    fleet.live(WAIT_S)
    assert "too few to go on" in fleet.arbiter.status().detail
    fleet.tell(a.DesiredState(1))
    fleet.run_wire()
    assert fleet.arbiter.status().detail.startswith("no live copy of layers 0")
    fleet.live(WAIT_S - 1.0)
    assert fleet.restored == []
    fleet.live(20.0)
    assert len(fleet.restored) == 1


def test_a_restore_ends_the_incident_so_the_next_one_begins_with_short_waits() -> None:
    fleet, _ = held()
    del fleet.agents[A0]
    fleet.live(WAIT_S - 1.0)
    assert fleet.arbiter.state.incident.retry_s > 5.0
    fleet.live(20.0)
    assert len(fleet.restored) == 1
    assert fleet.arbiter.status().phase is a.ArbiterPhase.WAITING, "nothing is committed since"
    assert fleet.arbiter.state.incident == Incident()
    assert fleet.arbiter.state.incident.retry_s == 5.0


# ---------------------------------------------------------------- suspending


def suspended_in_a_blip() -> tuple[Fleet, dict[AgentId, Agent]]:
    """Three of four sessions are away when the job is suspended. There is no checkpoint yet."""
    fleet = running(stages=4, steps=100, every=60)
    fleet.until(lambda: committed(fleet, 56))
    away = {name: fleet.agents.pop(name) for name in list(fleet.agents)[:3]}
    for name in away:
        fleet.tell(a.Disconnected(name))
    fleet.idle(3.5)
    fleet.tell(a.DesiredState(1, suspended=True))
    fleet.run()
    return fleet, away


def test_a_job_that_is_suspended_in_a_blip_saves_its_steps() -> None:
    fleet, away = suspended_in_a_blip()
    assert fleet.over is None
    assert "3 agents that may live can come back" in fleet.arbiter.status().detail
    fleet.wait(WAIT_S - 5.0)
    assert fleet.over is None
    fleet.agents.update(away)
    fleet.reconnect()
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.SUSPENDED
    assert "suspended after" in fleet.over.message
    assert fleet.sealed[-1].step > 56


def test_a_job_that_is_suspended_and_has_waited_says_what_it_will_repeat() -> None:
    fleet, _ = suspended_in_a_blip()
    newest = fleet.arbiter.status().progress.committed
    fleet.wait(WAIT_S + 0.5)
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.SUSPENDED
    expected = f"{newest + 1} committed steps since the start will be repeated"
    assert fleet.over.message.endswith(expected)


def test_a_job_that_is_suspended_does_not_wait_for_the_dead() -> None:
    fleet, away = suspended_in_a_blip()
    for name in away:
        fleet.tell(a.Lost(name, confirmed=True, evidence="the pod is gone"))
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.SUSPENDED


def test_a_suspect_in_session_is_asked_once_more_before_the_job_rests() -> None:
    fleet, away = suspended_in_a_blip()
    fleet.agents.update(away)
    fleet.reconnect()
    fleet.until(lambda: committed(fleet, 57))


# ---------------------------------------------------------------- what waits to be read


def behind() -> Fleet:
    """The operator has read nothing for half a minute. Then it reads what a0 says of a1, whose
    session has been replaced meanwhile."""
    fleet = running(steps=400)
    fleet.tell(a.Tick())
    fleet.heard_at = fleet.now
    fleet.now += 30.0
    fleet.tell(a.Disconnected(A1))
    fleet.suspect("a0", "a1", Cause.CHANNEL_BROKEN)
    return fleet


def test_a_suspicion_is_judged_when_everything_is_read() -> None:
    fleet = behind()
    assert A1 in fleet.arbiter.status().members
    fleet.connect(fleet.agents[A1])
    fleet.heard_at = fleet.now
    fleet.tell(a.Tick())
    assert A1 in fleet.arbiter.status().members


def test_a_suspicion_that_nothing_refutes_counts_when_everything_is_read() -> None:
    fleet = behind()
    fleet.heard_at = fleet.now
    fleet.tell(a.Tick())
    assert A1 not in fleet.arbiter.status().members


def test_an_operator_that_never_reads_everything_judges_all_the_same() -> None:
    fleet = behind()
    for _ in range(41):
        fleet.now += 0.25
        assert A1 in fleet.arbiter.status().members
        fleet.suspect("a0", "a1", Cause.CHANNEL_BROKEN)
        fleet.tell(a.Tick())
    assert A1 not in fleet.arbiter.status().members


def test_a_report_that_waits_to_be_read_is_not_late() -> None:
    fleet = running(steps=400)
    fleet.kill("a2")
    fleet.wire.clear()
    fleet.tell(a.Tick())
    fleet.heard_at = fleet.now
    for _ in range(100):
        fleet.now += 0.5
        fleet.tell(a.Tick())
    assert A1 in fleet.arbiter.status().members
