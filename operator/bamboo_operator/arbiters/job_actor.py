"""The shell around each led job: performs in asyncio what the core's Leadership decides.

Events are handled at once, without waiting. Slow work (writing facts, planning, deleting pods) runs
in tasks that come back as events.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from bamboo_core.api import limits
from bamboo_core.api.events import EventReason, Severity
from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import (
    ComputePlan,
    Connected,
    Disconnected,
    Dismiss,
    Paced,
    Persist,
    Planned,
    Received,
    Record,
    Send,
    Tick,
)
from bamboo_core.controller.view import ClusterView, JobView, TrainingView
from bamboo_core.job import orders
from bamboo_core.job.durable_writer import RETRY_S, DurableWriter
from bamboo_core.job.leadership import Action, Input, Leadership, Observed, Restarted, Wake
from bamboo_core.job.training_view import LastReported
from bamboo_core.model.ids import AgentId
from bamboo_core.planning import planner
from bamboo_core.planning.requests import Decision, PlannerFault, PlanResult
from bamboo_core.protocol.messages import (
    AgentMessage,
    Directive,
    Hello,
    OperatorMessage,
    Reconnect,
    Stop,
)
from bamboo_operator.arbiters.ports import Ports
from bamboo_operator.arbiters.sessions import Session, Sessions
from bamboo_operator.process import gc_pause, planner_first
from bamboo_operator.status import durable_facts
from bamboo_wire import encode

log = logging.getLogger(__name__)

_RETRY_S = RETRY_S

LARGE = limits.MOST_TASKS // 8
"""Tasks of a step. Larger ones are planned one at a time, so that memory lasts for all jobs."""

LARGE_JOB = 100
"""Agents. A reconcile of a larger job waits until they have their programs: it reads all pods,
which takes a third of a millisecond for each, and they would wait as much longer."""

STANDSTILL_S = 3.0
"""For so long after a STOP, at most: what the cluster shows must not be missed."""

_LEAVE_S = 1.0
"""For facts and directives to leave before the planner goes on; a stream may be stuck."""


class JobActor:
    """One job under our leadership."""

    def __init__(
        self,
        job: JobView,
        spec: JobSpec,
        durable: Durable,
        *,
        term: int,
        ports: Ports,
        reported: LastReported = LastReported(),  # noqa: B008 - frozen
    ) -> None:
        self.job = job
        self.sessions = Sessions()
        self.is_overtaken = False  # another leader has written; replace this actor
        self._leadership = Leadership(
            job, spec, durable, term=term, timing=ports.timing, reported=reported
        )
        self._leader_facts = durable_facts.LeaderFacts(durable)
        self._stored = durable  # the newest facts that are known to be durable
        self._ports = ports
        self._heartbeat_s = ports.timing.heartbeat_s
        self._keys: dict[AgentId, bytes] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._unread: list[float] = []  # since when each message is being parsed
        self._writer = DurableWriter()
        self._writing: asyncio.Task[None] | None = None
        self._encoded: dict[int, tuple[OperatorMessage, bytes]] = {}  # directives, by their ids
        self._may_encode = False  # none of the newest plan has left yet
        self._computing: ComputePlan | None = None  # the newest request to the planner
        self._stopped_at: float | None = None  # the first STOP since agents had their programs
        self._is_awaited = False  # by a reconcile

    @property
    def term(self) -> int:
        """Our leadership of the job. Agents that follow a later one are not heard."""
        return self._leadership.term

    # ------------------------------------------------------------ events

    def connect(self, hello: Hello) -> Session:
        """An agent's stream has begun."""
        session = self.sessions.open(hello.agent)
        key = self._keys.setdefault(hello.agent, os.urandom(16))
        self.tell(Connected(hello, key))
        return session

    def receive(self, session: Session, message: AgentMessage) -> None:
        """A message has come on a stream. The last ones of a replaced stream count, too."""
        self.tell(Received(session.agent, message))

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A message has come and is being parsed. Until then nobody's silence counts."""
        since = asyncio.get_running_loop().time()
        self._unread.append(since)
        try:
            yield
        finally:
            self._unread.remove(since)

    def _heard_at(self, now: float) -> float:
        return min([self._ports.heard_at(now), *self._unread])

    def disconnect(self, session: Session) -> None:
        """A stream has ended."""
        if self.sessions.discard(session):
            self.tell(Disconnected(session.agent))

    @property
    def has_state(self) -> bool:
        """Whether agents may hold the job's state: the facts that we have read or written say so,
        whatever somebody else has made of them since."""
        return bool(self._stored.members)

    def is_outdated(self, spec: JobSpec) -> bool:
        """Whether the job must be led anew, with new agents: its spec has changed, and none holds
        any state yet. Else its arbiter takes the new spec once no agent is connected."""
        return not self.has_state and not self._leadership.is_of_template(spec)

    def steps_differ(self, spec: JobSpec) -> bool:
        """Whether the job must be led anew, since it ends at another step now."""
        return self._leadership.steps != spec.training.steps

    def must_rest(self, spec: JobSpec) -> bool:
        """Whether the job must be suspended before it goes on by this spec: agents of another
        template hold its state. The API server refuses such a change, unless its rule is older."""
        is_held = self.has_state and bool(self.sessions.all())
        return is_held and not self._leadership.is_of_template(spec)

    def observe(
        self,
        job: JobView,
        spec: JobSpec,
        view: ClusterView,
        at: float = 0.0,
        outdated: frozenset[AgentId] = frozenset(),
    ) -> None:
        """A reconcile has read the job and the cluster. at: seconds since 1970. outdated: agents
        that get no work. The first plan is written only if the job's spec is still this one."""
        self.job = job
        has_sessions = bool(self.sessions.all())
        self.tell(Observed(spec, view, has_sessions=has_sessions, at=at, outdated=outdated))

    def tick(self) -> None:
        """Time has passed."""
        self.tell(Tick())

    def keep_time(self) -> None:
        """Between two ticks. Else more than the longest pause that counts would pass unseen."""
        now = asyncio.get_running_loop().time()
        self._leadership.arbiter.keep_time(now, self._heard_at(now))

    def pace(self, heartbeat_s: float) -> bool:
        """Agents send heartbeats so often from now on. False: they do so already."""
        if heartbeat_s == self._heartbeat_s:
            return False
        self._heartbeat_s = heartbeat_s
        self.tell(Paced(self._ports.timing.at_pace(heartbeat_s)))
        return True

    def tell(self, event: Input) -> None:
        """Decide about an event and perform the result."""
        if self.is_overtaken:
            return  # the actor that replaces this one begins from the cluster and new sessions
        now = asyncio.get_running_loop().time()
        is_leading, heard_at = self._ports.is_leading(), self._heard_at(now)
        try:
            for action in self._leadership.handle(
                event, now, is_leading=is_leading, heard_at=heard_at
            ):
                self._perform(action)
        except Exception as error:
            for action in self._leadership.fail(error, now):
                self._perform(action)

    def standstill_s(self) -> float:
        """How long a reconcile has to wait at most, since many agents wait for their programs. It
        is woken as soon as they have them."""
        if self._stopped_at is None or len(self.sessions) <= LARGE_JOB:
            return 0.0
        now = asyncio.get_running_loop().time()
        left_s = max(0.0, self._stopped_at + STANDSTILL_S - now)
        self._is_awaited = self._is_awaited or left_s > 0
        return left_s

    def _go_on(self) -> None:
        """The agents have what the planner has found for them."""
        self._stopped_at = None
        if self._is_awaited:
            self._is_awaited = False
            self._ports.wake(self.job)

    def view(self) -> TrainingView:
        """The state of training, for the controller and for users."""
        return self._leadership.view()

    # ------------------------------------------------------------ effects

    def _perform(self, action: Action) -> None:
        match action:
            case Send(agent, message):
                if self._stopped_at is None and isinstance(message, Stop):
                    self._stopped_at = asyncio.get_running_loop().time()
                if isinstance(message, Directive):
                    self._may_encode = False
                self.sessions.send(agent, self._as_encoded(message))
            case Persist():
                if self._writer.put(action):
                    self._writing = self._spawn(self._persist())
            case ComputePlan():
                self._computing = action
                self._spawn(self._compute(action))
            case Dismiss(agent, reason):
                self._spawn(self._ports.dismiss(self.job, agent, reason))
            case Record():
                self._ports.record(self.job, action)
            case Wake(is_urgent):
                wake = self._ports.wake if is_urgent else self._ports.wake_later
                wake(self.job)
            case Restarted(cause):
                self._restarted(cause)

    def _restarted(self, cause: Exception | str) -> None:
        error = cause if isinstance(cause, Exception) else None
        level = logging.ERROR if error is not None else logging.WARNING
        extra = {"job": self.job.name, "uid": self.job.uid, "cause": str(cause)}
        log.log(level, "the arbiter starts again", exc_info=error, extra=extra)
        self._writer.drop()
        self._computing = None
        self._close_sessions()

    def send_away(self, after_s: float) -> None:
        """We are leaving. Ask agents to connect to the next leader."""
        for session in self.sessions.all():
            session.send(Reconnect(after_s))

    async def _persist(self) -> None:
        """Write what the writer wants until all is written."""
        try:
            while (wanted := self._writer.next()) is not None:
                try:
                    await self._ports.persist(self.job, wanted, self._leader_facts)
                except (durable_facts.JobGoneError, durable_facts.OvertakenError):
                    raise
                except Exception as error:
                    # Retry after any error: the arbiter waits until these facts are written.
                    is_known = isinstance(error, durable_facts.NotWrittenError)
                    log.warning(
                        "facts are not durable yet",
                        extra={"error": str(error)},
                        exc_info=None if is_known else error,
                    )
                    await asyncio.sleep(_RETRY_S)
                    continue
                had_state, self._stored = self.has_state, wanted
                if self.has_state and not had_state:
                    self._ports.wake(self.job)  # the job is said to run from now on
                done = self._writer.written()
                if done is not None:
                    self.tell(done)
        except durable_facts.JobGoneError:
            log.debug("the job is deleted; its facts are dropped", extra={"job": self.job.name})
        except durable_facts.OvertakenError as error:
            log.warning("another leader has written", extra={"error": str(error)})
            lost = Record(Severity.WARNING, EventReason.LEADERSHIP_LOST, str(error))
            self._ports.record(self.job, lost)
            self.is_overtaken = True
            self._ports.wake(self.job)
        finally:
            self._writer.end()

    async def _compute(self, order: ComputePlan) -> None:
        """Pass on each result as soon as it is ready, until a later event overtakes the order.

        What follows from a result leaves before the next one is computed. Else the planner's thread
        would take half of the time of those who encode directives: one thread of Python runs.
        """

        def is_wanted() -> bool:
            """Also called by the planner, in its thread."""
            is_newest_stop = order.request.fence == self._leadership.arbiter.fence
            return order is self._computing and is_newest_stop

        evals = limits.evals(order.request.spec, order.request.validation_samples)
        tasks = limits.tasks(order.request.spec, evals)
        if why := self._ports.held.plan(self.job, tasks):
            self.tell(Planned(order.id, PlannerFault(why, is_defect=False)))
            return
        # The pause lasts until agents have their directives: the first collection after it is long.
        async with self._ports.large_plans if tasks > LARGE else nullcontext():
            if not is_wanted():
                return
            await self._answer(order, is_wanted)

    async def _answer(self, order: ComputePlan, is_wanted: planner.IsWanted) -> None:
        with gc_pause.paused():
            async for answer in self._answers(order, is_wanted):
                if not is_wanted():
                    return
                name = type(answer.result).__name__
                log.info("the planner has answered", extra={"job": self.job.name, "result": name})
                # To free hundreds of programs takes a while: agents must not wait for that.
                replaced = self._leadership.arbiter.state.in_force
                self._may_encode = isinstance(answer.result, Decision)
                try:
                    self.tell(answer)
                    await self._encode(answer.result, is_wanted)
                    await self._leave()
                finally:
                    self._encoded.clear()
                del replaced
                if is_wanted():
                    self._go_on()

    async def _encode(self, result: PlanResult, is_wanted: planner.IsWanted) -> None:
        """Encode directives until the first one leaves, which takes as long as to write facts."""
        for directive in result.directives.values() if isinstance(result, Decision) else ():
            if not (self._may_encode and is_wanted()):
                return
            try:
                self._encoded[id(directive)] = directive, encode.operator_bytes(directive)
            except Exception:  # it ends the stream of that agent alone, which encodes it again
                log.exception("a directive cannot be encoded", extra={"job": self.job.name})
                return
            await asyncio.sleep(0)  # the facts may be written by now

    def _as_encoded(self, message: OperatorMessage) -> OperatorMessage | bytes:
        found = self._encoded.pop(id(message), None)
        return found[1] if found is not None and found[0] is message else message

    async def _leave(self) -> None:
        """Wait until facts and messages are written, but not for long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                if self._writing is not None:
                    await asyncio.wait({self._writing})
                await self.sessions.written()

    async def _answers(
        self, order: ComputePlan, is_wanted: planner.IsWanted
    ) -> AsyncIterator[Planned]:
        try:
            answers = orders.answers(order, is_wanted, plan=self._ports.plan)
            with planner_first.going():  # agents stand still until the first answer
                answer = await asyncio.to_thread(next, answers, None)
            while answer is not None:
                yield answer
                answer = await asyncio.to_thread(next, answers, None)
        except Exception as error:
            # A defect of the planner fails this job, not the operator.
            log.exception("the planner failed", extra={"job": self.job.name})
            yield Planned(order.id, PlannerFault(f"{type(error).__name__}: {error}"))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _close_sessions(self) -> None:
        for session in self.sessions.all():
            self.sessions.close(session.agent)

    @property
    def has_written(self) -> bool:
        """All facts are durable."""
        return not self._writer.is_busy

    async def settle(self) -> None:
        """Begin no further write, and wait for the one that is under way, but not for long: it
        cannot be called back, and whoever leads the job next begins from what it leaves."""
        self._writer.drop()
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=_LEAVE_S)

    async def close(self) -> None:
        """End all tasks and streams."""
        self._computing = None
        self._close_sessions()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
