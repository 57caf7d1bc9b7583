"""What a run on this machine says while no step is committed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.agent.local.runs import job

from bamboo_agent.local.certificates import Authority
from bamboo_agent.local.run import _Operator
from bamboo_core.api.events import EventFact, EventReason, Severity
from bamboo_core.api.spec import to_json
from bamboo_core.arbiter_state.events import ArbiterJob, Record
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import (
    Activity,
    ActivityKind,
    CommitRecord,
    Fingerprint,
    Heartbeat,
    Hello,
    Progress,
    Ready,
)

A, B = AgentId("agent-0"), AgentId("agent-1")


class Clock:
    """Plays the time."""

    now = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    return made


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Operator:
    """It has a job of 8 steps and no arbiter, and expects two agents."""

    def nothing(*_: Any) -> None:
        """Nobody listens."""

    spec = job(tmp_path)
    arbiter_job = ArbiterJob("local/job", "local", spec, to_json(spec))
    made = _Operator(arbiter_job, Authority(), "token", nothing, dismiss=nothing)
    monkeypatch.setattr(made, "_told", nothing)
    made.expect([A, B])
    return made


def ready(operator: _Operator, *agents: AgentId) -> None:
    for agent in agents:
        operator._heard(agent, Ready(Fingerprint(), 1, 1, 0))


def test_the_agents_are_named_until_all_are_ready(operator: _Operator) -> None:
    assert operator.doing == "0 of 2 agents ready; starting: agent-0, agent-1"
    operator._heard(A, Hello(A, "u", "n", "z", "m", "d", "l"))
    assert (
        operator.doing == "0 of 2 agents ready; building and measuring: agent-0; starting: agent-1"
    )
    ready(operator, A, B)
    assert operator.doing == "2 agents ready; planning, and computing the first step"


def reads(age_s: float) -> Heartbeat:
    what = "F[0:3] m7 @5 reads sample 9 of spec.data"
    return Heartbeat(1, 5, 0, activity=Activity(ActivityKind.LOADING, age_s, 300.0, what))


def waits() -> Heartbeat:
    return Heartbeat(1, 5, 0, activity=Activity(ActivityKind.WAITING, 9.0, 0.0, "RECV", peer=A))


def test_a_late_step_is_told_with_what_holds_it_up(operator: _Operator, clock: Clock) -> None:
    ready(operator, A, B)
    for step, at in ((0, 100.0), (1, 101.0)):
        clock.now = at
        operator._heard(A, Progress(CommitRecord(step)))
    operator._heard(A, reads(3.0))
    operator._heard(B, waits())
    clock.now = 110.0
    assert operator.doing == ""
    operator._heard(A, reads(12.0))
    clock.now = 112.0
    late = "step 2 is late"
    assert operator.doing == f"{late}; agent-0: F[0:3] m7 @5 reads sample 9 of spec.data for 12 s"
    operator._heard(A, Heartbeat(2, 5, 1))
    assert operator.doing == late


def test_a_run_that_a_signal_ends_says_so_and_what_it_waits_for(operator: _Operator) -> None:
    ready(operator, A, B)
    operator._heard(A, Progress(CommitRecord(1)))
    operator._heard(A, reads(12.0))
    operator.change_goal(suspended=True)
    assert operator.doing == (
        "ending with a checkpoint; another signal (Ctrl-C) ends it at once, without one;"
        " agent-0: F[0:3] m7 @5 reads sample 9 of spec.data for 12 s"
    )


def test_an_agent_that_was_ended_since_it_stood_still_is_told_so(operator: _Operator) -> None:
    killed = "agent-0: WorkerExited: the worker was killed by SIGKILL"
    stalled = "F[0:4] m1 @60 on agent-0 has taken 30.1 s, at most 30.0 s are expected"
    for agent, text in (("agent-1", killed.replace("-0", "-1")), ("agent-0", stalled)):
        reason = EventReason.STALLED if text == stalled else EventReason.WORKER_FAILED
        operator._record(Record(Severity.WARNING, reason, text, {EventFact.AGENTS: agent}))
    facts = {EventFact.AGENTS: "agent-0"}
    operator._record(Record(Severity.WARNING, EventReason.WORKER_FAILED, killed, facts))
    ended = killed.removeprefix("agent-0: ")
    assert operator.failures == {A: f"{ended}, since it stood still: {stalled}", B: ended}


def test_agents_that_replace_others_are_awaited(operator: _Operator, clock: Clock) -> None:
    ready(operator, A)
    operator._heard(A, Progress(CommitRecord(3)))
    clock.now += 20.0
    assert operator.doing == ("training stands still: 1 of 2 agents ready; starting: agent-1")


def test_steps_that_a_restore_computes_again_are_told(operator: _Operator, clock: Clock) -> None:
    ready(operator, A, B)
    operator._heard(A, Progress(CommitRecord(5)))
    operator._heard(B, Progress(CommitRecord(4)))  # it is a little behind
    assert operator.doing == ""
    for agent in (A, B):
        operator._heard(agent, Progress(CommitRecord(2), Fence(1, 1, 3)))
    assert operator.doing == "step 2 of the 6 before is committed again"
    clock.now += 20.0
    assert operator.doing == "step 3 is late"
    operator._heard(A, Progress(CommitRecord(6), Fence(1, 1, 3)))
    assert operator.doing == ""


def test_a_step_is_late_by_the_longest_one_before(operator: _Operator, clock: Clock) -> None:
    ready(operator, A, B)
    for step, at in ((0, 100.0), (1, 140.0)):
        clock.now = at
        operator._heard(A, Progress(CommitRecord(step)))
    clock.now = 339.0
    assert operator.doing == ""
    clock.now = 341.0
    assert operator.doing == "step 2 is late"


def test_after_the_last_step_nothing_is_late(operator: _Operator, clock: Clock) -> None:
    operator._heard(A, Progress(CommitRecord(7)))
    clock.now += 999.0
    assert operator.doing == ""
