"""An operator of a test: a real gRPC server over TLS that records what agents say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio

from bamboo_agent.local.certificates import Authority
from bamboo_core.protocol.messages import AgentMessage, Hello, OperatorMessage, Welcome
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_proto.v1 import agent_pb2_grpc
from bamboo_wire import decode, encode
from bamboo_wire.options import OPERATOR_OPTIONS

_T = TypeVar("_T")

WELCOME = Welcome(term=1, job="ns/job", job_uid="uid", spec_json="{}", lease_s=30.0)


class Stream:
    """One session as the operator sees it."""

    def __init__(self, metadata: dict[str, str]) -> None:
        self.metadata = metadata
        self.said: list[AgentMessage] = []
        self.is_closed = False
        self._outgoing: asyncio.Queue[pb.OperatorMessage | None] = asyncio.Queue()

    def say(self, message: OperatorMessage | pb.OperatorMessage) -> None:
        """Send a message."""
        if not isinstance(message, pb.OperatorMessage):
            message = encode.operator_message(message)
        self._outgoing.put_nowait(message)

    def end(self) -> None:
        """End the stream in order."""
        self._outgoing.put_nowait(None)

    def of(self, kind: type[_T]) -> list[_T]:
        """The messages of this kind so far."""
        return [message for message in self.said if isinstance(message, kind)]

    async def outgoing(self) -> AsyncIterator[pb.OperatorMessage]:
        while (message := await self._outgoing.get()) is not None:
            yield message


class FakeOperator(agent_pb2_grpc.AgentServiceServicer):  # type: ignore[misc]
    """Answers every Hello with ``welcome`` (None: never); accepts tokens by ``token``."""

    def __init__(self, authority: Authority, *, host: str = "127.0.0.1") -> None:
        self.streams: list[Stream] = []
        self.welcome: Welcome | None = WELCOME
        self.token = "token"
        self.address = ""
        self._pair = authority.issue(host)
        self._host = host
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Serve, at the same address as before if there was one."""
        self._server = grpc.aio.server(options=OPERATOR_OPTIONS)
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self, self._server)
        credentials = grpc.ssl_server_credentials([(self._pair.key, self._pair.certificate)])
        asked = self.address or f"{self._host}:0"
        port = self._server.add_secure_port(asked, credentials)
        self.address = f"{self._host}:{port}"
        await self._server.start()

    async def stop(self) -> None:
        """Vanish; streams are cut."""
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None

    async def Session(self, requests: Any, context: Any) -> AsyncIterator[pb.OperatorMessage]:  # noqa: N802
        stream = Stream({k: v for k, v in context.invocation_metadata()})
        if stream.metadata.get("authorization") != f"Bearer {self.token}":
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is not valid")
        self.streams.append(stream)
        reader = asyncio.create_task(self._read(stream, requests))
        try:
            async for message in stream.outgoing():
                yield message
        finally:
            stream.is_closed = True
            reader.cancel()

    async def _read(self, stream: Stream, requests: Any) -> None:
        async for request in requests:
            message = decode.agent_message(request)
            stream.said.append(message)
            if isinstance(message, Hello) and self.welcome is not None:
                stream.say(self.welcome)
        stream.end()  # as the operator does

    async def stream(self, number: int = 0) -> Stream:
        """The session with that number, once it has been opened and has said Hello."""
        await until(lambda: len(self.streams) > number and bool(self.streams[number].of(Hello)))
        return self.streams[number]


async def until(condition: Callable[[], bool], *, deadline_s: float = 20.0) -> None:
    """Wait for the condition; AssertionError at the deadline."""
    try:
        async with asyncio.timeout(deadline_s):
            while not condition():  # noqa: ASYNC110  the condition lies in another process
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not so within {deadline_s:g} s") from None
