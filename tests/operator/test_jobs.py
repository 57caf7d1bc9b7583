"""The shell around a led job: writes that fail, leadership that lapses, defects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from bamboo_core.api.outcome import Outcome
from bamboo_core.arbiter.events import DesiredState
from bamboo_operator import facts, jobs
from bamboo_operator.jobs import JobActor

from .world import PATH, World

RESTING = DesiredState(pipelines=1, suspended=True)


async def until(actor: JobActor, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)
            actor.tick()


def is_suspended(world: World) -> bool:
    return facts.read(world.kube.objects[PATH]).outcome is Outcome.SUSPENDED


async def test_facts_written_while_leadership_lapses_count(world: World) -> None:
    actor = world.lead()

    def lapse() -> None:
        world.is_leading = False

    world.before_write = lapse
    actor.tell(RESTING)
    await until(actor, lambda: is_suspended(world) and not actor._is_persisting)
    woken = world.woken
    world.is_leading = True
    actor.tick()
    assert world.woken > woken  # the job is over, once its facts are durable


async def test_an_unexpected_error_of_a_write_is_retried(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(jobs, "_RETRY_S", 0.01)
    answers = [ValueError("200 with a proxy's page in it"), facts.NotWrittenError("away")]

    def fail() -> None:
        if answers:
            raise answers.pop(0)

    world.before_write = fail
    actor = world.lead()
    actor.tell(RESTING)
    await until(actor, lambda: is_suspended(world) and not actor._is_persisting)
    known = [r.exc_info is None for r in caplog.records if "not durable yet" in r.message]
    assert known == [False, True]


async def test_a_defect_of_the_shell_restarts_the_arbiter(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    actor = world.lead()
    errors = [KeyError("a defect outside the core")]

    def broken(job: object) -> None:
        if errors:
            raise errors.pop()

    actor._ports = replace(actor._ports, wake=broken)
    actor.tell(RESTING)
    (line,) = [r for r in caplog.records if r.message == "the arbiter starts again"]
    assert line.exc_info is not None
    assert actor._leadership.term == 4
