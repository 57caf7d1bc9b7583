"""The operator of one job without Kubernetes: a real arbiter behind a real gRPC server."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio

from bamboo_agent.local.certificates import Authority
from bamboo_core.arbiter.arbiter import Arbiter
from bamboo_core.arbiter_state import durable
from bamboo_core.arbiter_state.durable import Durable
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
)
from bamboo_core.job import orders
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import AgentMessage, Hello, OperatorMessage
from bamboo_proto.v1 import agent_pb2_grpc
from bamboo_wire import decode, encode
from bamboo_wire.options import OPERATOR_OPTIONS

JOB_UID = "local"
"""Of a job on this machine. It names the folder of its checkpoints."""
_TICK_S = 0.05


class LocalOperator(agent_pb2_grpc.AgentServiceServicer):  # type: ignore[misc]
    """One leader at a time; :meth:`start` begins another one from the durable facts.

    ``over``: how the job has ended. ``facts``: JSON text, as the status would hold them. The
    methods under "what others may change" do little here; the simulator puts faults there.
    """

    def __init__(
        self, job: ArbiterJob, authority: Authority, *, dismiss: Callable[[AgentId, str], None]
    ) -> None:
        """dismiss: end an agent's process; called with the reason."""
        self.job = job
        self.address = ""
        self.over: Over | None = None
        self.goal = DesiredState(job.spec.pipelines.count)
        self.arbiter: Arbiter | None = None
        self.facts = "{}"
        self._ended: dict[AgentId, str] = {}
        self._dismiss = dismiss
        self._pair = authority.issue("127.0.0.1")
        self._streams: dict[AgentId, asyncio.Queue[OperatorMessage | None]] = {}
        self._server: grpc.aio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """A new leader, at the same address as the one before."""
        known = durable.from_json(json.loads(self.facts))
        self.arbiter = Arbiter(self.job, known, known.term + 1)
        self._server = grpc.aio.server(options=OPERATOR_OPTIONS)
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self, self._server)
        credentials = grpc.ssl_server_credentials([(self._pair.key, self._pair.certificate)])
        port = self._server.add_secure_port(self.address or "127.0.0.1:0", credentials)
        self.address = f"127.0.0.1:{port}"
        await self._server.start()
        self.handle(self.goal)
        for agent, evidence in self._ended.items():
            self.handle(Lost(agent, confirmed=True, evidence=evidence))
        self._run(self._tick())

    async def stop(self) -> None:
        """Stop without closing sessions in order."""
        self.arbiter = None
        for task in self._tasks:
            task.cancel()
        if self._server is not None:
            await self._server.stop(grace=None)
        self._streams.clear()

    def _run(self, work: Any) -> None:
        """Run a coroutine in the background until :meth:`stop`."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tick(self) -> None:
        while True:
            self.handle(Tick())
            await asyncio.sleep(_TICK_S)

    def handle(self, event: Event) -> None:
        """Pass an event to the arbiter and perform the effects."""
        if isinstance(event, DesiredState):
            self.goal = event
        if self.arbiter is not None:
            for effect in self.arbiter.handle(event, time.monotonic()):
                self._perform(effect)

    def lost(self, agent: AgentId, evidence: str) -> None:
        """Report the end of an agent, to every leader from now on."""
        self._ended[agent] = evidence
        self.change_goal(expected=self.goal.expected - {agent})
        self.handle(Lost(agent, confirmed=True, evidence=evidence))

    def expect(self, agents: Iterable[AgentId]) -> None:
        """These agents are starting, so the first plan waits for them."""
        self.change_goal(expected=self.goal.expected.union(agents))

    def change_goal(self, **changed: Any) -> None:
        """Change the desired state."""
        self.handle(replace(self.goal, **changed))

    # ------------------------------------------------------------ what others may change

    def _persist(self, known: Durable, version: int) -> None:
        """Keep the facts. The answer comes after all effects of this event."""
        self.facts = json.dumps(durable.to_json(known))
        asyncio.get_running_loop().call_soon(self.handle, Persisted(version))

    def _record(self, record: Record) -> None:
        """The arbiter has recorded an event."""

    def _heard(self, agent: AgentId, message: AgentMessage) -> AgentMessage:
        """A message has come; returns what the arbiter gets."""
        return message

    def _said(self, message: OperatorMessage) -> OperatorMessage:
        """The arbiter sends a message; returns what the agent gets."""
        return message

    async def _admit(self, agent: AgentId, context: Any) -> None:
        """A session begins. It may be aborted by ``context``."""

    async def _pass(self, agent: AgentId) -> None:
        """A message is about to pass, in either direction."""

    # ------------------------------------------------------------ effects

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Persist(known, version):
                self._persist(known, version)
            case Send(agent, message):
                if agent in self._streams:
                    self._streams[agent].put_nowait(self._said(message))
            case ComputePlan():
                self._run(self._plan(effect))
            case Dismiss(agent, reason):
                self._dismiss(agent, reason)
            case Record():
                self._record(effect)
            case Over():
                self.over = effect

    async def _plan(self, asked: ComputePlan) -> None:
        arbiter = self.arbiter
        answers = orders.answers(asked)
        while (answer := await asyncio.to_thread(next, answers, None)) is not None:
            if self.arbiter is not arbiter:
                return
            self.handle(answer)

    # ------------------------------------------------------------ sessions

    async def Session(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """One agent's stream."""
        hello = decode.agent_message(await anext(requests))
        assert isinstance(hello, Hello)
        await self._admit(hello.agent, context)
        await self._pass(hello.agent)
        outgoing: asyncio.Queue[OperatorMessage | None] = asyncio.Queue()
        self._streams[hello.agent] = outgoing
        self._heard(hello.agent, hello)
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
            self.handle(Received(agent, self._heard(agent, message)))
        outgoing.put_nowait(None)
