"""The gRPC service for agents. Each agent has one stream, authenticated and bound to its pod.

It serves any number of jobs. An agent's messages reach only the actor of its own job.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio

from bamboo_core.protocol.messages import AgentMessage, Hello
from bamboo_operator import sessions
from bamboo_operator.api import ApiError
from bamboo_operator.auth import Peer, UnauthenticatedError
from bamboo_operator.jobs import JobActor, Jobs
from bamboo_operator.tls import ServerIdentity
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_proto.v1 import agent_pb2_grpc
from bamboo_wire import decode, encode
from bamboo_wire.errors import WireError
from bamboo_wire.options import OPERATOR_OPTIONS

log = logging.getLogger(__name__)

Authenticate = Callable[[str], Awaitable[Peer]]

_HELLO_S = 10.0
_REVIEWS_AT_ONCE = 32


class RefusedError(Exception):
    """The stream ends with this status and text."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class AgentService(agent_pb2_grpc.AgentServiceServicer):  # type: ignore[misc]
    """Implements bamboo.v1.AgentService."""

    def __init__(
        self, jobs: Jobs, authenticate: Authenticate, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._jobs, self._authenticate, self._clock = jobs, authenticate, clock
        self._reviews = asyncio.Semaphore(_REVIEWS_AT_ONCE)
        self.is_draining = False
        self.streams = 0

    async def Session(self, requests: AsyncIterator[Any], context: Any) -> None:  # noqa: N802 - gRPC's name
        """One agent's stream."""
        self.streams += 1
        try:
            await self._serve(requests, context)
        except RefusedError as refusal:
            await context.abort(refusal.code, refusal.text)
        finally:
            self.streams -= 1

    async def _serve(self, requests: AsyncIterator[Any], context: Any) -> None:
        if self.is_draining:
            raise RefusedError(
                grpc.StatusCode.UNAVAILABLE, "the operator is shutting down; try again soon"
            )
        peer = await self._identify(context)
        self._leader_of(peer)
        # An agent waits for this before it sends anything.
        await context.send_initial_metadata(())
        hello = await self._hello(requests, peer)
        actor = self._leader_of(peer)  # the actor may have been replaced before the Hello came
        session = actor.connect(hello)
        try:
            await self._converse(requests, context, actor, session, peer)
        finally:
            actor.disconnect(session)

    def _leader_of(self, peer: Peer) -> JobActor:
        actor = self._jobs.find(peer.job_uid)
        if actor is None:
            raise RefusedError(
                grpc.StatusCode.UNAVAILABLE, "no operator leads the job yet; try again soon"
            )
        return actor

    async def _identify(self, context: Any) -> Peer:
        try:
            async with self._reviews:
                return await self._authenticate(_token(context))
        except UnauthenticatedError as error:
            log.warning("an agent was refused", extra={"error": str(error)})
            raise RefusedError(grpc.StatusCode.UNAUTHENTICATED, str(error)) from error
        except ApiError as error:
            text = f"the API server cannot review tokens: {error}"
            raise RefusedError(grpc.StatusCode.UNAVAILABLE, text) from error

    async def _hello(self, requests: AsyncIterator[Any], peer: Peer) -> Hello:
        try:
            async with asyncio.timeout(_HELLO_S):
                message = _decoded(await anext(requests))
        except (TimeoutError, StopAsyncIteration) as error:
            raise RefusedError(
                grpc.StatusCode.DEADLINE_EXCEEDED, "no Hello came in time"
            ) from error
        if not isinstance(message, Hello):
            text = f"the first message must be Hello, not {type(message).__name__}"
            raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, text)
        if message.agent != peer.pod or message.pod_uid != peer.pod_uid:
            text = f"the token belongs to pod {peer.pod}, not to {message.agent}"
            raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, text)
        # The API server decides where it runs, whatever the agent reports.
        return replace(
            message,
            node=peer.node or message.node,
            zone=peer.zone or message.zone,
            machine=peer.machine or message.machine,
        )

    async def _converse(
        self,
        requests: AsyncIterator[Any],
        context: Any,
        actor: JobActor,
        session: sessions.Session,
        peer: Peer,
    ) -> None:
        reader = asyncio.create_task(_read(requests, actor, session))
        writer = asyncio.create_task(_write(context, session))
        try:
            left_s = max(0.0, peer.expires_at - self._clock())
            await asyncio.wait(
                {reader, writer}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            for task in (reader, writer):
                if task.done():
                    task.result()
        finally:
            reader.cancel()
            writer.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)


async def _read(requests: AsyncIterator[Any], actor: JobActor, session: sessions.Session) -> None:
    async for request in requests:
        message = _decoded(request)
        if isinstance(message, Hello):
            raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, "Hello was already sent")
        actor.receive(session, message)


async def _write(context: Any, session: sessions.Session) -> None:
    while (message := await session.outgoing.get()) is not None:
        await context.write(encode.operator_message(message))


def _decoded(request: pb.AgentMessage) -> AgentMessage:
    try:
        return decode.agent_message(request)
    except WireError as error:
        raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error


def _token(context: Any) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and str(value).startswith("Bearer "):
            return str(value).removeprefix("Bearer ")
    return ""


def make_server(
    service: AgentService, identity: Callable[[], ServerIdentity], listen: str
) -> tuple[Any, int]:
    """A server, not started yet, and its port. Port 0 in ``listen`` means any free one.

    identity: asked at each handshake. OSError if the address is taken.
    """
    server = grpc.aio.server(options=OPERATOR_OPTIONS)
    agent_pb2_grpc.add_AgentServiceServicer_to_server(service, server)
    credentials = _credentials(identity)
    try:
        port = server.add_secure_port(listen, credentials)
    except RuntimeError as error:
        raise OSError(f"cannot serve agents on {listen}: {error}") from error
    return server, port


def _credentials(identity: Callable[[], ServerIdentity]) -> Any:
    """gRPC keeps the configuration that it has if the answer is None."""

    def configuration(given: ServerIdentity) -> Any:
        return grpc.ssl_server_certificate_configuration([(given.key, given.chain)])

    known = [identity()]

    def newer() -> Any:
        found = identity()
        if found == known[0]:
            return None
        known[0] = found
        return configuration(found)

    return grpc.dynamic_ssl_server_credentials(configuration(known[0]), newer)
