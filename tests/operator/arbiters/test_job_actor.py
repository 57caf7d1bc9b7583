"""The shell around a led job: failed writes, lapsed leadership, defects, overtaken plans."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.core.controller.builders import JOB, spec

from bamboo_core.api import limits
from bamboo_core.api.outcome import Outcome
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import ComputePlan, Connected, DesiredState, Lost, Received
from bamboo_core.controller.view import JobView
from bamboo_core.job import orders
from bamboo_core.job.leadership import Action, Leadership
from bamboo_core.job.training_view import LastReported
from bamboo_core.planning import planner
from bamboo_core.planning.requests import Decision, PlanRequest, PlanResult
from bamboo_core.protection.choice import MODES, Facts, Verdict, choose
from bamboo_core.protocol.messages import (
    AgentReport,
    Continuation,
    Directive,
    Fingerprint,
    Hello,
    LayerCost,
    OperatorMessage,
    Ready,
)
from bamboo_operator.arbiters import job_actor
from bamboo_operator.arbiters.job_actor import JobActor
from bamboo_operator.arbiters.led_jobs import IDLE_TICKS
from bamboo_operator.arbiters.sessions import Session
from bamboo_operator.status import durable_facts
from bamboo_wire import encode

from ..harness import AGENTS, PATH, Harness, as_sent

RESTING = DesiredState(pipelines=1, suspended=True)


async def until(actor: JobActor, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)
            actor.tick()


def is_suspended(harness: Harness) -> bool:
    return durable_facts.read(harness.kube.objects[PATH]).outcome is Outcome.SUSPENDED


async def test_facts_written_while_leadership_lapses_count(harness: Harness) -> None:
    actor = harness.lead()

    def lapse() -> None:
        harness.is_leading = False

    harness.before_write = lapse
    actor.tell(RESTING)
    await until(actor, lambda: is_suspended(harness) and not actor._writer.is_busy)
    woken = harness.woken
    harness.is_leading = True
    actor.tick()
    assert harness.woken > woken  # the job is over, once its facts are durable


async def test_an_actor_knows_how_long_ago_everything_was_read(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    def handle(self: Leadership, event: object, now: float, **given: float) -> list[Action]:
        seen.append(now - given["heard_at"])
        return []

    actor = harness.lead()
    monkeypatch.setattr(Leadership, "handle", handle)
    actor.tick()
    harness.behind_s = 7.0
    actor.tick()
    assert seen == [0.0, pytest.approx(7.0)]


async def test_an_unexpected_error_of_a_write_is_retried(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job_actor, "_RETRY_S", 0.01)
    answers = [ValueError("200 with a proxy's page in it"), durable_facts.NotWrittenError("away")]

    def fail() -> None:
        if answers:
            raise answers.pop(0)

    harness.before_write = fail
    actor = harness.lead()
    actor.tell(RESTING)
    await until(actor, lambda: is_suspended(harness) and not actor._writer.is_busy)
    known = [r.exc_info is None for r in caplog.records if "not durable yet" in r.message]
    assert known == [False, True]


async def test_a_defect_of_the_shell_restarts_the_arbiter(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    actor = harness.lead()
    errors = [KeyError("a defect outside the core")]

    def broken(job: object) -> None:
        if errors:
            raise errors.pop()

    actor._ports = replace(actor._ports, wake=broken)
    actor.tell(RESTING)
    (line,) = [r for r in caplog.records if r.message == "the arbiter starts again"]
    assert line.exc_info is not None
    assert actor._leadership.term == 4


class SlowPlanner:
    """Plans as usual, then works on the second part for as long as that is wanted."""

    def __init__(self) -> None:
        self.begun: list[PlanRequest] = []
        self.ended: list[PlanRequest] = []

    def compute(self, request: PlanRequest, is_wanted: planner.IsWanted) -> Iterator[PlanResult]:
        yield next(planner.compute(request))
        self.begun.append(request)
        while is_wanted():
            time.sleep(0.001)
        self.ended.append(request)


async def planned(slow: SlowPlanner) -> JobActor:
    """Two agents have begun their first plan; its second part is being computed."""
    actor = Harness(plan=slow.compute).lead()
    actor.tell(DesiredState(pipelines=1))
    for agent, zone in zip(AGENTS, "ab", strict=True):
        actor.tell(Connected(Hello(agent, agent, agent, zone, agent, "a:1", "a:2"), b"key"))
        fingerprint = Fingerprint("c", "d", "t", "cpu", 1)
        actor.tell(Received(agent, Ready(fingerprint, 4, 1000, 0, (LayerCost(1, 2, 8, 8),) * 4)))
    fence = actor._leadership.arbiter.fence
    for agent in AGENTS:
        actor.tell(Received(agent, AgentReport(fence, fence, {}, frozenset())))
    await until(actor, lambda: len(slow.begun) == 1)
    assert actor.view().planned
    assert not slow.ended
    return actor


async def test_a_loss_ends_the_computation_of_the_plan_in_force() -> None:
    slow = SlowPlanner()
    actor = await planned(slow)
    actor.tell(Lost(AGENTS[0], confirmed=True, evidence="its container exited"))
    await until(actor, lambda: slow.ended == slow.begun)
    await actor.close()


async def test_a_newer_request_ends_the_computation_of_the_older() -> None:
    slow = SlowPlanner()
    actor = await planned(slow)
    (old,) = slow.begun
    actor._perform(ComputePlan(2, old))
    await until(actor, lambda: len(slow.begun) == 2)
    assert slow.ended == [old]
    await actor.close()
    await until(actor, lambda: len(slow.ended) == 2)


@pytest.mark.parametrize("is_large", [True, False])
async def test_large_plans_are_computed_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    """Each takes hundreds of megabytes; small ones do not wait for them."""
    slow = SlowPlanner()
    actor = await planned(slow)
    (request,) = slow.begun
    monkeypatch.setattr(job_actor, "LARGE", limits.tasks(request.spec) - is_large)
    async with actor._ports.large_plans:  # of another job
        actor._perform(ComputePlan(2, request))
        await until(actor, lambda: len(slow.ended) == 1)
        if not is_large:
            await until(actor, lambda: len(slow.begun) == 2)
        assert len(slow.begun) == 2 - is_large
    await until(actor, lambda: len(slow.begun) == 2)
    await actor.close()
    await until(actor, lambda: len(slow.ended) == 2)


class Noting:
    """Plans as usual, and notes what agents had been sent when the second part was begun."""

    def __init__(self) -> None:
        self.sent: list[OperatorMessage] = []
        self.encoded = 0  # messages that were encoded before they were written
        self.at_directive = 0  # streams whose directive waits
        self.sent_before: list[OperatorMessage] | None = None
        self.goes_first: list[bool] = []  # part by part

    def compute(self, request: PlanRequest, is_wanted: planner.IsWanted) -> Iterator[PlanResult]:
        results = planner.compute(request, is_wanted)
        self._note_turn()
        yield next(results)
        self._note_turn()
        self.sent_before = list(self.sent)
        yield from results

    def _note_turn(self) -> None:
        self.goes_first.append(sys.getswitchinterval() > 0.04)

    async def write(self, session: Session, may_go: asyncio.Event) -> None:
        """As the servicer does; directives wait for the event."""
        while (message := await session.outgoing.get()) is not None:
            self.encoded += isinstance(message, bytes)
            message = as_sent(message)
            if isinstance(message, Directive):
                self.at_directive += 1
                await may_go.wait()
            self.sent.append(message)
            session.outgoing.task_done()


async def begun(
    noting: Noting, may_go: asyncio.Event, **spec: object
) -> tuple[JobActor, list[asyncio.Task[None]]]:
    """Two agents with streams have reported for their first plan."""
    actor = Harness(plan=noting.compute).lead(**spec)
    actor.tell(DesiredState(pipelines=1))
    sessions = [
        actor.connect(Hello(agent, agent, agent, zone, agent, "a:1", "a:2"))
        for agent, zone in zip(AGENTS, "ab", strict=True)
    ]
    writers = [asyncio.create_task(noting.write(session, may_go)) for session in sessions]
    fingerprint = Fingerprint("c", "d", "t", "cpu", 1)
    for session in sessions:
        actor.receive(session, Ready(fingerprint, 4, 1000, 0, (LayerCost(1, 2, 8, 8),) * 4))
    fence = actor._leadership.arbiter.fence
    for session in sessions:
        actor.receive(session, AgentReport(fence, fence, {}, frozenset()))
    return actor, writers


async def test_directives_are_written_before_the_planner_goes_on() -> None:
    noting, may_go = Noting(), asyncio.Event()
    actor, writers = await begun(noting, may_go)
    await until(actor, lambda: noting.at_directive == len(AGENTS))
    may_go.set()
    await until(actor, lambda: any(isinstance(m, Continuation) for m in noting.sent))
    assert noting.sent_before is not None
    assert sum(isinstance(m, Directive) for m in noting.sent_before) == len(AGENTS)
    assert noting.goes_first == [True, False]
    await actor.close()
    await asyncio.gather(*writers)


async def test_directives_are_encoded_while_facts_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here the facts are written once the first one is encoded. The other one is when it leaves."""
    noting, may_go, is_encoded = Noting(), asyncio.Event(), asyncio.Event()
    may_go.set()

    def note(message: OperatorMessage) -> bytes:
        is_encoded.set()
        return encode.operator_bytes(message)

    monkeypatch.setattr(job_actor, "encode", SimpleNamespace(operator_bytes=note))
    actor, writers = await begun(noting, may_go)
    usual = actor._ports

    async def slow(job: JobView, durable: Durable, leader_facts: durable_facts.LeaderFacts) -> None:
        if durable.plan.epoch:
            await is_encoded.wait()
        await usual.persist(job, durable, leader_facts)

    actor._ports = replace(usual, persist=slow)
    await until(actor, lambda: sum(isinstance(m, Continuation) for m in noting.sent) == len(AGENTS))
    told = [m for m in noting.sent if isinstance(m, Directive)]
    assert sorted(x.resume for x in told) == sorted(
        x.resume for x in actor._leadership.arbiter.state.in_force.directives.values()
    )
    assert 1 <= noting.encoded <= len(AGENTS)
    assert not actor._encoded
    await actor.close()
    await asyncio.gather(*writers)


async def test_a_directive_that_cannot_be_encoded_costs_nobody_the_rest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its stream ends when it is written there, as it did before."""
    noting, may_go, has_failed = Noting(), asyncio.Event(), asyncio.Event()
    may_go.set()

    def fail(message: OperatorMessage) -> bytes:
        has_failed.set()
        raise RuntimeError("a defect")

    monkeypatch.setattr(job_actor, "encode", SimpleNamespace(operator_bytes=fail))
    actor, writers = await begun(noting, may_go)
    usual = actor._ports

    async def slow(job: JobView, durable: Durable, leader_facts: durable_facts.LeaderFacts) -> None:
        if durable.plan.epoch:
            await has_failed.wait()
        await usual.persist(job, durable, leader_facts)

    actor._ports = replace(usual, persist=slow)
    await until(actor, lambda: sum(isinstance(m, Continuation) for m in noting.sent) == len(AGENTS))
    assert sum(isinstance(m, Directive) for m in noting.sent) == len(AGENTS)
    assert "a directive cannot be encoded" in caplog.text
    assert not noting.encoded
    assert not actor._encoded
    await actor.close()
    await asyncio.gather(*writers)


async def test_nothing_is_encoded_ahead_for_a_plan_that_is_overtaken_or_has_left() -> None:
    noting, may_go = Noting(), asyncio.Event()
    may_go.set()
    actor, writers = await begun(noting, may_go)
    # the last agent's directive has left, too
    await until(actor, lambda: sum(isinstance(m, Continuation) for m in noting.sent) == len(AGENTS))
    in_force = actor._leadership.arbiter.state.in_force
    decision = Decision(in_force.plan, in_force.directives, -1, tasks=0, copies=0, loads=0)
    assert not actor._may_encode  # they have left
    await actor._encode(decision, lambda: True)
    assert not actor._encoded
    actor._may_encode = True
    await actor._encode(decision, lambda: False)
    assert not actor._encoded
    await actor._encode(decision, lambda: True)
    assert len(actor._encoded) == len(AGENTS)
    other = replace(in_force.directives[AGENTS[0]])
    assert actor._as_encoded(other) is other
    await actor.close()
    await asyncio.gather(*writers)


async def test_auto_takes_its_mode_outside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first estimate of a new grid takes most of a second: heartbeats would wait for it."""
    noting, may_go = Noting(), asyncio.Event()
    choosers = list[threading.Thread]()

    def note(found: Facts) -> Verdict:
        choosers.append(threading.current_thread())
        return choose(found)

    monkeypatch.setattr(orders, "choose", note)
    actor, writers = await begun(noting, may_go, redundancy={"mode": "Auto"})
    await until(actor, lambda: noting.at_directive == len(AGENTS))
    assert choosers
    assert threading.current_thread() not in choosers
    may_go.set()
    await until(actor, lambda: actor.view().verdict is not None)
    assert actor.view().mode in MODES
    await actor.close()
    await asyncio.gather(*writers)


async def test_a_mode_that_cannot_be_chosen_is_a_fault_of_the_planner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noting, may_go = Noting(), asyncio.Event()

    def fail(found: Facts) -> Verdict:
        raise ValueError("step_s is 0; it must be positive")

    monkeypatch.setattr(orders, "choose", fail)
    actor, writers = await begun(noting, may_go, redundancy={"mode": "Auto"})
    await until(actor, lambda: "step_s is 0" in actor.view().detail)
    assert "the planner failed: ValueError" in actor.view().detail
    assert actor.view().verdict is None
    await actor.close()
    await asyncio.gather(*writers)


async def test_objects_of_a_plan_are_not_looked_through_before_agents_have_it() -> None:
    noting, may_go = Noting(), asyncio.Event()
    actor, writers = await begun(noting, may_go)
    await until(actor, lambda: noting.at_directive == len(AGENTS))
    assert not gc.isenabled()
    may_go.set()
    await until(actor, gc.isenabled)
    assert any(isinstance(m, Continuation) for m in noting.sent)
    await actor.close()
    await asyncio.gather(*writers)


async def test_the_planner_does_not_wait_for_a_stream_that_is_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_actor, "_LEAVE_S", 0.05)
    noting, may_go = Noting(), asyncio.Event()
    actor, writers = await begun(noting, may_go)
    await until(actor, lambda: noting.sent_before is not None)
    assert not any(isinstance(m, Directive) for m in noting.sent)
    may_go.set()
    await actor.close()
    await asyncio.gather(*writers)


async def test_jobs_whose_agents_are_not_connected_get_few_ticks(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand jobs that wait for nodes would keep the event loop busy; all get their turn."""
    waiting = [
        harness.jobs.lead(replace(JOB, uid=f"waits-{n}"), spec(), Durable(), LastReported())
        for n in range(6)
    ]
    busy = harness.lead()
    busy.sessions.open(AGENTS[0])
    ticks, found = Counter[str](), list[int]()
    done = asyncio.Event()

    def tick(actor: JobActor) -> None:
        ticks[actor.job.uid] += 1
        if ticks[busy.job.uid] == 10 * IDLE_TICKS and not found:
            found.extend(ticks[other.job.uid] for other in waiting)
            done.set()

    kept = Counter[str]()
    monkeypatch.setattr(JobActor, "tick", tick)
    monkeypatch.setattr(JobActor, "keep_time", lambda actor: kept.update([actor.job.uid]))
    ticking = asyncio.create_task(harness.jobs.tick_for_ever(0.0))
    await asyncio.wait_for(done.wait(), 60)
    ticking.cancel()
    assert found == [10] * 6
    assert all(kept[other.job.uid] >= 10 * (IDLE_TICKS - 1) - 1 for other in waiting)
    assert busy.job.uid not in kept
