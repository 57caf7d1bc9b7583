"""When the operator has read everything that has come."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from bamboo_operator.process import event_loop
from bamboo_operator.process.event_loop import LoopHearing

TURNS = 50


def test_a_loop_that_has_work_has_not_read_everything() -> None:
    hearing = LoopHearing()

    async def work() -> list[float]:
        await asyncio.sleep(0.001)  # the loop waits
        seen = [hearing.at(time.monotonic())]
        for _ in range(TURNS):
            await asyncio.sleep(0)  # it does not
            seen.append(hearing.at(time.monotonic()))
        await asyncio.sleep(2 * event_loop.LONG_S)  # enough even if the machine is busy
        return [*seen, hearing.at(time.monotonic())]

    first, *busy, last = event_loop.run(work(), hearing)
    assert set(busy) == {first}
    assert last > first


def test_what_is_ready_when_the_loop_could_wait_had_come_before() -> None:
    hearing = LoopHearing()
    selector = event_loop.HearingSelector(hearing)
    here, there = socket.socketpair()
    with here, there:
        selector.register(here, event_loop.selectors.EVENT_READ)
        hearing.caught_up(began := time.monotonic())
        there.send(b"a word")
        assert len(selector.select(1.0)) == 1
        assert hearing.at(began) == began
        here.recv(6)
        assert selector.select(0.001) == []
        assert hearing.at(began) > began


def test_a_loop_without_work_reads_as_soon_as_something_comes() -> None:
    hearing = LoopHearing()

    async def work() -> bytes:
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            loop = asyncio.get_running_loop()
            loop.call_later(0.01, there.send, b"a word")
            async with asyncio.timeout(10):
                return await loop.sock_recv(here, 6)

    before = time.monotonic()
    assert event_loop.run(work(), hearing) == b"a word"
    assert hearing.at(before) > before


def waits(hearing: LoopHearing, *, from_s: float, to_s: float, idle: float) -> None:
    """Every 0.1 s the loop has nothing to do for a share of that time."""
    for tick in range(round((to_s - from_s) / 0.1)):
        began = from_s + 0.1 * tick
        hearing.waited(began, began + 0.1 * idle)


@pytest.mark.parametrize("idle", [0.0, event_loop.SPARE / 2])
def test_a_loop_that_hardly_ever_waits_may_be_behind_when_it_does(idle: float) -> None:
    """Seen with 512 agents on two slow cores: messages waited for seconds in gRPC, whose threads
    got no processor, while the loop had now and then a millisecond without work."""
    hearing = LoopHearing()
    waits(hearing, from_s=0, to_s=5, idle=0.5)
    waits(hearing, from_s=5, to_s=8, idle=idle)
    assert hearing.at(8) < 5 + 2 * event_loop.WINDOW_S
    waits(hearing, from_s=8, to_s=11, idle=2 * event_loop.SPARE)
    assert hearing.at(11) > 10.8


def test_a_long_wait_shows_that_nothing_is_left() -> None:
    """Else a pause would count for as long as it takes to see that the loop has time again."""
    hearing = LoopHearing()
    hearing.waited(0, 0.2)
    hearing.waited(5, 5 + 0.9 * event_loop.LONG_S)
    assert hearing.at(5.2) == 0.2
    hearing.waited(6, 6 + 1.1 * event_loop.LONG_S)
    assert hearing.at(6.2) > 6


def test_the_time_without_work_is_counted() -> None:
    hearing = LoopHearing()

    async def work() -> tuple[float, float]:
        began = time.thread_time()
        while time.thread_time() < began + 0.05:  # noqa: ASYNC110 - the loop must not wait
            await asyncio.sleep(0)
        busy = hearing.idle_s
        await asyncio.sleep(0.05)
        return busy, hearing.idle_s

    busy, after = event_loop.run(work(), hearing)
    assert busy < 0.01
    assert after - busy > 0.04


def test_to_wait_for_a_processor_is_not_to_have_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    hearing = LoopHearing()
    selector = event_loop.HearingSelector(hearing)
    times = iter((10.0, 11.5))
    monkeypatch.setattr(event_loop.time, "monotonic", lambda: next(times))
    assert selector.select(0.02) == []
    assert hearing.idle_s == pytest.approx(0.02)
