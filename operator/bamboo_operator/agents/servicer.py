"""The gRPC service for agents. Each agent has one stream, authenticated and bound to its pod.

It serves any number of jobs. An agent's messages reach only the actor of its own job. What a peer
can make us hold and do is bounded: see :mod:`bamboo_operator.agents.stream_limits`,
:mod:`bamboo_operator.agents.throttling` and :mod:`bamboo_wire.limits`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import grpc
import grpc.aio

from bamboo_core.api import texts
from bamboo_core.protocol.admission import newest_term
from bamboo_core.protocol.messages import AgentMessage, Hello
from bamboo_operator.agents import refused_tokens, stream_limits
from bamboo_operator.agents.refused_tokens import RefusedTokens, Sender
from bamboo_operator.agents.throttling import Payer, Throttling
from bamboo_operator.arbiters import sessions
from bamboo_operator.arbiters.job_actor import JobActor
from bamboo_operator.arbiters.led_jobs import Jobs
from bamboo_operator.kube.api import ApiError
from bamboo_operator.trust.authentication import Peer, UnauthenticatedError, claimed_pod
from bamboo_operator.trust.tls import ServerIdentity
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_wire import encode, limits
from bamboo_wire.errors import WireError
from bamboo_wire.options import OPERATOR_OPTIONS

log = logging.getLogger(__name__)

T = TypeVar("T")
Authenticate = Callable[[str], Awaitable[Peer]]

_HELLO_S = 10.0
_MOST_NODE_BYTES, _MOST_ZONE_BYTES, _MOST_MACHINE_BYTES = 253, 63, 320
"""As in the status, which the API server would refuse with longer ones."""
_REVIEWS_AT_ONCE = 32
_IDENTIFY_S = 60.0
_LOG_EVERY_S = 1.0
_METHOD = pb.DESCRIPTOR.services_by_name["AgentService"].methods_by_name["Session"]


class RefusedError(Exception):
    """The stream ends with this status and text."""

    def __init__(self, code: grpc.StatusCode, text: str, *, waits: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.waits = waits  # who asks again at once is told later


class AgentService:
    """Implements bamboo.v1.AgentService. on_refused: called with the status of each refusal.
    is_pod: whether an operator has made a pod with this UID."""

    def __init__(
        self,
        jobs: Jobs,
        authenticate: Authenticate,
        *,
        clock: Callable[[], float] = time.time,
        on_refused: Callable[[str], None] = lambda code: None,
        throttling: Throttling | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        is_pod: Callable[[str], bool] = lambda uid: False,
    ) -> None:
        self._jobs, self._authenticate, self._clock = jobs, authenticate, clock
        self._reviews = asyncio.Semaphore(_REVIEWS_AT_ONCE)
        self._waiting, self._of_pods = stream_limits.Waiting(), stream_limits.Streams()
        self._throttling, self._sleep = throttling or Throttling(), sleep
        self._on_refused, self._is_pod = on_refused, is_pod
        self._tokens, self._held_up = RefusedTokens(), 0
        self._refused, self._logged_at = 0, 0.0
        self.is_draining = False
        self.streams = 0

    async def session(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """One agent's stream."""
        self.streams += 1
        try:
            await self._serve(requests, context)
        except RefusedError as refusal:
            self._note(refusal)
            if refusal.waits and self._held_up < refused_tokens.MOST_HELD_UP:
                self._held_up += 1
                try:
                    await self._sleep(refused_tokens.PAUSE_S)
                finally:
                    self._held_up -= 1
            await context.abort(refusal.code, refusal.text)
        finally:
            self.streams -= 1

    def _note(self, refusal: RefusedError) -> None:
        """Count it. A flood must not fill the log."""
        self._refused += 1
        self._on_refused(refusal.code.name)
        now = time.monotonic()
        if now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            extra = {"error": refusal.text, "code": refusal.code.name, "so_far": self._refused}
            log.warning("a stream was refused", extra=extra)

    async def _serve(self, requests: AsyncIterator[bytes], context: Any) -> None:
        if self.is_draining:
            raise RefusedError(
                grpc.StatusCode.UNAVAILABLE, "the operator is shutting down; try again soon"
            )
        try:
            address = context.peer().rpartition(":")[0]
            with self._waiting.one(address) as place:
                identified = self._identify(_token(context), address, place.turns)
                peer = await _until(place.must_end, identified, stream_limits.FullError())
        except stream_limits.FullError as error:
            raise RefusedError(grpc.StatusCode.UNAVAILABLE, str(error)) from error
        with self._throttling.stream(peer.pod_uid, peer.job_uid) as payer:
            async with self._of_pods.one(peer.pod_uid) as must_end:
                text = "newer streams of the pod have replaced this one"
                replaced = RefusedError(grpc.StatusCode.ABORTED, text)
                await _until(must_end, self._attend(requests, context, peer, payer), replaced)

    async def _attend(
        self, requests: AsyncIterator[bytes], context: Any, peer: Peer, payer: Payer
    ) -> None:
        """A stream of a pod that we have made."""
        self._leader_of(peer)
        await self._rest(payer)
        # An agent waits for this before it sends anything.
        await _whole(context.send_initial_metadata(()))
        hello = await self._hello(requests, peer, payer)
        actor = self._leader_of(peer)  # the actor may have been replaced before the Hello came
        _check_term(hello, actor)
        with payer.paying():
            session = actor.connect(hello)
        try:
            await self._converse(requests, context, actor, session, peer, payer)
        finally:
            actor.disconnect(session)

    def _leader_of(self, peer: Peer) -> JobActor:
        actor = self._jobs.find(peer.job_uid)
        if actor is None or not peer.belongs_to(actor.job):
            raise RefusedError(
                grpc.StatusCode.UNAVAILABLE, "no operator leads the job yet; try again soon"
            )
        return actor

    async def _identify(self, token: str, address: str, turns: asyncio.Semaphore) -> Peer:
        try:
            async with asyncio.timeout(_IDENTIFY_S), turns, self._reviews:
                return await self._review(token, address)
        except TimeoutError as error:
            text = "the API server does not review tokens in time; try again soon"
            raise RefusedError(grpc.StatusCode.UNAVAILABLE, text) from error
        except UnauthenticatedError as error:
            raise RefusedError(grpc.StatusCode.UNAUTHENTICATED, str(error)) from error
        except ApiError as error:
            text = f"the API server cannot review tokens: {error}"
            raise RefusedError(grpc.StatusCode.UNAVAILABLE, text) from error

    async def _review(self, token: str, address: str) -> Peer:
        if why := self._tokens.why(token):
            raise UnauthenticatedError(why)
        claimed = claimed_pod(token)
        sender = Sender(address, claimed if self._is_pod(claimed) else "")
        if self._tokens.is_over(sender):
            text = "too many tokens from this address were refused; try again soon"
            raise RefusedError(grpc.StatusCode.UNAVAILABLE, text, waits=True)
        try:
            return await self._authenticate(token)
        except UnauthenticatedError as error:
            self._tokens.note(sender, token, str(error))
            raise

    async def _rest(self, payer: Payer) -> None:
        """Read a peer more slowly that has used up more than its share: flow control stops it."""
        if pause_s := payer.pause_s():
            await self._sleep(pause_s)

    async def _hello(self, requests: AsyncIterator[bytes], peer: Peer, payer: Payer) -> Hello:
        try:
            async with asyncio.timeout(_HELLO_S):
                message = await _first(await anext(requests), payer)
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
            node=peer.node or texts.cut(message.node, _MOST_NODE_BYTES),
            zone=peer.zone or texts.cut(message.zone, _MOST_ZONE_BYTES),
            machine=peer.machine or texts.cut(message.machine, _MOST_MACHINE_BYTES),
        )

    async def _converse(
        self,
        requests: AsyncIterator[bytes],
        context: Any,
        actor: JobActor,
        session: sessions.Session,
        peer: Peer,
        payer: Payer,
    ) -> None:
        reader = asyncio.create_task(self._read(requests, actor, session, payer))
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

    async def _read(
        self,
        requests: AsyncIterator[bytes],
        actor: JobActor,
        session: sessions.Session,
        payer: Payer,
    ) -> None:
        async for request in requests:
            with actor.reading():
                message = await _decoded(request, payer)
            if isinstance(message, Hello):
                raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, "Hello was already sent")
            _check_term(message, actor)
            with payer.paying():
                actor.receive(session, message)
            await self._rest(payer)


async def _until(must_end: asyncio.Event, work: Coroutine[Any, Any, T], ended: Exception) -> T:
    """The work's result. ``ended`` if the event comes first."""
    serving, ending = asyncio.create_task(work), asyncio.create_task(must_end.wait())
    try:
        await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            raise ended
        return serving.result()
    finally:
        serving.cancel()
        ending.cancel()
        await asyncio.gather(serving, ending, return_exceptions=True)


async def _whole(sending: Coroutine[Any, Any, None]) -> None:
    """A cancellation waits for its end: gRPC cannot refuse a stream whose metadata is half sent."""
    task = asyncio.create_task(sending)
    try:
        await asyncio.shield(task)
    finally:
        await asyncio.gather(task, return_exceptions=True)


def _check_term(message: AgentMessage, actor: JobActor) -> None:
    """Only the Lease deposes us, so whoever follows a later leader has come to the wrong one."""
    if (term := newest_term(message)) > actor.term:
        text = f"the message is of term {term}; this operator leads the job in term {actor.term}"
        raise RefusedError(grpc.StatusCode.FAILED_PRECONDITION, text)


async def _write(context: Any, session: sessions.Session) -> None:
    while (message := await session.outgoing.get()) is not None:
        data = message if isinstance(message, bytes) else encode.operator_bytes(message)
        await context.write(data)
        session.outgoing.task_done()


async def _first(request: bytes, payer: Payer) -> AgentMessage:
    """A session's first message. Only a Hello is parsed, which is short."""
    try:
        kind = limits.kind_of(request)
    except WireError as error:
        raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
    if kind != "hello":
        text = f"the first message must be a Hello, not {kind}"
        raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, text)
    return await _decoded(request, payer)


async def _decoded(request: bytes, payer: Payer) -> AgentMessage:
    try:
        return await payer.parsed(request)
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
    # It gets bytes, whose number is checked before they are parsed, and sends bytes.
    session = grpc.stream_stream_rpc_method_handler(service.session)
    of_service = grpc.method_handlers_generic_handler(
        _METHOD.containing_service.full_name, {_METHOD.name: session}
    )
    server.add_generic_rpc_handlers((of_service,))
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
