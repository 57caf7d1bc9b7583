"""Agents as real gRPC clients over TLS, which send what the test wants."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

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
from bamboo_operator.trust.identity import AUDIENCE
from bamboo_wire import decode, encode

NAMES = ("job-p0-s0-i0", "job-p0-s1-i0")
FAR = 4_000_000_000.0


def token_of(name: str, expires_at: float = FAR) -> str:
    """As the API server would issue it, but for the signature."""
    pod = {"name": name, "uid": f"uid-{name}"}
    said = {"exp": expires_at, "aud": [AUDIENCE], "kubernetes.io": {"pod": pod}}
    claims = base64.urlsafe_b64encode(json.dumps(said).encode())
    return f"head.{claims.decode().rstrip('=')}.sign"


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

    async def send(self, *messages: AgentMessage) -> None:
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
        await self.send(Hello(**(values | changes)))

    async def ready(self, layers: int = 4) -> None:
        fingerprint = Fingerprint("c", "d", "t", "cpu", 1)
        costs = (LayerCost(0.01, 0.02, 10, 10),) * layers
        await self.send(Ready(fingerprint, layers, 1000, 0, costs))

    async def report(self, stop: Stop) -> None:
        """Nothing is held."""
        await self.send(AgentReport(stop.fence, stop.fence, {}, frozenset()))

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


async def until(condition: Callable[[], bool]) -> None:
    """Wait for the condition, for ten seconds at most."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for raises no event
            await asyncio.sleep(0.01)


async def refused(agent: Agent) -> tuple[grpc.StatusCode, str]:
    """The status and text with which the operator ends the agent's stream."""
    try:
        async with asyncio.timeout(10):
            return await agent.end()
    finally:
        await agent.close()
