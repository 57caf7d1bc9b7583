"""Reports of stopped agents: how long they are waited for."""

from __future__ import annotations

from math import inf

import pytest

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import FailureCause
from bamboo_core.arbiter import rounds
from bamboo_core.arbiter_state import events as a
from bamboo_core.arbiter_state.state import Collecting, State
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item
from bamboo_core.protocol.messages import (
    Activity,
    ActivityKind,
    AgentReport,
    Heartbeat,
    Hello,
    Stop,
)

from .fleet import Fleet, committed, running


def in_a_round() -> tuple[Fleet, AgentId]:
    """a1 is lost; a2 has not reported yet."""
    fleet = running(steps=40, stages=3)
    fleet.until(lambda: committed(fleet, 1))
    late = fleet.agents.pop(AgentId("a2"))
    fleet.kill("a1")
    fleet.run_wire()
    return fleet, late.name


def test_an_agent_that_does_not_report_is_lost() -> None:
    fleet = running(steps=40, stages=3)
    fleet.until(lambda: committed(fleet, 1))
    silent = fleet.agents.pop(AgentId("a2"))
    fleet.kill("a1")
    fleet.run_wire()
    for _ in range(19):
        fleet.now += 0.1
        fleet.receive(silent.name, Heartbeat(1, 0, 0))
        fleet.receive(AgentId("a0"), Heartbeat(1, 0, 0))
    fleet.run()
    assert silent.name in fleet.arbiter.status().members
    fleet.now += 0.2
    fleet.tell(a.Tick())
    assert silent.name not in fleet.arbiter.status().members


def test_reports_of_a_large_fleet_may_take_longer() -> None:
    """All are asked and answer at once."""
    fleet = running(pipelines=20, stages=3, steps=40, microbatches=20)
    fleet.until(lambda: committed(fleet, 1))
    late = fleet.agents.pop(AgentId("a2"))
    fleet.kill("a1")
    fleet.run_wire()
    fleet.agents[late.name] = late  # it is heard of, and does not report
    fleet.idle(2.4)
    assert late.name in fleet.arbiter.status().members
    fleet.idle(0.5)
    assert late.name not in fleet.arbiter.status().members


def test_of_many_reports_only_the_last_one_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the looks at all members would grow with the square of their number."""
    looks: list[int] = []
    look = rounds.decide

    def decide(state: State, now: float) -> rounds.Verdict:
        assert isinstance(state.phase, Collecting)
        looks.append(len(state.phase.reports))
        return look(state, now)

    fleet = running(pipelines=20, stages=3, steps=40, microbatches=20)
    fleet.until(lambda: committed(fleet, 1))
    monkeypatch.setattr(rounds, "decide", decide)
    fleet.kill("a1")
    fleet.run()
    assert looks[-1] == 59
    assert len(looks) < 5


def test_while_the_first_weights_are_made_a_report_may_take_half_a_minute() -> None:
    fleet = running(steps=40, stages=3)
    late = fleet.agents.pop(AgentId("a2"))
    fleet.kill("a1")
    fleet.run_wire()
    fleet.agents[late.name] = late  # it is heard of, and does not report
    fleet.idle(29.75)
    assert late.name in fleet.arbiter.status().members
    fleet.idle(0.5)
    assert late.name not in fleet.arbiter.status().members


def test_a_pause_of_the_operator_in_a_round_is_not_held_against_agents() -> None:
    fleet, late = in_a_round()
    fleet.now += 60.0
    fleet.tell(a.Tick())
    assert late in fleet.arbiter.status().members


def test_a_report_that_a_busy_operator_has_not_read_is_not_late() -> None:
    fleet, late = in_a_round()
    fleet.heard_at = fleet.now
    fleet.idle(9.0)
    assert late in fleet.arbiter.status().members
    fleet.heard_at = inf
    fleet.idle(1.0)
    assert late in fleet.arbiter.status().members
    fleet.idle(1.0)
    assert late not in fleet.arbiter.status().members


def test_time_that_is_kept_between_rare_ticks_counts() -> None:
    for keeps, is_lost in ((True, True), (False, False)):
        fleet, late = in_a_round()
        for n in range(12):
            fleet.now += 0.25
            if n % 4 == 3:
                fleet.tell(a.Tick())
            elif keeps:
                fleet.arbiter.keep_time(fleet.now)
        assert (late not in fleet.arbiter.status().members) == is_lost


def test_the_deadline_of_a_report_begins_when_the_stop_has_left() -> None:
    """The STOP waits for a durable write, which fails for a minute."""
    fleet = running(steps=40, stages=3)
    fleet.until(lambda: committed(fleet, 1))
    fleet.restart()
    fleet.hold_persists = True
    fleet.tell(a.DesiredState(1))
    fleet.reconnect()
    fleet.idle(60.0)
    assert not [to for to, m in fleet.wire if isinstance(m, Stop)]
    assert len(fleet.arbiter.status().members) == 3
    fleet.hold_persists = False
    fleet.tell(a.Persisted(fleet.persists[-1].version))
    fleet.run()
    assert fleet.over is not None
    assert fleet.arbiter.durable.attempt == 0
    assert not [r for r in fleet.records if r.reason is EventReason.AGENT_LOST]


def test_a_member_without_a_session_is_asked_again_and_has_its_full_time() -> None:
    fleet, late = in_a_round()
    fleet.idle(1.5)
    fleet.receive(late, fleet.beat)
    fleet.tell(a.Disconnected(late))
    fleet.idle(1.0)
    assert late in fleet.arbiter.status().members
    fence = fleet.arbiter.fence
    fleet.tell(a.Connected(Hello(late, late, late, "z", late, "", "", fence), b""))
    assert (late, Stop(fence)) in fleet.wire
    fleet.idle(1.0)
    fleet.receive(late, fleet.beat)
    assert late in fleet.arbiter.status().members


def test_an_instruction_that_may_still_run_has_its_time_to_report() -> None:
    """The first of its kind, for example: the supervisor knows its limit, and says it."""
    fleet, late = in_a_round()
    fleet.beat = Heartbeat(1, 0, 0, fleet.arbiter.fence)
    for age_s in range(1, 300, 2):
        fleet.idle(2.0)
        busy = Activity(ActivityKind.RUNNING, float(age_s), 300.0, "SAVE[0:1]")
        fleet.receive(late, Heartbeat(1, 0, 0, fleet.arbiter.fence, busy))
        assert bool(fleet.arbiter.status().stall) == (age_s >= 20)
    assert fleet.arbiter.status().stall == (
        f"the stop waits for SAVE[0:1] on {late}, which has taken more than 20 s; at most 300 s are"
        " expected"
    )
    assert late in fleet.arbiter.status().members
    busy = Activity(ActivityKind.RUNNING, 300.0, 300.0, "SAVE[0:1]")
    fleet.receive(late, Heartbeat(1, 0, 0, fleet.arbiter.fence, busy))
    fleet.tell(a.Tick())
    assert late not in fleet.arbiter.status().members


def test_an_agent_whose_sessions_end_before_it_reports_is_given_up_in_the_end() -> None:
    fleet, late = in_a_round()
    fence = fleet.arbiter.fence
    hello = Hello(late, late, late, "z", late, "", "", fence)
    seconds = 0
    while late in fleet.arbiter.status().members and seconds < 70:
        seconds += 1
        fleet.idle(1.0)
        fleet.tell(a.Disconnected(late))
        fleet.tell(a.Connected(hello, b""))
    assert 55 < seconds < 65


def test_a_report_of_what_cannot_be_is_the_failure_of_its_agent() -> None:
    """A range of layers without end would make the planner count without end."""
    fleet, liar = in_a_round()
    asked, fence = len(fleet.requests), fleet.arbiter.fence
    endless = Item.red(1, (0, 10**12), 0, 1)
    fleet.receive(liar, AgentReport(fence, fence, {}, frozenset([endless])))
    assert liar not in fleet.arbiter.status().members
    (failure,) = (r for r in fleet.records if r.reason is EventReason.WORKER_FAILED)
    assert failure.agents == (liar,)
    assert failure.facts["cause"] == FailureCause.IMPOSSIBLE_REPORT
    assert "red[0:1000000000000]" in failure.message
    assert liar in fleet.dismissed
    fleet.add("b1", "z1")
    fleet.add("b2", "z2")
    fleet.wait(3)
    assert len(fleet.requests) > asked
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert all(liar not in request.reports for request in fleet.requests[asked:])
