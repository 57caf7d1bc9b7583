"""What is said while an arbiter may not hear: in the pause after a defect, or without the lease.

Once it is over the arbiter knows the goal, every session, every certain death and every notice, and
a healthy job goes on in its attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.core.controller.builders import JOB, manifest, nodes, pod

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import JobSpec, from_manifest
from bamboo_core.arbiter.durable import Durable
from bamboo_core.arbiter.events import DesiredState, Effect, Event, Record, Tick, Timing
from bamboo_core.controller.view import ClusterView, JobView, Losses, PodPhase
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.planning.requests import PlannerFault, PlanRequest
from bamboo_core.protocol.messages import (
    AgentReport,
    Fingerprint,
    Hello,
    LayerCost,
    Notice,
    Ready,
    Stop,
    Welcome,
)
from bamboo_operator import facts, jobs
from bamboo_operator.jobs import JobActor
from bamboo_operator.sessions import Session

PODS = (pod(0, 0, zone="a"), pod(0, 1, zone="b"))
MEMBERS = tuple(p.agent for p in PODS)
BEGUN = Durable(
    term=1,
    plan=Fence(0, 1, 1),
    members=MEMBERS,
    voters=MEMBERS,
    pipelines=(MEMBERS,),
    cut=((0, 2), (2, 4)),
    step_cut=((0, 2), (2, 4)),
    target=500,
    committed=499,
    batch=BatchShape(4, 1, 1),
)
PAUSE_S = 0.05


def spec(**changes: Any) -> JobSpec:
    found = from_manifest(manifest(**changes))
    assert isinstance(found, JobSpec)
    return found


@dataclass
class Stage:
    """One actor and what it did; write: what persisting does, besides counting."""

    durable: Durable = field(default_factory=Durable)
    view: ClusterView = field(default_factory=lambda: ClusterView(nodes(a=1, b=1), PODS))
    is_leading: bool = True
    woken: int = 0
    written: list[Durable] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    plans: int = 0
    write: Callable[[], None] = lambda: None
    sessions: dict[AgentId, Session] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ports = jobs.Ports(
            persist=self._persist,
            dismiss=self._dismiss,
            record=lambda job, record: self.records.append(record),
            wake=self._wake,
            wake_later=lambda job: None,
            is_leading=lambda: self.is_leading,
            plan=self._plan,
            timing=Timing(return_s=0.3, voter_wait_s=0.3),
        )
        self.actor = JobActor(JOB, spec(), self.durable, term=2, ports=ports)

    async def _persist(self, job: JobView, durable: Durable, line: facts.Line) -> None:
        self.write()
        self.written.append(durable)

    async def _dismiss(self, job: JobView, agent: AgentId, reason: str) -> None:
        pass

    def _wake(self, job: JobView) -> None:
        self.woken += 1

    def _plan(self, request: PlanRequest) -> PlannerFault:
        self.plans += 1
        return PlannerFault("enough")

    def observe(self) -> None:
        self.actor.observe(spec(), self.view)

    def arrive(self, agent: AgentId, *, fence: Fence | None = None) -> Session:
        at = fence if fence is not None else self.durable.plan
        hello = Hello(
            agent, "uid", "node", "ab"[int(agent.split("-s")[1][0])], agent, "x:1", "x:2",
            fence=at, has_state=at != Fence(),
        )  # fmt: skip
        session = self.sessions[agent] = self.actor.connect(hello)
        return session

    def ready(self) -> None:
        fingerprint = Fingerprint("c", "d", "t", "cpu", 1)
        costs = (LayerCost(0.01, 0.02, 10, 10),) * 4
        for session in self.sessions.values():
            self.actor.receive(session, Ready(fingerprint, 4, 1000, 0, costs))

    def break_down(self, monkeypatch: pytest.MonkeyPatch, *, pause_s: float = PAUSE_S) -> None:
        """One defect; the pause begins."""
        monkeypatch.setattr(jobs, "_FIRST_PAUSE_S", pause_s)
        monkeypatch.setattr(self.actor._arbiter, "handle", defect)
        self.actor.tick()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.01)
                self.actor.tick()

    async def end_of_pause(self) -> None:
        arbiter = self.actor._arbiter
        await self.until(lambda: self.actor._is_listening() and not self.actor._held)
        assert self.actor._arbiter is arbiter

    @property
    def goal(self) -> DesiredState | None:
        return self.actor._arbiter.state.desired

    def lost(self) -> list[AgentId]:
        records = [r for r in self.records if r.reason is EventReason.AGENT_LOST]
        return [agent for record in records for agent in record.agents]


def defect(event: Event, now: float) -> list[Effect]:
    raise KeyError("one defect, once")


def heard(session: Session) -> list[object]:
    return [session.outgoing.get_nowait() for _ in range(session.outgoing.qsize())]


@pytest.mark.parametrize("is_observed_in_the_pause", [True, False])
async def test_the_goal_is_said_again(
    monkeypatch: pytest.MonkeyPatch, *, is_observed_in_the_pause: bool
) -> None:
    stage = Stage()
    stage.observe()
    before, woken = stage.goal, stage.woken
    stage.break_down(monkeypatch)
    assert stage.woken > woken
    if is_observed_in_the_pause:
        stage.observe()
    await stage.end_of_pause()
    stage.observe()
    assert stage.goal == before is not None


async def test_who_comes_back_in_the_pause_gets_its_welcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    stage.observe()
    old = stage.arrive(MEMBERS[0])
    stage.break_down(monkeypatch)
    assert heard(old)[-1] is None  # the stream is closed
    stage.actor.disconnect(old)
    first = stage.arrive(MEMBERS[0])
    second = stage.arrive(MEMBERS[1])
    stage.actor.disconnect(second)
    newest = stage.arrive(MEMBERS[0])
    assert heard(first)[-1] is None
    assert not heard(newest)
    await stage.end_of_pause()
    # One for each Hello: whom the first finds gone, the newest stream gets it for.
    assert [w.term for w in heard(newest) if isinstance(w, Welcome)] == [3, 3]
    assert stage.actor.view().connected == {MEMBERS[0]}


async def test_a_healthy_job_goes_on_in_its_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(BEGUN)
    stage.observe()
    stage.break_down(monkeypatch, pause_s=0.5)  # longer than members are waited for
    for agent in MEMBERS:
        stage.arrive(agent, fence=Fence(0, 2, 1))
    stage.observe()
    await stage.end_of_pause()
    stage.ready()
    await stage.until(lambda: all(s.outgoing.qsize() > 1 for s in stage.sessions.values()))
    for session in stage.sessions.values():
        welcome, stop = heard(session)
        assert isinstance(welcome, Welcome)
        assert isinstance(stop, Stop)
        assert stop.fence == Fence(0, 3, 2)
        stage.actor.receive(session, AgentReport(stop.fence, BEGUN.plan, {}, frozenset()))
    await stage.until(lambda: stage.plans == 1)
    assert stage.actor.view().attempt == 0
    assert not stage.lost()


@pytest.mark.parametrize("is_seen_before", [True, False])
async def test_a_certain_death_is_told(
    monkeypatch: pytest.MonkeyPatch, *, is_seen_before: bool
) -> None:
    """Whether the old arbiter knew it, or it is seen in the pause; it is counted once."""
    stage = Stage(BEGUN)
    dead = replace(PODS[1], phase=PodPhase.FAILED, exit_code=137)
    gone = replace(stage.view, pods=(PODS[0], dead))
    if is_seen_before:
        stage.view = gone
    stage.observe()
    stage.break_down(monkeypatch)
    stage.view = gone
    stage.observe()
    stage.observe()
    await stage.end_of_pause()
    stage.observe()
    assert dead.agent in stage.actor._arbiter.state.membership.dead
    assert stage.lost() == [dead.agent] * (2 if is_seen_before else 1)
    assert stage.actor.losses == Losses(1, 0)


async def test_a_notice_in_the_pause_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members say it in every session; it is not lost in this one."""
    stage = Stage(BEGUN)
    stage.observe()
    stage.break_down(monkeypatch)
    stage.actor.receive(stage.arrive(MEMBERS[0]), Notice(30.0, "spot"))
    await stage.end_of_pause()
    departs_at = stage.actor._arbiter.state.membership.agents[MEMBERS[0]].departs_at
    assert 20.0 < departs_at - asyncio.get_running_loop().time() <= 30.0
    assert stage.actor.view().departing == {MEMBERS[0]}


async def test_a_defect_while_what_was_held_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next arbiter hears nothing of sessions that are closed, and all of the cluster."""
    stage = Stage()
    stage.observe()
    stage.break_down(monkeypatch)
    stage.observe()
    session = stage.arrive(MEMBERS[0])
    good = stage.actor._arbiter.handle

    def choke(event: Event, now: float) -> list[Effect]:
        return good(event, now) if isinstance(event, Tick | DesiredState) else defect(event, now)

    monkeypatch.setattr(stage.actor._arbiter, "handle", choke)
    woken = stage.woken
    await stage.until(lambda: stage.actor._faults == 2)
    assert heard(session) == [None]
    assert stage.woken > woken
    stage.actor.disconnect(session)
    again = stage.arrive(MEMBERS[0])
    stage.observe()
    await stage.end_of_pause()
    (welcome,) = heard(again)
    assert isinstance(welcome, Welcome)
    assert welcome.term == 4
    assert stage.goal is not None


async def test_half_a_change_is_no_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an event has changed before it failed had no effect on anybody."""
    stage = Stage(BEGUN)
    arbiter = stage.actor._arbiter

    def half(event: Event, now: float) -> list[Effect]:
        arbiter.state.out.save(attempt=1, members=())
        raise KeyError("in the midst of a restore")

    monkeypatch.setattr(jobs, "_FIRST_PAUSE_S", PAUSE_S)
    monkeypatch.setattr(arbiter, "handle", half)
    stage.observe()
    durable = stage.actor._arbiter.durable
    assert (durable.attempt, durable.members) == (0, MEMBERS)


async def test_a_status_that_cannot_be_told_is_a_defect_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()

    def broken() -> None:
        raise KeyError("status")

    monkeypatch.setattr(stage.actor._arbiter, "status", broken)
    for _ in range(4):
        stage.actor.tick()
    assert stage.actor._faults == 1
    assert stage.actor.view().connected == frozenset()


async def test_pauses_grow_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    now = asyncio.get_running_loop().time
    for wanted in (2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        stage.actor._restart_at = 0.0
        monkeypatch.setattr(stage.actor._arbiter, "handle", defect)
        stage.actor.tick()
        assert wanted - 1.0 < stage.actor._restart_at - now() <= wanted
        if wanted == 60.0:
            stage.actor._faults = 10_000  # a day of them


async def test_what_is_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_MOST_HELD", 20)
    stage = Stage()
    stage.observe()
    stage.break_down(monkeypatch)
    for _ in range(100):
        stage.actor.disconnect(stage.arrive(MEMBERS[0]))
        stage.actor.tick()
        assert len(stage.actor._held) <= 20
    woken = stage.woken
    assert woken > 2  # what is dropped with the sessions, the next reconcile says again
    last = stage.arrive(MEMBERS[1])
    stage.observe()
    await stage.end_of_pause()
    assert isinstance(heard(last)[0], Welcome)
    assert stage.goal is not None


# ---------------------------------------------------------------- a lease not renewed in time


async def test_what_is_said_while_we_do_not_lead_is_heard_once_we_do() -> None:
    """Facts that were written, a plan that was made, a session, a goal, all by the same arbiter."""
    stage = Stage()
    arbiter = stage.actor._arbiter
    stage.is_leading = False
    stage.observe()
    session = stage.arrive(MEMBERS[0])
    stage.actor.tick()
    assert (stage.goal, heard(session)) == (None, [])
    stage.is_leading = True
    stage.actor.tick()
    (welcome,) = heard(session)
    assert isinstance(welcome, Welcome)
    assert welcome.term == 2
    assert stage.goal is not None
    assert stage.actor._arbiter is arbiter


async def test_facts_written_while_we_do_not_lead_count() -> None:
    stage = Stage(view=ClusterView())

    def lapse() -> None:
        stage.is_leading = False

    stage.write = lapse
    stage.actor.tell(DesiredState(pipelines=1, suspended=True))
    woken = stage.woken
    await stage.until(lambda: bool(stage.written) and not stage.actor._is_persisting)
    assert stage.written[-1].outcome is Outcome.SUSPENDED
    stage.write = lambda: None
    stage.is_leading = True
    stage.actor.tick()
    assert stage.woken > woken  # the arbiter says that it is over, once its facts are durable
    assert not stage.actor._arbiter.state.out._waiting


async def test_a_write_that_fails_in_a_way_nobody_expected_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(jobs, "_RETRY_S", 0.01)
    stage = Stage()
    answers = [ValueError("200 with a proxy's page in it"), facts.NotWrittenError("away")]

    def fail() -> None:
        if answers:
            raise answers.pop(0)

    stage.write = fail
    stage.actor.tell(DesiredState(pipelines=1, suspended=True))
    await stage.until(lambda: bool(stage.written) and not stage.actor._is_persisting)
    assert stage.written[-1].outcome is Outcome.SUSPENDED
    known = [r.exc_info is None for r in caplog.records if "not durable yet" in r.message]
    assert known == [False, True]
