"""The operator of one job without Kubernetes: a real arbiter behind a real gRPC server.

Durable facts are kept as the JSON text that the operator would write to the status. Its faults:

    operator.writes = Writes(delay_s=2.0)   a durable write takes that long (from the next one on)
    operator.freeze(), operator.thaw()      as SIGSTOP and SIGCONT: what comes meanwhile waits
    operator.hold("a"), operator.let_go()   nothing passes a's session, which stays open
    await operator.replace()                it dies; a new leader begins with the durable facts
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import grpc
import grpc.aio

from bamboo_core.api.spec import JobSpec, to_json
from bamboo_core.arbiter.arbiter import Arbiter
from bamboo_core.arbiter_state import durable
from bamboo_core.arbiter_state.events import (
    ArbiterJob,
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
    Received,
    Record,
    Send,
    Tick,
    Timing,
)
from bamboo_core.job import orders
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import (
    AgentMessage,
    CommitRecord,
    Directive,
    Hello,
    OperatorMessage,
    Progress,
    Ready,
)
from bamboo_proto.v1 import agent_pb2_grpc
from bamboo_sim.fleet.certificates import Authority
from bamboo_sim.fleet.injection import effects
from bamboo_sim.fleet.injection.effects import OPERATOR
from bamboo_wire import decode, encode
from bamboo_wire.options import OPERATOR_OPTIONS

TICK_S = 0.05
RETRY_S = 0.2
"""Between a failed durable write and the next attempt, in seconds."""


@dataclass(frozen=True)
class Sent:
    """A message that an agent sent."""

    at: float  # time.monotonic()
    agent: AgentId
    message: AgentMessage


@dataclass(frozen=True)
class Writes:
    """How durable writes go. lands_first: a write takes effect at its start and is confirmed at its
    end, so that a leader that dies meanwhile has written."""

    delay_s: float = 0.0
    fail: bool = False
    lands_first: bool = False


class LocalOperator(agent_pb2_grpc.AgentServiceServicer):  # type: ignore[misc]
    """One leader at a time; :meth:`start` starts another one from the durable facts."""

    def __init__(
        self,
        spec: JobSpec,
        authority: Authority,
        *,
        dismiss: Callable[[AgentId, str], None],
        timing: Timing,
        profiled: bool,
        counted: effects.Effects,
        hosts_ahead: bool = False,
    ) -> None:
        """counted: counts the effects of faults; profiled: use the agents' measured costs; if
        False, all layers cost the same, so that all runs have the same programs; hosts_ahead: tell
        agents to keep in host memory what they compute ahead, as if their devices were short."""
        self._profiled, self._hosts_ahead = profiled, hosts_ahead
        self._counted = counted
        self.job = ArbiterJob("ns/job", "job-uid", spec, to_json(spec), timing)
        self.address = ""
        self.messages: list[Sent] = []
        self.records: list[tuple[float, Record]] = []
        self.over: Over | None = None
        self.goal = DesiredState(spec.pipelines.count)
        self.arbiter: Arbiter | None = None
        self._writes = Writes()
        self._ended: dict[AgentId, str] = {}
        self._facts = "{}"
        self._has_died = False
        self._unwritten: tuple[str, int] | None = None
        self._wants_write = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._waiting: list[Event] | None = None
        self._held: set[AgentId] = set()
        self._refused: set[AgentId] = set()
        self._released = asyncio.Event()
        self._dismiss = dismiss
        self._pair = authority.issue("127.0.0.1")
        self._streams: dict[AgentId, asyncio.Queue[OperatorMessage | None]] = {}
        self._server: grpc.aio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._planning: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """A new leader, at the same address as the one before."""
        known = durable.from_json(json.loads(self._facts))
        if self._has_died:
            self._counted.count(OPERATOR, effects.Effect.REPLACED)
        self.arbiter = Arbiter(self.job, known, known.term + 1)
        self._server = grpc.aio.server(options=OPERATOR_OPTIONS)
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self, self._server)
        credentials = grpc.ssl_server_credentials([(self._pair.key, self._pair.certificate)])
        port = self._server.add_secure_port(self.address or "127.0.0.1:0", credentials)
        self.address = f"127.0.0.1:{port}"
        await self._server.start()
        self._unwritten = None
        self._writer = asyncio.create_task(self._write())
        self.handle(self.goal)
        for agent, evidence in self._ended.items():
            self.handle(Lost(agent, confirmed=True, evidence=evidence))
        self._ticker = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """Stop without closing sessions in order."""
        self._has_died = self.arbiter is not None
        self.arbiter = None
        self._waiting = None
        for task in (self._ticker, self._writer):
            if task is not None:
                task.cancel()
        if self._server is not None:
            await self._server.stop(grace=None)
        self._streams.clear()

    def handle(self, event: Event) -> None:
        """Pass an event to the arbiter and perform the effects."""
        if isinstance(event, DesiredState):
            self.goal = event
        if self._waiting is not None:
            if not isinstance(event, Tick):
                self._counted.count(OPERATOR, effects.Effect.UNHEARD)
                self._waiting.append(event)
        elif self.arbiter is not None:
            for effect in self.arbiter.handle(event, time.monotonic()):
                self._perform(effect)

    @property
    def commits(self) -> dict[int, CommitRecord]:
        """Commit record of each step in the newest attempt that has one. AssertionError if two
        agents report different bits in one attempt."""
        found: dict[int, tuple[int, CommitRecord]] = {}
        for said in self.messages:
            if isinstance(said.message, Progress):
                attempt, commit = said.message.fence.attempt, said.message.commit
                before = found.setdefault(commit.step, (attempt, commit))
                if before[0] == attempt:
                    assert repr(before[1]) == repr(commit), said
                elif before[0] < attempt:
                    found[commit.step] = attempt, commit
        return {step: commit for step, (_, commit) in found.items()}

    # ------------------------------------------------------------ faults

    @property
    def writes(self) -> Writes:
        """How durable writes go."""
        return self._writes

    @writes.setter
    def writes(self, writes: Writes) -> None:
        if writes.fail:
            self._counted.ordered("failing writes", [OPERATOR], effects.Effect.FAILED_WRITE)
        elif writes.delay_s:
            text = f"slow writes of {writes.delay_s:g} s"
            self._counted.ordered(text, [OPERATOR], effects.Effect.SLOW_WRITE)
        self._writes = writes

    async def replace(self) -> None:
        """The operator dies, and another one takes over."""
        await self.stop()
        await self.start()

    def freeze(self) -> None:
        """Stand still: time passes, and what comes waits."""
        if self._waiting is None:
            self._counted.ordered("freeze the operator", [OPERATOR], effects.Effect.UNHEARD)
            self._waiting = []

    def thaw(self) -> None:
        """Go on. The clock is read before the messages that have waited."""
        waited, self._waiting = self._waiting or [], None
        for event in (Tick(), *waited):
            self.handle(event)

    def hold(self, *agents: str) -> None:
        """Let nothing pass these agents' sessions, in both directions, new sessions included."""
        self._counted.ordered(
            f"hold the sessions of {' '.join(agents)}", agents, effects.Effect.HELD
        )
        self._held |= {AgentId(agent) for agent in agents}

    def refuse(self, *agents: str) -> None:
        """Close these agents' sessions, and refuse new ones."""
        self._counted.ordered(
            f"refuse the sessions of {' '.join(agents)}", agents, effects.Effect.REFUSED
        )
        for agent in map(AgentId, agents):
            self._refused.add(agent)
            if agent in self._streams:
                self._streams[agent].put_nowait(None)

    def admit(self, agent: str) -> None:
        """Let a refused agent open a session again."""
        self._refused.discard(AgentId(agent))

    def let_go(self) -> None:
        """Undo :meth:`hold` and :meth:`refuse`: what was held arrives now."""
        self._held.clear()
        self._refused.clear()
        self._released.set()
        self._released = asyncio.Event()

    async def _pass(self, agent: AgentId) -> None:
        if agent in self._held:
            self._counted.count(agent, effects.Effect.HELD)
        while agent in self._held:
            await self._released.wait()

    async def _write(self) -> None:
        """Write the newest facts, one write at a time, until it is stopped."""
        while True:
            await self._wants_write.wait()
            self._wants_write.clear()
            while self._unwritten is not None:
                unwritten = text, version = self._unwritten
                how = self.writes
                if how.lands_first and not how.fail:
                    self._facts = text
                await asyncio.sleep(how.delay_s)
                if how.delay_s:
                    self._counted.count(OPERATOR, effects.Effect.SLOW_WRITE)
                if how.fail:
                    self._counted.count(OPERATOR, effects.Effect.FAILED_WRITE)
                    await asyncio.sleep(RETRY_S)
                    continue
                self._facts = text
                if self._unwritten is unwritten:
                    self._unwritten = None
                self.handle(Persisted(version))

    # ------------------------------------------------------------ effects

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Persist(known, version):
                self._unwritten = (json.dumps(durable.to_json(known)), version)
                self._wants_write.set()
            case Send(agent, message):
                if self._hosts_ahead and isinstance(message, Directive):
                    message = replace(message, hosts_ahead=True)
                if agent in self._streams:
                    self._streams[agent].put_nowait(message)
            case ComputePlan():
                task = asyncio.create_task(self._plan(effect))
                self._planning.add(task)
                task.add_done_callback(self._planning.discard)
            case Dismiss(agent, reason):
                self._dismiss(agent, reason)
            case Record():
                self.records.append((time.monotonic(), effect))
            case Over():
                self.over = effect

    async def _plan(self, asked: ComputePlan) -> None:
        arbiter = self.arbiter
        answers = orders.answers(asked)
        while (answer := await asyncio.to_thread(next, answers, None)) is not None:
            if self.arbiter is not arbiter:
                return
            self.handle(answer)

    async def _tick(self) -> None:
        while True:
            self.handle(Tick())
            await asyncio.sleep(TICK_S)

    # ------------------------------------------------------------ sessions

    async def Session(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """One agent's stream."""
        hello = decode.agent_message(await anext(requests))
        assert isinstance(hello, Hello)
        if hello.agent in self._refused:
            self._counted.count(hello.agent, effects.Effect.REFUSED)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this session is refused")
        await self._pass(hello.agent)
        outgoing: asyncio.Queue[OperatorMessage | None] = asyncio.Queue()
        self._streams[hello.agent] = outgoing
        self._log(hello.agent, hello)
        self.handle(Connected(hello, secrets.token_bytes(16)))
        reader = asyncio.create_task(self._read(hello.agent, requests, outgoing))
        try:
            while (message := await outgoing.get()) is not None:
                await self._pass(hello.agent)
                yield encode.operator_message(message)
        finally:
            reader.cancel()
            if self._streams.get(hello.agent) is outgoing:
                del self._streams[hello.agent]
                self.handle(Disconnected(hello.agent))

    async def _read(
        self, agent: AgentId, requests: Any, outgoing: asyncio.Queue[OperatorMessage | None]
    ) -> None:
        async for request in requests:
            message = decode.agent_message(request)
            await self._pass(agent)
            self._log(agent, message)
            if isinstance(message, Ready) and not self._profiled:
                message = replace(message, costs=())
            self.handle(Received(agent, message))
        outgoing.put_nowait(None)

    def _log(self, agent: AgentId, message: AgentMessage) -> None:
        self.messages.append(Sent(time.monotonic(), agent, message))

    def lost(self, agent: AgentId, evidence: str) -> None:
        """Report the end of a pod, to every leader from now on."""
        self._ended[agent] = evidence
        self.change_goal(expected=self.goal.expected - {agent})
        self.handle(Lost(agent, confirmed=True, evidence=evidence))

    def expect(self, agents: Iterable[AgentId]) -> None:
        """Pods of these agents exist, so a start waits for them."""
        self.change_goal(expected=self.goal.expected.union(agents))

    def change_goal(self, **changed: Any) -> None:
        """Change the desired state."""
        self.handle(replace(self.goal, **changed))
