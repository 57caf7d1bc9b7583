"""The shell around a led job: failed writes, lapsed leadership, defects, overtaken plans."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from bamboo_core.api.outcome import Outcome
from bamboo_core.arbiter.events import (
    ComputePlan,
    Connected,
    DesiredState,
    Lost,
    Received,
)
from bamboo_core.planning import planner
from bamboo_core.planning.requests import PlanRequest, PlanResult
from bamboo_core.protocol.messages import (
    AgentReport,
    Fingerprint,
    Hello,
    LayerCost,
    Ready,
)
from bamboo_operator import facts, jobs
from bamboo_operator.jobs import JobActor

from .harness import AGENTS, PATH, Harness

RESTING = DesiredState(pipelines=1, suspended=True)


async def until(actor: JobActor, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)
            actor.tick()


def is_suspended(harness: Harness) -> bool:
    return facts.read(harness.kube.objects[PATH]).outcome is Outcome.SUSPENDED


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


async def test_an_unexpected_error_of_a_write_is_retried(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(jobs, "_RETRY_S", 0.01)
    answers = [ValueError("200 with a proxy's page in it"), facts.NotWrittenError("away")]

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
