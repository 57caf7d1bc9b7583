"""When the operator has read everything that has come."""

from __future__ import annotations

import asyncio
import socket
import time

from bamboo_core.protocol.clock import Hearing
from bamboo_operator import attention

TURNS = 50


def test_a_loop_that_has_work_has_not_read_everything() -> None:
    hearing = Hearing()

    async def work() -> list[float]:
        await asyncio.sleep(0.001)  # the loop waits
        seen = [hearing.at(time.monotonic())]
        for _ in range(TURNS):
            await asyncio.sleep(0)  # it does not
            seen.append(hearing.at(time.monotonic()))
        await asyncio.sleep(0.001)
        return [*seen, hearing.at(time.monotonic())]

    first, *busy, last = attention.run(work(), hearing)
    assert set(busy) == {first}
    assert last > first


def test_what_is_ready_when_the_loop_could_wait_had_come_before() -> None:
    hearing = Hearing()
    selector = attention.AttentiveSelector(hearing)
    here, there = socket.socketpair()
    with here, there:
        selector.register(here, attention.selectors.EVENT_READ)
        hearing.caught_up(began := time.monotonic())
        there.send(b"a word")
        assert len(selector.select(1.0)) == 1
        assert hearing.at(began) == began
        here.recv(6)
        assert selector.select(0.001) == []
        assert hearing.at(began) > began


def test_a_loop_without_work_reads_as_soon_as_something_comes() -> None:
    hearing = Hearing()

    async def work() -> bytes:
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            loop = asyncio.get_running_loop()
            loop.call_later(0.01, there.send, b"a word")
            async with asyncio.timeout(10):
                return await loop.sock_recv(here, 6)

    before = time.monotonic()
    assert attention.run(work(), hearing) == b"a word"
    assert hearing.at(before) > before
