"""Streams that end while the supervisor writes into them. The session runs in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.agent.supervisor.fake_operator import FakeOperator, until

from bamboo_agent.supervisor import config
from bamboo_agent.supervisor.session import Session
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Heartbeat, Hello
from bamboo_core.protocol.supervisor import FromOperator, SessionClosed, SessionOpened

Event = SessionOpened | SessionClosed | FromOperator
ROUNDS = 3
BEAT = Heartbeat(sequence=1, step=0, progress_word=7)
HELLO = Hello(AgentId("job-0-0"), "pod-uid", "node-a", "zone-a", "node/boot", "h:1", "h:2")


@asynccontextmanager
async def session(
    environment: dict[str, str], act: Callable[[Session, Event], None]
) -> AsyncIterator[tuple[Session, asyncio.Task[None]]]:
    """A session that calls ``act`` for each event, and its task."""
    one = Session(config.from_env(environment), lambda event: act(one, event))
    task = asyncio.create_task(one.run())
    try:
        yield one, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def say_hello(one: Session, event: Event) -> None:
    if isinstance(event, SessionOpened):
        one.send(HELLO)


def say_hello_and_one_too_late(one: Session, event: Event) -> None:
    """The writer has a message when gRPC knows that the stream is over and the reader does not."""
    say_hello(one, event)
    if isinstance(event, SessionOpened):
        one._call.add_done_callback(lambda _: one.send(BEAT))


async def test_a_stream_that_ends_under_the_writer_is_opened_again(
    operator: FakeOperator, environment: dict[str, str]
) -> None:
    """gRPC refuses to write into a stream that it knows to be over, with an error of its own."""
    async with session(environment, say_hello_and_one_too_late) as (_, task):
        for number in range(ROUNDS):
            (await operator.stream(number)).end()
        await operator.stream(ROUNDS)
        assert not task.done()


async def test_a_message_after_the_last_one_does_not_end_the_supervisor(
    operator: FakeOperator, environment: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """``flush`` half-closes the stream; a heartbeat may come before the operator has ended it."""
    async with session(environment, say_hello) as (one, task):
        stream = await operator.stream()
        half_closed, end = asyncio.Event(), stream.end
        stream.end = half_closed.set  # type: ignore[method-assign]
        flushed = asyncio.create_task(one.flush(20.0))
        await half_closed.wait()
        one.send(BEAT)
        await until(lambda: one._outgoing is None or one._outgoing.empty())
        end()
        await flushed
        assert not task.done()
    assert "has not read all" not in caplog.text
