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

from .harness import PATH, Harness

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
    await until(actor, lambda: is_suspended(harness) and not actor._is_persisting)
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
    await until(actor, lambda: is_suspended(harness) and not actor._is_persisting)
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
