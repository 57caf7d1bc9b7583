"""A user mends a job that is not suspended, while its first plan is being made.

The API server takes such a change until a plan is durable. Then no agent of the old template may
have a part in any plan, and the job must train with those of the new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.core.controller.builders import JOB

from bamboo_core.api.events import EventReason
from bamboo_core.model.ids import AgentId
from bamboo_core.planning import planner
from bamboo_core.planning.requests import PlanRequest, PlanResult
from bamboo_core.protocol.messages import (
    AgentReport,
    Directive,
    Fingerprint,
    Finished,
    Hello,
    LayerCost,
    OperatorMessage,
    Ready,
)
from bamboo_operator.arbiters import job_actor
from bamboo_operator.arbiters.job_actor import JobActor
from bamboo_operator.arbiters.sessions import Session
from bamboo_operator.kube import api
from bamboo_operator.kube.labels import TEMPLATE_ANNOTATION
from bamboo_operator.status import durable_facts

from ..harness import PATH, Harness, as_sent
from .test_failed_starts import ended, report

READY = Ready(Fingerprint("c", "d", "t", "cpu", 1), 4, 1000, 0, (LayerCost(1, 2, 8, 8),) * 4)
CLUSTER = {"adjacency": "Cluster"}


class Planner:
    """Plans as usual. ``meanwhile``: what happens while the first plan is being made."""

    def __init__(self) -> None:
        self.meanwhile: list[Callable[[], None]] = []

    def compute(self, request: PlanRequest, is_wanted: planner.IsWanted) -> Iterator[PlanResult]:
        while self.meanwhile:
            self.meanwhile.pop()()
        yield from planner.compute(request, is_wanted)


class Start:
    """A job of two agents with the real planner, and its agents."""

    def __init__(self) -> None:
        self.planner = Planner()
        self.harness = Harness(plan=self.planner.compute)
        self.refused = 0  # writes of the first plan
        self.woken: asyncio.Task[float | None] | None = None

    @property
    def actor(self) -> JobActor:
        found = self.harness.jobs.find(JOB.uid)
        assert found is not None
        return found

    @property
    def members(self) -> tuple[AgentId, ...]:
        return durable_facts.read(self.harness.kube.objects[PATH]).members

    def connect(self, names: list[str]) -> list[Session]:
        """Agents come, or come back, and are ready."""
        actor, sessions = self.actor, []
        for name in names:
            hello = Hello(AgentId(name), f"uid-{name}", "node-a", "a", "m/1", "a:1", "a:2")
            sessions.append(actor.connect(hello))
        for session in sessions:
            actor.receive(session, READY)
        return sessions

    def report(self, sessions: list[Session]) -> None:
        """They have stopped for the first plan."""
        fence = self.actor._leadership.arbiter.fence
        for session in sessions:
            self.actor.receive(session, AgentReport(fence, fence, {}, frozenset()))

    def mend(self) -> None:
        self.harness.edit(worker={"image": "agent:2"})

    def images(self) -> set[str]:
        pods = [self.harness.kube.objects[api.pod("ns", n)] for n in self.harness.pods()]
        return {pod["spec"]["containers"][0]["image"] for pod in pods}


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """The operator looks again as soon as a write was refused, as its watch makes it do."""
    found = Start()
    write = durable_facts.write

    async def written(*arguments: Any) -> None:
        try:
            await write(*arguments)
        except durable_facts.NotWrittenError:
            found.refused += 1
            found.woken = asyncio.create_task(found.harness.reconcile())
            raise

    monkeypatch.setattr(durable_facts, "write", written)
    monkeypatch.setattr(job_actor, "_RETRY_S", 0.01)
    found.harness.apply(placement=CLUSTER)
    return found


def sent(sessions: list[Session]) -> list[OperatorMessage]:
    """Messages to agents, until now."""
    found = []
    for session in sessions:
        while not session.outgoing.empty():
            message = session.outgoing.get_nowait()
            found += [] if message is None else [as_sent(message)]
    return found


def before_the_patch(start: Start) -> None:
    """The change comes between the look of the first plan's write and its PATCH."""
    left = [start.mend]

    def hook(verb: str, path: str) -> None:
        if (verb, path) == ("apply", api.job_status("ns", "job")) and left:
            left.pop()()

    start.harness.kube.fail = hook


@pytest.mark.parametrize("when", ["while it is made", "before the patch"])
async def test_a_plan_of_agents_that_are_not_wanted_any_more_never_becomes_durable(
    start: Start, when: str
) -> None:
    harness = start.harness
    await harness.reconcile()
    old = harness.pods()
    sessions = start.connect(old)
    await harness.settle()  # the facts on which a STOP depends are durable
    is_late = when == "before the patch"
    start.planner.meanwhile.append((lambda: before_the_patch(start)) if is_late else start.mend)
    start.report(sessions)
    await harness.settle()
    assert start.refused == 1
    assert start.members == ()
    assert not [m for m in sent(sessions) if isinstance(m, Directive)]
    await harness.reconcile()
    assert start.images() == {"agent:2"}
    new = harness.pods()
    sessions = start.connect(new)
    await harness.settle()
    start.report(sessions)
    await harness.settle()
    assert set(start.members) == set(new)
    assert not {*new} & {*old}
    assert [m for m in sent(sessions) if isinstance(m, Directive)]
    await harness.reconcile()
    assert harness.condition("Running")["status"] == "True"
    await harness.jobs.close()


async def test_a_job_does_not_run_before_its_first_plan_is_durable(start: Start) -> None:
    """Nothing has left until then, and the plan may never become durable."""
    harness, refused = start.harness, asyncio.Event()
    is_away = True

    def store() -> None:
        if is_away and start.actor.view().planned:
            refused.set()
            raise durable_facts.NotWrittenError("the API server is away")

    await harness.reconcile()
    sessions = start.connect(harness.pods())
    await harness.settle()
    harness.before_write = store
    start.report(sessions)
    async with asyncio.timeout(10):
        await refused.wait()
    await harness.reconcile()
    assert harness.condition("Running")["status"] == "False"
    # A new job recovers from nothing, and the next operator reads from the phase what it was.
    assert harness.status["phase"] == "Pending"
    assert harness.status["times"]["state"] == "Waiting"
    assert harness.condition("Recovering")["status"] == "False"
    woken, is_away = harness.woken, False
    await harness.settle()
    assert harness.woken > woken
    await harness.reconcile()
    assert harness.condition("Running")["status"] == "True"
    assert harness.status["phase"] == "Running"
    await harness.jobs.close()


async def test_old_agents_that_come_back_before_they_end_get_no_work(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deleted pod has a grace period, and its agent returns to the arbiter that begins anew."""
    harness, kube = start.harness, start.harness.kube

    async def delete(path: str, **_: object) -> bool:
        meta = kube.objects[path]["metadata"]
        meta["deletionTimestamp"] = "2026-01-01T00:10:00Z"
        return True

    await harness.reconcile()
    old = harness.pods()
    start.connect(old)
    await harness.settle()
    monkeypatch.setattr(kube, "delete", delete)
    start.mend()
    for _ in range(3):
        await harness.reconcile()
        back = start.connect(old)
        await harness.settle()
        assert start.actor._leadership.arbiter.status().members == ()
    new = [name for name in harness.pods() if name not in old]
    assert len(new) == 2
    sessions = start.connect(new)
    await harness.settle()
    start.report(sessions)
    await harness.settle()
    assert set(start.members) == set(new)
    assert not [m for m in sent(back) if isinstance(m, Directive)]
    await harness.jobs.close()


async def test_a_durable_plan_is_kept_though_the_status_was_read_before_it(start: Start) -> None:
    """A reconcile has read the job before the plan was written, and goes on after that."""
    harness, kube = start.harness, start.harness.kube
    await harness.reconcile()
    names = harness.pods()
    sessions = start.connect(names)
    await harness.settle()
    stale = await kube.get(PATH)
    start.report(sessions)
    await harness.settle()
    assert set(start.members) == set(names)
    for name in names:  # as if they were of another template: only the facts protect them
        kube.objects[api.pod("ns", name)]["metadata"]["annotations"][TEMPLATE_ANNOTATION] = "other"
    await reconcile_from(harness, stale)
    assert harness.pods() == names
    await harness.jobs.close()


async def test_erased_facts_do_not_undo_a_plan(start: Start) -> None:
    """Somebody has erased them, so the API server takes a change; the agents hold the state."""
    harness = start.harness
    await harness.reconcile()
    names = harness.pods()
    sessions = start.connect(names)
    await harness.settle()
    start.report(sessions)
    await harness.settle()
    actor = start.actor
    del harness.status["arbiter"]
    start.mend()
    await harness.reconcile()
    assert start.actor is actor
    assert harness.pods() == names
    await harness.jobs.close()


async def reconcile_from(harness: Harness, stale: Any) -> None:
    """One reconcile whose first read of the job has an older answer."""
    kube = harness.kube
    get, answers = kube.get, [stale]

    async def late(path: str) -> Any:
        return answers.pop() if path == PATH and answers else await get(path)

    kube.get = late  # type: ignore[method-assign]
    await harness.reconcile()
    assert not answers


def lost(harness: Harness) -> list[str]:
    """Messages of the events that tell of another leader."""
    return [r.message for r in harness.records if r.reason == EventReason.LEADERSHIP_LOST]


async def test_the_job_is_led_anew_from_what_was_written_since_it_was_read(start: Start) -> None:
    """A reconcile has read the job before the old actor wrote that it stops the agents."""
    harness, kube = start.harness, start.harness.kube
    await harness.reconcile()
    old = harness.pods()
    start.mend()
    stale = await kube.get(PATH)
    start.connect(old)
    await harness.settle()
    assert durable_facts.read(kube.objects[PATH]) != durable_facts.read(stale or {})
    await reconcile_from(harness, stale)
    await trains(start)


async def test_a_write_that_is_on_its_way_is_awaited(start: Start) -> None:
    """It cannot be called back: the API server carries it out whoever asked for it."""
    harness, kube = start.harness, start.harness.kube
    await harness.reconcile()
    apply, asked, landed = kube.apply, asyncio.Event(), list[str]()

    async def carried_out(*arguments: Any, **options: Any) -> Any:
        for _ in range(500):
            await asyncio.sleep(0)
        found = await apply(*arguments, **options)
        landed.append("before anything else is written")
        return found

    async def slow(path: str, *arguments: Any, **options: Any) -> Any:
        if options.get("manager") != api.ARBITER_MANAGER:
            return await apply(path, *arguments, **options)
        asked.set()
        return await asyncio.shield(asyncio.create_task(carried_out(path, *arguments, **options)))

    kube.apply = slow  # type: ignore[method-assign]
    start.mend()
    start.connect(harness.pods())
    await asked.wait()
    await harness.reconcile()
    assert landed
    await harness.settle()
    await trains(start)


async def trains(start: Start) -> None:
    """The agents of the new template get a plan, and nobody tells of another leader."""
    harness = start.harness
    await harness.reconcile()
    assert start.images() == {"agent:2"}
    sessions = start.connect(harness.pods())
    await harness.settle()
    assert lost(harness) == []
    start.report(sessions)
    await harness.settle()
    assert set(start.members) == {*harness.pods()}
    assert lost(harness) == []
    await harness.jobs.close()


@pytest.mark.parametrize("is_seen", [True, False], ids=["suspension seen", "suspension unseen"])
async def test_a_job_rests_before_it_goes_on_with_another_template(
    start: Start, is_seen: bool
) -> None:
    """Resumed with another image while its agents still leave, as an older definition lets it be.
    One agent is lost then: its replacement must not join the one that is left."""
    harness, kube = start.harness, start.harness.kube
    await harness.reconcile()
    old = harness.pods()
    sessions = start.connect(old)
    await harness.settle()
    start.report(sessions)
    await harness.settle()
    await harness.reconcile()
    assert harness.condition("Running")["status"] == "True"
    if is_seen:
        harness.edit(suspend=True)
        await harness.reconcile()
    harness.edit(suspend=False, worker={"image": "agent:2"})
    await harness.reconcile()
    report(harness, old[0], {"phase": "Failed", "containerStatuses": [ended(1)]})
    start.actor.disconnect(sessions[0])
    for _ in range(2):
        await harness.reconcile()
        await harness.settle()
        assert harness.pods() == old
    said = harness.condition("Running")
    assert (said["status"], said["reason"]) == ("False", "TemplateChanged")
    assert said["message"].startswith("the operator suspends the job by itself: its template has")
    start.report(sessions[1:])
    await harness.settle()
    assert start.members == (old[1],)  # for the last program alone
    start.actor.receive(sessions[1], Finished(start.actor._leadership.arbiter.fence))
    await harness.settle()
    start.actor.disconnect(sessions[1])
    for _ in range(3):
        await harness.reconcile()
        await harness.settle()
    assert start.members == ()
    new = [name for name in harness.pods() if name not in old]
    assert len(new) == 2
    images = {kube.objects[api.pod("ns", n)]["spec"]["containers"][0]["image"] for n in new}
    assert images == {"agent:2"}
    sessions = start.connect(new)
    await harness.settle()
    start.report(sessions)
    await harness.settle()
    assert set(start.members) == {*new}
    await harness.jobs.close()
