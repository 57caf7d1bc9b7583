"""Fake agents: the agents' side of the session, without workers.

They hold a stream each, over TLS, with the token of their pod. They answer every STOP with a report
that is consistent within their job, take directives without running them, commit a step of their
job every few seconds, and send heartbeats as often as the operator asks.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import (
    AgentMessage,
    AgentReport,
    Cause,
    CommitRecord,
    Fingerprint,
    Heartbeat,
    Hello,
    LayerCost,
    Progress,
    Ready,
    Suspicion,
)
from bamboo_operator.trust.identity import SERVER_NAME
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_sim.scale.kubelets import RunningPod
from bamboo_wire import encode
from bamboo_wire.options import AGENT_OPTIONS

LAYERS = 8
CONNECT_S = 5.0
_METHOD = "/bamboo.v1.AgentService/Session"
_COST = LayerCost(0.01, 0.02, 1000, 1000, 0.01, 0.01, can_split=True)
_READY = Ready(Fingerprint("code", "data", "torch", "cuda"), LAYERS, 1 << 30, 0, (_COST,) * LAYERS)
_AT_ONCE = 64
"""Agents of a process that are between their first byte and the operator's answer. All come from
one address, of which the operator lets 256 wait."""


@dataclass(frozen=True)
class Operator:
    """Where it serves agents. bundle: its authority, in PEM."""

    port: int
    bundle: bytes


@dataclass
class Training:
    """A job as its agents know it together. Times are of the monotonic clock."""

    agents: dict[AgentId, FakeAgent] = field(default_factory=dict)
    fence: Fence = Fence()
    target: int = 0
    committed: int = -1
    lost_at: float = 0.0

    @property
    def is_running(self) -> bool:
        """Whether every agent has the programs of the newest plan."""
        agents = self.agents.values()
        return self.fence != Fence() and all(agent.installed == self.fence for agent in agents)

    def follow(self, fence: Fence) -> None:
        """An agent is told of a plan. Nothing of an older attempt counts in a new one."""
        if fence.attempt > self.fence.attempt:
            self.committed = -1
        self.fence = max(self.fence, fence)

    def commit(self, step_s: float) -> None:
        """The step has ended, and every agent says so."""
        if not self.is_running:
            return
        self.committed = max(self.committed + 1, self.target)
        done = Progress(CommitRecord(self.committed), self.fence, step_s, 0.9 * step_s, 1 << 20)
        for agent in self.agents.values():
            agent.held = dict.fromkeys(agent.wanted, self.committed + 1)
            agent.send(done)


class _ReleasedError(Exception):
    """The operator has let the agent go; its process ends."""


class FakeAgent:
    """One agent. Its stream is opened again when it ends, until ``leave``."""

    def __init__(self, pod: RunningPod, training: Training, gate: asyncio.Semaphore) -> None:
        self.name = AgentId(pod.name)
        self.fence = self.installed = Fence()
        self.wanted: list[int] = []
        self.held: dict[int, int] = {}
        self.welcomed_at = self.stopped_at = self.directed_at = 0.0
        self.sessions = self.beats = 0
        self.heartbeat_s = 0.2
        self.last_error = ""
        self._pod, self._training, self._gate = pod, training, gate
        self._out: asyncio.Queue[AgentMessage] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        """Whether the operator has answered its Hello in this stream."""
        return self._out is not None and self.welcomed_at > 0

    def begin(self, operator: Operator) -> None:
        """Connect, and stay connected."""
        self._task = asyncio.create_task(self._run(operator))

    async def leave(self) -> None:
        """The machine is gone."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def send(self, message: AgentMessage) -> None:
        """Queue a message; dropped without a stream."""
        if self._out is not None:
            self._out.put_nowait(message)

    async def _run(self, operator: Operator) -> None:
        credentials = grpc.ssl_channel_credentials(operator.bundle)
        options = [*AGENT_OPTIONS, ("grpc.ssl_target_name_override", SERVER_NAME)]
        pause_s = 0.1
        while True:
            address = f"127.0.0.1:{operator.port}"
            try:
                async with grpc.aio.secure_channel(address, credentials, options) as channel:
                    await self._converse(channel)
            except _ReleasedError:
                self._training.agents.pop(self.name, None)
                return
            except (grpc.aio.AioRpcError, TimeoutError, OSError) as error:
                self.last_error = str(error)
                if getattr(error, "code", lambda: None)() is grpc.StatusCode.UNAUTHENTICATED:
                    self._training.agents.pop(self.name, None)  # its pod is gone
                    return
            pause_s = 0.1 if self.welcomed_at else min(3.0, 2 * pause_s)
            self.welcomed_at = 0.0
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))

    async def _converse(self, channel: Any) -> None:
        metadata = (("authorization", f"Bearer {self._pod.token}"),)
        out: asyncio.Queue[AgentMessage] = asyncio.Queue()
        tasks: list[asyncio.Task[None]] = []
        call = None
        try:
            async with self._gate:
                call = channel.stream_stream(_METHOD)(metadata=metadata)  # its first byte
                await asyncio.wait_for(call.wait_for_connection(), CONNECT_S)
                out.put_nowait(self._hello())
                tasks.append(asyncio.create_task(_write(call, out)))
                first = await asyncio.wait_for(call.read(), 2 * CONNECT_S)
            self._out, self.sessions = out, self.sessions + 1
            self._hear(first, time.monotonic())
            tasks.append(asyncio.create_task(self._beat()))
            while (message := await call.read()) is not grpc.aio.EOF:
                self._hear(message, time.monotonic())
        finally:
            self._out = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if call is not None:
                call.cancel()

    def _hello(self) -> Hello:
        pod, number = self._pod, hash(self.name) & 0xFFFF
        has_state = bool(self.held)
        place = f"10.0.{number >> 8}.{number & 255}"
        return Hello(
            self.name, pod.uid, pod.node, pod.zone, "", f"{place}:7000", f"{place}:7001",
            self.fence, has_state,
        )  # fmt: skip

    def _hear(self, raw: Any, now: float) -> None:
        if raw is grpc.aio.EOF:
            return
        message = pb.OperatorMessage.FromString(raw)
        match message.WhichOneof("body"):
            case "welcome":
                self.heartbeat_s = message.welcome.heartbeat_ms / 1000
                self.welcomed_at = self.welcomed_at or now
                self.send(_READY)
            case "stop":
                self._stop(_fence(message.stop.fence), now)
            case "directive":
                self._direct(message.directive, now)
            case "release":
                raise _ReleasedError
            case _:
                pass

    def _stop(self, fence: Fence, now: float) -> None:
        if fence < self.fence:
            return
        if fence > self.fence:
            self.stopped_at = now
        if fence.attempt > self.fence.attempt:
            self.held.clear()
        self.fence = fence
        self._training.follow(fence)
        step = self._training.committed
        commits = (CommitRecord(step),) if step >= 0 else ()
        report = AgentReport(fence, self.installed, dict(self.held), frozenset(), commits, step)
        self.send(report)

    def _direct(self, directive: Any, now: float) -> None:
        if _fence(directive.fence) != self.fence or self.installed == self.fence:
            return
        self.installed, self.directed_at = self.fence, now
        self._training.target = directive.target
        self.wanted = [x for r in directive.wanted for x in range(r.lo, r.hi)]

    def suspect(self, agent: AgentId) -> None:
        """The connection to that agent is closed: said at once."""
        found = Suspicion(agent, Cause.LIVENESS_CLOSED, self.fence)
        self.send(self._heartbeat((found,)))

    def _heartbeat(self, suspicions: tuple[Suspicion, ...] = ()) -> Heartbeat:
        self.beats += 1
        step = self._training.committed + 1
        return Heartbeat(self.beats, step, self.beats, self.fence, None, suspicions)

    async def _beat(self) -> None:
        await asyncio.sleep(random.uniform(0, self.heartbeat_s))
        while True:
            self.send(self._heartbeat())
            await asyncio.sleep(self.heartbeat_s)


async def _write(call: Any, out: asyncio.Queue[AgentMessage]) -> None:
    try:
        while True:
            message = await out.get()
            await call.write(encode.agent_message(message).SerializeToString())
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return  # the reader learns why


def _fence(found: Any) -> Fence:
    return Fence(found.attempt, found.term, found.epoch)


class Fleet:
    """The agents of many jobs, in one process."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.jobs: dict[str, Training] = {}
        self._gate = asyncio.Semaphore(_AT_ONCE)

    @property
    def agents(self) -> list[FakeAgent]:
        """All."""
        return [agent for job in self.jobs.values() for agent in job.agents.values()]

    def add(self, pods: list[RunningPod], operator: Operator) -> None:
        """Agents in these pods connect."""
        for pod in pods:
            training = self.jobs.setdefault(pod.job, Training())
            agent = FakeAgent(pod, training, self._gate)
            training.agents[agent.name] = agent
            agent.begin(operator)

    async def commit_for_ever(self) -> None:
        """Every job commits a step every ``step_s`` seconds, the jobs one after another."""
        while True:
            began = time.monotonic()
            for index, training in enumerate(list(self.jobs.values())):
                due = began + self.step_s * index / len(self.jobs)
                if due > (now := time.monotonic()):
                    await asyncio.sleep(due - now)
                training.commit(self.step_s)
            await asyncio.sleep(max(0.01, began + self.step_s - time.monotonic()))

    async def lose(self, job: str, index: int) -> float:
        """One agent's machine is gone, and two others say so. Returns that instant."""
        training = self.jobs[job]
        names = sorted(training.agents)
        victim = names[index % len(names)]
        gone = training.agents.pop(victim)
        await gone.leave()
        now = time.monotonic()
        for step in (-1, 1):
            training.agents[names[(index + step) % len(names)]].suspect(victim)
        return now

    def state(self) -> dict[str, Any]:
        """The state of the agents, and counts of what has happened so far."""
        agents, jobs = self.agents, self.jobs.values()
        return {
            "agents": len(agents),
            "connected": sum(agent.is_connected for agent in agents),
            "directed": sum(agent.installed != Fence() for agent in agents),
            "running_jobs": sum(job.is_running for job in jobs),
            "committed": sum(job.committed + 1 for job in jobs),
            "beats": sum(agent.beats for agent in agents),
            "sessions": sum(agent.sessions for agent in agents),
            "heartbeat_s": max((agent.heartbeat_s for agent in agents), default=0.0),
            "welcomed_at": sorted(a.welcomed_at for a in agents if a.is_connected),
            "stopped_at": sorted(agent.stopped_at for agent in agents),
            "directed_at": sorted(agent.directed_at for agent in agents),
            "error": next((a.last_error for a in agents if not a.is_connected), ""),
        }
