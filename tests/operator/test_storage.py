"""A folder that takes no checkpoints: said at once, once, and no longer than it lasts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from tests.core.controller.builders import JOB, manifest
from tests.operator.office import Office

from bamboo_core.api.events import EventReason, Severity
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import Reason
from bamboo_core.api.spec import JobSpec, from_manifest
from bamboo_core.arbiter.durable import Durable
from bamboo_core.arbiter.events import DesiredState
from bamboo_core.job import training
from bamboo_core.job.storage import Storage
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import (
    BadCheckpoint,
    Fingerprint,
    Heartbeat,
    Hello,
    Manifest,
    Ready,
    Sealed,
)
from bamboo_operator.jobs import JobActor
from bamboo_operator.sessions import Session

NAME = AgentId("job-p0-s0-i0")
FULL = f"agent {NAME}: writing below /c/uid failed: No space left on device"
SEALED = Sealed(Manifest(0, 8, "/c/8", ""))


def failed(step: int, cause: str = FULL) -> BadCheckpoint:
    return BadCheckpoint(0, step, f"the checkpoint of step {step} is not complete", cause)


def ready(storage_error: str = "") -> Ready:
    return Ready(Fingerprint("c", "d", "t", "cpu", 1), 4, 1000, 0, storage_error=storage_error)


def test_a_cause_is_news_once_until_a_checkpoint_is_complete() -> None:
    storage = Storage()
    assert [storage.hear(failed(step)) for step in (2, 4, 6)] == [True, False, False]
    assert storage.hear(failed(8, "agent b: Permission denied"))
    assert not storage.hear(SEALED)
    assert storage.trouble == ""
    assert storage.hear(failed(10))


def test_what_says_nothing_about_writing_changes_nothing() -> None:
    storage = Storage(FULL)
    assert not storage.hear(BadCheckpoint(0, 4, "torn"))
    assert not storage.hear(Heartbeat(1, 1, 1))
    assert not storage.hear(ready())
    assert storage.trouble == FULL


@pytest_asyncio.fixture
async def office() -> AsyncIterator[Office]:
    found = Office()
    await found.open()
    yield found
    await found.close()


def lead(
    office: Office, durable: Durable, told: training.LastReported | None = None
) -> tuple[JobActor, Session]:
    spec = from_manifest(manifest(checkpoint={"uri": "file:///c", "everySteps": 2}))
    assert isinstance(spec, JobSpec)
    last = told if told is not None else training.LastReported()
    actor = office.jobs.lead(JOB, spec, durable, last)
    actor.tell(DesiredState(pipelines=1))
    session = actor.connect(Hello(NAME, "uid", "node", "a", "", "127.0.0.1:1", "127.0.0.1:2"))
    return actor, session


def complaints(office: Office) -> list[str]:
    return [r.message for r in office.records if r.reason is EventReason.CHECKPOINT_BAD]


async def test_a_job_that_could_never_save_ends_before_its_first_step(office: Office) -> None:
    actor, session = lead(office, Durable())
    actor.receive(session, ready(FULL))
    view = actor.view()
    assert (view.outcome, view.reason) == (Outcome.FAILED, Reason.CHECKPOINT_FAILED)
    assert view.message.startswith(f"spec.checkpoint.uri file:///c cannot be written: {FULL}: ")
    assert "spec.worker.podTemplate" in view.message


async def test_a_job_that_has_begun_takes_agents_that_cannot_save(office: Office) -> None:
    actor, session = lead(office, Durable(plan=Fence(0, 1, 4)))
    actor.receive(session, ready(FULL))
    actor.receive(session, ready(FULL))
    assert actor.view().outcome is None
    assert actor.view().checkpoint_error == FULL
    (record,) = (r for r in office.records if r.reason is EventReason.CHECKPOINT_BAD)
    assert (record.severity, record.message) == (
        Severity.WARNING,
        f"checkpoints cannot be written: {FULL}",
    )


async def test_an_event_for_each_cause_and_not_for_each_step(office: Office) -> None:
    actor, session = lead(office, Durable(plan=Fence(0, 1, 4)))
    actor.receive(session, ready())
    before = office.woken
    for step in range(2, 40, 2):
        actor.receive(session, failed(step))
    assert len(complaints(office)) == 1
    assert (actor.view().checkpoint_error, office.woken) == (FULL, before + 1)
    assert len(actor._arbiter.durable.bad) < 10
    actor.receive(session, BadCheckpoint(0, 40, "hash of layer 2 differs"))
    assert "hash of layer 2 differs" in complaints(office)[1]


async def test_the_trouble_is_over_with_the_next_checkpoint(office: Office) -> None:
    told = training.LastReported(checkpoint_error=FULL)
    actor, session = lead(office, Durable(plan=Fence(0, 1, 4), members=(NAME,)), told)
    assert actor.view().checkpoint_error == FULL
    actor.receive(session, SEALED)
    assert actor.view().checkpoint_error == ""
    actor.receive(session, ready(FULL))  # a member says again what it found when it started
    assert actor.view().checkpoint_error == ""


async def test_old_news_that_is_held_stays_old(office: Office) -> None:
    actor, session = lead(office, Durable(plan=Fence(0, 1, 4)))
    actor.receive(session, ready())
    actor.receive(session, failed(2))
    office.is_leading = False
    actor.receive(session, failed(4))
    assert (0, 4) not in actor._arbiter.durable.bad
    office.is_leading = True
    actor.tick()
    assert (0, 4) in actor._arbiter.durable.bad
    assert len(complaints(office)) == 1
