"""The session with the operator: one stream at a time, reopened whenever it ends.

Each stream reads the token and the CA bundle again, since both rotate.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from bamboo_agent.supervisor.config import Config
from bamboo_core.protocol.messages import AgentMessage
from bamboo_core.protocol.supervisor import FromOperator, SessionClosed, SessionOpened
from bamboo_proto.v1 import agent_pb2_grpc
from bamboo_wire import decode, encode
from bamboo_wire.errors import WireError
from bamboo_wire.options import AGENT_OPTIONS

log = logging.getLogger(__name__)

CONNECT_S = 5.0
"""Deadline for connection, TLS handshake and opening the stream, in seconds."""

Sink = Callable[[SessionOpened | SessionClosed | FromOperator], None]


class Backoff:
    """Exponential backoff from ``first_s`` to ``most_s``, with jitter so that the agents of a job
    do not reconnect all at once."""

    def __init__(self, first_s: float = 0.1, most_s: float = 3.0) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def reset(self) -> None:
        self._next_s = self._first_s

    def next_s(self) -> float:
        """The next pause, in seconds."""
        pause, self._next_s = self._next_s, min(2 * self._next_s, self._most_s)
        return pause * random.uniform(0.5, 1.0)


class Session:
    """Each stream gives ``sink`` SessionOpened, then FromOperator events, then SessionClosed."""

    def __init__(self, config: Config, sink: Sink) -> None:
        self._config = config
        self._sink = sink
        self._backoff = Backoff()
        self._outgoing: asyncio.Queue[AgentMessage] | None = None
        self._closing: asyncio.Future[float] | None = None
        self._call: Any = None
        self._last_problem = ""

    @property
    def is_open(self) -> bool:
        return self._outgoing is not None

    def send(self, message: AgentMessage) -> None:
        """Queue a message for the open stream. Dropped if there is none."""
        if self._outgoing is not None:
            self._outgoing.put_nowait(message)

    def close(self, after_s: float) -> None:
        """End the stream and reconnect after ``after_s`` seconds."""
        if self._closing is not None and not self._closing.done():
            self._closing.set_result(after_s)

    async def flush(self, timeout_s: float) -> None:
        """Wait until the operator has read everything and has ended the stream, or for the timeout.

        Cancelling the stream would drop messages that the operator has not read yet.
        """
        if self._outgoing is not None:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._outgoing.join()
                    await self._call.done_writing()
                    await self._call.code()
            except TimeoutError:
                log.warning("the operator has not read all messages within %.1f s", timeout_s)

    async def run(self) -> None:
        """Keep a session open until cancelled."""
        while True:
            after_s = None
            try:
                after_s = await self._run_once()
                self._last_problem = ""
            except (OSError, grpc.aio.AioRpcError, WireError, TimeoutError) as error:
                self._log_problem(self._describe(error))
            await asyncio.sleep(self._backoff.next_s() if after_s is None else after_s)

    async def _run_once(self) -> float | None:
        """One stream. Returns the pause after it if :meth:`close` has set one."""
        credentials = grpc.ssl_channel_credentials(self._config.ca_file.read_bytes())
        metadata = (("authorization", f"Bearer {_token(self._config.token_file)}"),)
        options = list(AGENT_OPTIONS)
        if self._config.operator_name:
            options.append(("grpc.ssl_target_name_override", self._config.operator_name))  # type: ignore[arg-type]
        async with grpc.aio.secure_channel(
            _newest_address(self._config), credentials, options=options
        ) as channel:
            call = agent_pb2_grpc.AgentServiceStub(channel).Session(metadata=metadata)
            await asyncio.wait_for(call.wait_for_connection(), CONNECT_S)
            return await self._converse(call)

    async def _converse(self, call: Any) -> float | None:
        self._call = call
        self._outgoing, self._closing = asyncio.Queue(), asyncio.get_running_loop().create_future()
        self._sink(SessionOpened())
        reader = asyncio.create_task(self._read(call))
        writer = asyncio.create_task(self._write(call, self._outgoing))
        try:
            ends: set[asyncio.Future[Any]] = {reader, writer, self._closing}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if self._closing.done():
                return self._closing.result()
            for task in (reader, writer):
                if task.done():
                    await task
            return None
        finally:
            self._outgoing = None
            await _cancel(reader, writer)
            call.cancel()
            self._sink(SessionClosed())

    async def _read(self, call: Any) -> None:
        while True:
            message = await call.read()
            if message is grpc.aio.EOF:
                return await _end(call)
            self._backoff.reset()
            self._sink(FromOperator(decode.operator_message(message)))

    @staticmethod
    async def _write(call: Any, outgoing: asyncio.Queue[AgentMessage]) -> None:
        while True:
            message = await outgoing.get()
            try:
                await call.write(encode.agent_message(message))
            except asyncio.InvalidStateError:  # the stream has ended, or flush() has half-closed it
                return await _end(call)
            outgoing.task_done()

    def _log_problem(self, problem: str) -> None:
        """Log each problem once, not at every attempt."""
        if problem != self._last_problem:
            log.warning("no session with the operator: %s", problem)
        self._last_problem = problem

    def _describe(self, error: Exception) -> str:
        config = self._config
        if isinstance(error, WireError):
            return (
                f"its message is malformed ({error}); do operator and agent have the same version?"
            )
        if isinstance(error, TimeoutError):
            return f"{config.operator_address} did not answer within {CONNECT_S:g} s"
        if not isinstance(error, grpc.aio.AioRpcError):
            return str(error)
        details = error.details() or ""
        if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
            return f"it rejects the token in {config.token_file}: {details}"
        if "CERTIFICATE_VERIFY_FAILED" in details or "Hostname Verification" in details:
            return (
                f"the certificate of {config.operator_address} is not signed by"
                f" {config.ca_file} (BAMBOO_CA_FILE) or is for another host: {details}"
            )
        return f"{config.operator_address}: {error.code().name}: {details}"


def _newest_address(config: Config) -> str:
    """The operator's address. Without a Service, a file has the address of its newest pod."""
    if config.address_file is None:
        return config.operator_address
    try:
        return config.address_file.read_text(encoding="ascii").strip() or config.operator_address
    except (OSError, UnicodeError):
        return config.operator_address


def _token(path: Path) -> str:
    token = path.read_text(encoding="ascii").strip()
    if not token:
        raise OSError(f"the token file {path} is empty")
    return token


async def _end(call: Any) -> None:
    """Wait for the end of the stream. AioRpcError unless the operator has ended it in order."""
    code, none = await call.code(), grpc.aio.Metadata()
    if code is not grpc.StatusCode.OK:
        raise grpc.aio.AioRpcError(code, none, none, await call.details())


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
