"""The arbiters' shell: one core Arbiter for each job, its effects performed in asyncio.

Events are handled at once and without waiting; what takes time (writing facts, planning, deleting
pods) runs in tasks that come back as events. A defect in one job's arbiter restarts that arbiter
with a higher term after a pause and leaves the others alone. What is said during the pause, or
while it is not certain that we lead, is held and said in order afterwards: nothing counts as said
that the arbiter will not hear.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from bamboo_core.api import spec as specs
from bamboo_core.api.events import EventReason, Severity
from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter.arbiter import Arbiter
from bamboo_core.arbiter.durable import Durable
from bamboo_core.arbiter.events import (
    ArbiterJob,
    ArbiterStatus,
    ComputePlan,
    Connected,
    DesiredState,
    Disconnected,
    Dismiss,
    Effect,
    Event,
    Lost,
    Over,
    Persist,
    Persisted,
    Planned,
    Received,
    Record,
    Send,
    Tick,
    Timing,
)
from bamboo_core.controller.view import ClusterView, JobView, Losses, TrainingView
from bamboo_core.job import training
from bamboo_core.job.storage import Storage
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.planning import planner
from bamboo_core.planning.requests import PlannerFault, PlanRequest, PlanResult
from bamboo_core.protocol.messages import (
    AgentMessage,
    BadCheckpoint,
    Heartbeat,
    Hello,
    Notice,
    Ready,
    Reconnect,
)
from bamboo_operator import collector, facts
from bamboo_operator.sessions import Session, Sessions

log = logging.getLogger(__name__)

Planner = Callable[[PlanRequest], Iterator[PlanResult]]

_TICKS_A_LOOK = 4

RETURN_S = 30.0
"""Members have so long to find a new leader: where the operator has no Service, nodes take a while
to show them its new address."""

_FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 60.0
_RETRY_S = 1.0

_MOST_HELD = 10_000
"""Events. An agent says nothing after its Hello until it is welcome, so that only clients that come
and go all the time get here."""


@dataclass(frozen=True)
class Ports:
    """What an actor needs of the world.

    persist: writes facts under the rule of :mod:`bamboo_operator.facts`; dismiss: deletes a pod;
    record: (job, record); wake: asks for a reconcile, wake_later: for one in a while, for the sake
    of progress; is_leading: false silences everything until it is true again.
    """

    persist: Callable[[JobView, Durable, facts.Line], Coroutine[Any, Any, None]]
    dismiss: Callable[[JobView, AgentId, str], Coroutine[Any, Any, None]]
    record: Callable[[JobView, Record], None]
    wake: Callable[[JobView], None]
    wake_later: Callable[[JobView], None]
    is_leading: Callable[[], bool]
    plan: Planner = planner.compute
    timing: Timing = field(default_factory=lambda: Timing(return_s=RETURN_S))


class JobActor:
    """One job under our leadership.

    is_overtaken: another leader has written: this actor is silent and wants to be replaced.
    """

    def __init__(
        self,
        job: JobView,
        spec: JobSpec,
        durable: Durable,
        *,
        term: int,
        ports: Ports,
        told: training.LastReported | None = None,
    ) -> None:
        self.job = job
        self.sessions = Sessions()
        self.is_overtaken = False
        self._line = facts.Line(durable)
        self._told = told if told is not None else training.LastReported()
        self.losses = self._told.losses
        self._storage = Storage(self._told.checkpoint_error)
        self._is_old_news = False
        self._ports = ports
        self._spec = spec
        self._term = max(term, durable.term + 1)
        self._keys: dict[AgentId, bytes] = {}
        self._dismissed: set[AgentId] = set()
        self._reported_lost: set[AgentId] = set()
        self._departing: set[AgentId] = set()
        self._counted: set[AgentId] = set()
        self._goal: DesiredState | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending: Persist | None = None
        self._is_persisting = False
        self._mark: object = None
        self._told_commit = -1
        self._faults = 0
        self._ticks = 0
        self._restart_at = 0.0
        self._held: deque[tuple[Event, bool]] = deque()
        self._facts = durable
        self._arbiter = self._make(durable)

    def _make(self, durable: Durable) -> Arbiter:
        job = ArbiterJob(
            name=f"{self.job.namespace}/{self.job.name}",
            uid=self.job.uid,
            spec=self._spec,
            spec_json=specs.to_json(self._spec),
            timing=self._ports.timing,
        )
        return Arbiter(job, durable, self._term)

    # ------------------------------------------------------------ agents

    def connect(self, hello: Hello) -> Session:
        """An agent's stream has begun."""
        session = self.sessions.open(hello.agent)
        key = self._keys.setdefault(hello.agent, os.urandom(16))
        self.tell(Connected(hello, key))
        return session

    def receive(self, session: Session, message: AgentMessage) -> None:
        """A message has come on a stream; the last words on one that was replaced count too."""
        if isinstance(message, Notice):
            self._departing.add(session.agent)
            self._ports.wake(self.job)  # for a pod in its place
        before, durable = self._storage.trouble, self._arbiter.durable
        if isinstance(message, Ready) and session.agent in durable.members:
            message = replace(message, storage_error="")  # what it found when it started
        is_news = self._storage.hear(message)
        if isinstance(message, Ready) and durable.plan != Fence():
            message = self._admitted(message, is_news=is_news)
        is_failed_write = isinstance(message, BadCheckpoint) and message.cause != ""
        self.tell(Received(session.agent, message), is_old_news=is_failed_write and not is_news)
        if self._storage.trouble != before:
            self._ports.wake(self.job)

    def _admitted(self, ready: Ready, *, is_news: bool) -> Ready:
        """A job that has begun takes agents that cannot save: its state lives in agents."""
        if is_news:
            text = f"checkpoints cannot be written: {ready.storage_error}"
            self._ports.record(self.job, Record(Severity.WARNING, EventReason.CHECKPOINT_BAD, text))
        return replace(ready, storage_error="")

    def disconnect(self, session: Session) -> None:
        """A stream has ended."""
        if self.sessions.discard(session):
            self.tell(Disconnected(session.agent))

    def send_away(self, after_s: float) -> None:
        """We are leaving: agents shall come back to the next leader."""
        for session in self.sessions.all():
            session.send(Reconnect(after_s))

    # ------------------------------------------------------------ cluster

    def observe(self, spec: JobSpec, view: ClusterView) -> None:
        """Tell the arbiter what the cluster shows: the goal, and who is certainly gone."""
        self._take_spec(spec)
        nodes = {node.name: node for node in view.nodes}
        for agent, why in training.certain_losses(view):
            if agent not in self._reported_lost:
                self._reported_lost.add(agent)
                self.tell(Lost(agent, confirmed=True, evidence=why))
        alive = [pod for pod in view.pods if pod.is_alive]
        present = {pod.agent for pod in view.pods}
        self._reported_lost &= present
        self._dismissed &= present
        goal = DesiredState(
            pipelines=spec.pipelines.count,
            suspended=spec.suspend,
            drained=frozenset(
                p.agent for p in alive if p.node in nodes and nodes[p.node].departing
            ),
            expected=frozenset(p.agent for p in alive if p.agent not in self._dismissed),
            least=spec.pipelines.min,
        )
        if goal != self._goal:
            self._goal = goal
            self.tell(goal)

    def _take_spec(self, spec: JobSpec) -> None:
        """While it is suspended a job may change: its arbiter starts anew with the same facts."""
        if training.same_for_arbiter(spec, self._spec) or self.sessions.all():
            return
        self._spec = spec
        self._restart()

    def view(self) -> TrainingView:
        """What reconcile and status need to know."""
        return training.view(
            self._arbiter.status(),
            self._arbiter.durable,
            dismissed=frozenset(self._dismissed),
            departing=frozenset(self._departing),
            losses=self.losses,
            told=self._told,
            checkpoint_error=self._storage.trouble,
        )

    # ------------------------------------------------------------ events and effects

    def tick(self) -> None:
        """Time has passed."""
        self._ticks += 1
        self.tell(Tick())

    def tell(self, event: Event, *, is_old_news: bool = False) -> None:
        """Let the arbiter handle an event and perform what it wants: now, or when it may again.

        is_old_news: users have been told of the bad checkpoint's cause.
        """
        if self.is_overtaken:
            return  # who replaces this actor begins from the cluster and from new sessions
        if self._is_listening() or not _is_routine(event):
            self._held.append((event, is_old_news))
        if len(self._held) > _MOST_HELD:
            log.warning("too much is held back", extra={"job": self.job.name})
            self._restart()
        while self._held and self._is_listening():
            self._handle(*self._held.popleft())

    def _is_listening(self) -> bool:
        is_paused = asyncio.get_running_loop().time() < self._restart_at
        return not is_paused and not self.is_overtaken and self._ports.is_leading()

    def _handle(self, event: Event, is_old_news: bool) -> None:
        now = asyncio.get_running_loop().time()
        is_due = isinstance(event, Tick) and self._ticks % _TICKS_A_LOOK == 0
        self._is_old_news = is_old_news
        try:
            effects = self._arbiter.handle(event, now)
            self._facts = self._arbiter.durable
            for effect in effects:
                self._perform(effect)
            if effects or is_due or not _is_routine(event):
                self._notice_change()
        except Exception:
            # A supervisor: a defect costs this job a pause, and the others nothing.
            log.exception("the arbiter failed", extra={"job": self.job.name, "uid": self.job.uid})
            self._faults += 1
            pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self._faults - 1, 10))
            self._restart_at = now + pause_s
            self._restart()

    def _restart(self) -> None:
        """A new arbiter, as a new leader would make it; agents come back to it.

        It begins from the facts of the last event that was handled to its end: what a failed one
        changed has had no effect on anybody. What only the cluster says, the reconcile that is
        woken says again; what agents say once, their next sessions do. What was done outside
        (pods dismissed, users told, keys given) stays known.
        """
        self._term += 1
        for session in self.sessions.all():
            self.sessions.close(session.agent)
        self._pending = None
        self._goal = None
        self._reported_lost.clear()
        self._held.clear()
        self._arbiter = self._make(self._facts)
        self._ports.wake(self.job)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(agent, message):
                self.sessions.send(agent, message)
            case Persist():
                self._pending = effect
                if not self._is_persisting:
                    self._is_persisting = True
                    self._spawn(self._persist())
            case ComputePlan():
                self._spawn(self._compute(effect, self._arbiter))
            case Dismiss(agent, reason):
                self._dismissed.add(agent)
                self._spawn(self._ports.dismiss(self.job, agent, reason))
            case Record():
                self._count(effect)
                if not (self._is_old_news and effect.reason is EventReason.CHECKPOINT_BAD):
                    self._ports.record(self.job, effect)
            case Over():
                self._ports.wake(self.job)

    async def _persist(self) -> None:
        """Write the newest facts until there are no newer ones; only then they count."""
        try:
            while (wanted := self._pending) is not None:
                arbiter = self._arbiter
                try:
                    await self._ports.persist(self.job, wanted.durable, self._line)
                except (facts.JobGoneError, facts.OvertakenError):
                    raise
                except Exception as error:
                    # Whatever it was, the arbiter waits for these facts until they are written.
                    is_known = isinstance(error, facts.NotWrittenError)
                    log.warning(
                        "facts are not durable yet",
                        extra={"error": str(error)},
                        exc_info=None if is_known else error,
                    )
                    await asyncio.sleep(_RETRY_S)
                    continue
                if self._pending is wanted:
                    self._pending = None
                if arbiter is self._arbiter:
                    self.tell(Persisted(wanted.version))
        except facts.JobGoneError:
            log.debug("a deleted job needs no facts", extra={"job": self.job.name})
        except facts.OvertakenError as error:
            log.warning("another leader has written", extra={"error": str(error)})
            self.is_overtaken = True
            self._ports.wake(self.job)
        finally:
            self._is_persisting = False

    async def _compute(self, order: ComputePlan, arbiter: Arbiter) -> None:
        """Tell the arbiter each result as soon as it is there."""
        async for result in self._results(order.request):
            if arbiter is not self._arbiter:
                return
            self.tell(Planned(order.id, result))

    async def _results(self, request: PlanRequest) -> AsyncIterator[PlanResult]:
        try:
            results = self._ports.plan(request)
            while (result := await asyncio.to_thread(_next, results)) is not None:
                yield result
        except Exception as error:
            # A defect of the planner ends this job with a reason, not the operator.
            log.exception("the planner failed", extra={"job": self.job.name})
            yield PlannerFault(f"{type(error).__name__}: {error}")

    def _count(self, record: Record) -> None:
        """Losses are members that went away by no one's wish: each once, however often told, and
        only when it has gone, since a notice is repeated to every operator."""
        agent = next(iter(record.agents), None)
        drained = self._goal.drained if self._goal is not None else frozenset()
        is_noticed = agent in self._departing or agent in drained
        is_loss = record.reason is EventReason.AGENT_LOST or (
            record.reason is EventReason.AGENT_LEFT and is_noticed
        )
        if not is_loss or agent is None or agent in self._counted:
            return
        self._counted.add(agent)
        self.losses = Losses(self.losses.total + 1, self.losses.noticed + is_noticed)

    def _follow(self, status: ArbiterStatus) -> None:
        self._told = training.follow(self._told, status, self._arbiter.durable)

    def _notice_change(self) -> None:
        status = self._arbiter.status()
        self._follow(status)
        mark = training.mark(status)
        if mark != self._mark:
            self._mark = mark
            self._ports.wake(self.job)
        elif status.progress.committed != self._told_commit:
            self._told_commit = status.progress.committed
            self._ports.wake_later(self.job)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all tasks and streams."""
        for session in self.sessions.all():
            self.sessions.close(session.agent)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _next(results: Iterator[PlanResult]) -> PlanResult | None:
    with collector.paused():
        return next(results, None)


def _is_routine(event: Event) -> bool:
    """What comes many times a second and changes nothing that a user sees, but for its effects."""
    if isinstance(event, Received):
        return isinstance(event.message, Heartbeat)
    return isinstance(event, Tick)


class Jobs:
    """All actors, by the job's UID."""

    def __init__(self, *, term: int, ports: Ports) -> None:
        self._term, self._ports = term, ports
        self._actors: dict[str, JobActor] = {}

    def find(self, uid: str) -> JobActor | None:
        """The actor of a job that we lead."""
        return self._actors.get(uid)

    def lead(
        self, job: JobView, spec: JobSpec, durable: Durable, told: training.LastReported
    ) -> JobActor:
        """The job's actor, made if there is none yet."""
        actor = self._actors.get(job.uid)
        if actor is None:
            actor = JobActor(job, spec, durable, term=self._term, ports=self._ports, told=told)
            self._actors[job.uid] = actor
            log.info("leading a job", extra={"job": job.name, "uid": job.uid})
        return actor

    async def forget(self, uids: Iterable[str]) -> None:
        """These jobs are gone or have ended."""
        for uid in list(uids):
            actor = self._actors.pop(uid, None)
            if actor is not None:
                await actor.close()

    def all(self) -> list[JobActor]:
        """Every actor."""
        return list(self._actors.values())

    async def tick_for_ever(self, period_s: float = 0.25) -> None:
        """Give every arbiter a sense of time."""
        while True:
            await asyncio.sleep(period_s)
            for actor in self.all():
                actor.tick()

    async def close(self) -> None:
        """End all actors."""
        await self.forget(list(self._actors))
