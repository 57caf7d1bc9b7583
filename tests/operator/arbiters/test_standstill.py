"""A reconcile of a large job waits while its agents stand still, but not for long."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterator

import pytest

from bamboo_core.arbiter_state.events import DesiredState
from bamboo_core.planning import planner
from bamboo_core.planning.requests import PlanRequest, PlanResult, Unplaceable
from bamboo_core.protocol.messages import (
    AgentReport,
    Continuation,
    Directive,
    Fingerprint,
    Hello,
    LayerCost,
    Ready,
    Stop,
)
from bamboo_operator.arbiters import job_actor
from bamboo_operator.arbiters.job_actor import STANDSTILL_S, JobActor
from bamboo_operator.arbiters.sessions import Session

from ..harness import AGENTS, Harness, as_sent

READY = Ready(Fingerprint("c", "d", "t", "cpu", 1), 4, 1000, 0, (LayerCost(1, 2, 8, 8),) * 4)


@pytest.fixture(autouse=True)
def two_agents_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_actor, "LARGE_JOB", 1)


async def until(actor: JobActor, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)
            actor.tick()


async def stopped(harness: Harness) -> tuple[JobActor, list[Session]]:
    """Two agents have got a STOP and have not reported yet."""
    actor = harness.lead()
    actor.tell(DesiredState(pipelines=1))
    assert not actor.standstill_s()
    sessions = [
        actor.connect(Hello(agent, agent, agent, zone, agent, "a:1", "a:2"))
        for agent, zone in zip(AGENTS, "ab", strict=True)
    ]
    for session in sessions:
        actor.receive(session, READY)
    await until(actor, lambda: actor._stopped_at is not None)  # facts are durable first
    return actor, sessions


def report(
    actor: JobActor, sessions: list[Session], versions: dict[int, int] | None = None
) -> None:
    fence = actor._leadership.arbiter.fence
    for session in sessions:
        actor.receive(session, AgentReport(fence, fence, versions or {}, frozenset()))


async def written(session: Session, until: type) -> None:
    """As the servicer does, up to the first message of this kind."""
    while True:
        message = await asyncio.wait_for(session.outgoing.get(), 10)
        session.outgoing.task_done()
        if message is not None and isinstance(as_sent(message), until):
            return


async def test_a_reconcile_reads_no_pods_while_agents_wait_for_programs(harness: Harness) -> None:
    actor, sessions = await stopped(harness)
    before = len(harness.kube.requests)
    pause_s = await harness.reconcile()
    assert pause_s is not None
    assert 0 < pause_s <= STANDSTILL_S
    assert not any("/pods" in path for _, path in harness.kube.requests[before:])

    report(actor, sessions)
    woken = harness.woken
    await asyncio.gather(*(written(session, Directive) for session in sessions))
    await until(actor, lambda: not actor.standstill_s())
    assert harness.woken > woken  # at once, and not after the pause
    await harness.reconcile()
    assert any("/pods" in path for _, path in harness.kube.requests[before:])
    await actor.close()


async def test_a_replaced_plan_is_freed_after_the_directives_have_left(harness: Harness) -> None:
    """To free the plan of a large job takes as long as to send many directives."""
    actor, sessions = await stopped(harness)
    report(actor, sessions)
    await asyncio.gather(*(written(session, Continuation) for session in sessions))
    state = actor._leadership.arbiter.state
    assert state.in_force is not None
    replaced, fence = weakref.ref(state.in_force), state.fence
    hello = Hello(AGENTS[0], AGENTS[0], AGENTS[0], "a", AGENTS[0], "a:1", "a:2")
    sessions[0] = actor.connect(hello)  # it has come back without its state
    actor.receive(sessions[0], READY)
    await asyncio.gather(*(written(session, Stop) for session in sessions))
    report(actor, sessions, dict.fromkeys(range(4), 0))
    await until(actor, lambda: state.durable.plan > fence)
    assert state.in_force is not replaced()
    assert replaced() is not None
    await asyncio.gather(*(written(session, Continuation) for session in sessions))
    await until(actor, lambda: replaced() is None)
    await actor.close()


async def test_what_the_cluster_shows_is_seen_although_a_report_does_not_come(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_actor, "STANDSTILL_S", 0.02)
    actor, _ = await stopped(harness)
    await asyncio.sleep(0.03)
    before = len(harness.kube.requests)
    await harness.reconcile()
    assert any("/pods" in path for _, path in harness.kube.requests[before:])
    await actor.close()


async def test_an_error_is_shown_until_a_reconcile_has_ended(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has only waited says nothing: else the condition would come and go."""
    actor, _ = await stopped(harness)
    await harness.reconcile()
    await harness.reconciler.note_fault("ns", "job", RuntimeError("no node can be read"))
    assert await harness.reconcile()  # it waits
    monkeypatch.setattr(job_actor, "STANDSTILL_S", 0.0)
    await harness.reconcile()
    assert harness.condition("Stalled")["message"].endswith("no node can be read")
    await harness.reconcile()
    assert harness.condition("Stalled")["status"] == "False"
    await actor.close()


async def test_a_small_job_is_looked_at_at_any_time(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_actor, "LARGE_JOB", len(AGENTS))
    actor, _ = await stopped(harness)
    assert not actor.standstill_s()
    await actor.close()


async def test_agents_without_a_plan_are_no_reason_to_wait() -> None:
    def refuse(request: PlanRequest, is_wanted: planner.IsWanted) -> Iterator[PlanResult]:
        yield Unplaceable("nobody has a seat")

    actor, sessions = await stopped(Harness(plan=refuse))
    assert actor.standstill_s()
    for session in sessions:
        while not session.outgoing.empty():
            session.outgoing.get_nowait()
            session.outgoing.task_done()
    report(actor, sessions)
    await until(actor, lambda: not actor.standstill_s())
    await actor.close()
