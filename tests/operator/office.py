"""The operator's agent side in one process: real servicer, real arbiters, an API in memory.

Agents are real gRPC clients over TLS that say what the test wants.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from tests.core.controller.builders import JOB, manifest

from bamboo_core.arbiter.durable import Durable
from bamboo_core.arbiter.events import Record, Timing
from bamboo_core.controller.view import JobView
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import (
    AgentMessage,
    AgentReport,
    Fingerprint,
    Hello,
    LayerCost,
    OperatorMessage,
    Ready,
    Stop,
)
from bamboo_operator import api, auth, facts, jobs, tls
from bamboo_operator.servicer import AgentService, make_server
from bamboo_proto.v1 import agent_pb2_grpc
from bamboo_wire import decode, encode
from bamboo_wire.options import AGENT_OPTIONS

from .memory_api import MemoryApi
from .objects import node_object, pod_object

FAR = 4_000_000_000.0


def token_of(name: str, expires_at: float = FAR) -> str:
    """As the API server would issue it, but for the signature."""
    claims = base64.urlsafe_b64encode(json.dumps({"exp": expires_at, "for": name}).encode())
    return f"head.{claims.decode().rstrip('=')}.sign"


@dataclass
class Office:
    """What was recorded, woken, dismissed, and the parts themselves."""

    api: MemoryApi = field(default_factory=MemoryApi)
    records: list[Record] = field(default_factory=list)
    woken: int = 0
    woken_later: int = 0
    dismissed: list[AgentId] = field(default_factory=list)
    is_leading: bool = True
    plan: Callable[..., Any] | None = None
    now: float = 0.0

    async def open(self, timing: Timing | None = None) -> None:
        """Serve agents of JOB on a free port."""
        body = manifest() | {"metadata": {"name": JOB.name, "namespace": "ns", "uid": JOB.uid}}
        self.api.put(api.job("ns", JOB.name), body)
        changes = {} if self.plan is None else {"plan": self.plan}
        ports = jobs.Ports(
            persist=self._persist,
            dismiss=self._dismiss,
            record=lambda job, record: self.records.append(record),
            wake=self._wake,
            wake_later=self._wake_later,
            is_leading=lambda: self.is_leading,
            timing=timing if timing is not None else Timing(),
            **changes,
        )
        self.jobs = jobs.Jobs(term=3, ports=ports)
        self.service = AgentService(
            self.jobs, lambda token: auth.authenticate(self.api, token), clock=lambda: self.now
        )
        self.authority = tls.make_authority()
        identity = tls.issue(self.authority)
        self.server, self.port = make_server(self.service, identity, "127.0.0.1:0")
        await self.server.start()

    async def close(self) -> None:
        """End everything."""
        await self.jobs.close()
        await self.server.stop(None)

    async def _persist(self, job: JobView, durable: Durable, line: facts.Line) -> None:
        await facts.write(self.api, job, durable, line)

    async def _dismiss(self, job: JobView, agent: AgentId, reason: str) -> None:
        self.dismissed.append(agent)

    def _wake(self, job: JobView) -> None:
        self.woken += 1

    def _wake_later(self, job: JobView) -> None:
        self.woken_later += 1

    def add_pod(self, name: str, *, zone: str = "a", expires_at: float = FAR) -> str:
        """A pod of the job with its node; its token."""
        self.api.put(f"{api.nodes()}/node-{zone}", node_object(f"node-{zone}", zone))
        self.api.put(api.pod("ns", name), pod_object(name, node=f"node-{zone}"))
        token = token_of(name, expires_at)
        self.api.reviews[token] = review(name)
        return token

    def agent(self, name: str, *, token: str) -> Agent:
        """A client that has not said anything yet."""
        credentials = grpc.ssl_channel_credentials(self.authority.certificate)
        options = [*AGENT_OPTIONS, ("grpc.ssl_target_name_override", "bamboo-operator")]
        channel = grpc.aio.secure_channel(f"127.0.0.1:{self.port}", credentials, options=options)
        metadata = (("authorization", f"Bearer {token}"),)
        call = agent_pb2_grpc.AgentServiceStub(channel).Session(metadata=metadata)
        return Agent(AgentId(name), channel, call)


def review(name: str, **changes: Any) -> dict[str, Any]:
    """Status of a token review of a pod's token."""
    status: dict[str, Any] = {
        "authenticated": True,
        "audiences": ["bamboo-operator"],
        "user": {
            "username": "system:serviceaccount:ns:default",
            "extra": {
                "authentication.kubernetes.io/pod-name": [name],
                "authentication.kubernetes.io/pod-uid": [f"uid-{name}"],
            },
        },
    }
    return status | changes


@dataclass
class Agent:
    """One end of a stream."""

    name: AgentId
    channel: Any
    call: Any

    async def say(self, *messages: AgentMessage) -> None:
        for message in messages:
            await self.call.write(encode.agent_message(message))

    async def hear(self) -> OperatorMessage:
        message = await self.call.read()
        assert message is not grpc.aio.EOF, await self.call.code()
        return decode.operator_message(message)

    async def hello(self, **changes: Any) -> None:
        values: dict[str, Any] = {
            "agent": self.name,
            "pod_uid": f"uid-{self.name}",
            "node": "somewhere",
            "zone": "elsewhere",
            "machine": "",
            "data_address": "127.0.0.1:1",
            "liveness_address": "127.0.0.1:2",
        }
        await self.say(Hello(**(values | changes)))

    async def ready(self, layers: int = 4) -> None:
        fingerprint = Fingerprint("c", "d", "t", "cpu", 1)
        costs = (LayerCost(0.01, 0.02, 10, 10),) * layers
        await self.say(Ready(fingerprint, layers, 1000, 0, costs))

    async def report(self, stop: Stop) -> None:
        """Nothing is held."""
        await self.say(AgentReport(stop.fence, stop.fence, {}, frozenset()))

    async def end(self) -> tuple[grpc.StatusCode, str]:
        """How the operator ended the stream."""
        try:
            while await self.call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        return await self.call.code(), await self.call.details()

    async def close(self) -> None:
        self.call.cancel()
        await self.channel.close()
