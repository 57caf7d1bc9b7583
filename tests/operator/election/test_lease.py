"""Leadership, on a clock of the test's."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import pytest

from bamboo_operator import config
from bamboo_operator.app import App
from bamboo_operator.election.lease import Elector, Holder, LeaseLostError, Pace
from bamboo_operator.kube import api
from bamboo_operator.kube.api import ApiError
from bamboo_operator.process.event_loop import LoopHearing

from ..memory_api import MemoryApi

PATH = api.lease("sys", "op")
PACE = Pace(lease_s=15.0, renew_s=0.001, give_up_s=10.0)


class Clock:
    """Time passes when the test wants it, and a little at every call."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def elector(kube: MemoryApi, who: str, clock: Clock, uid: str = "") -> Elector:
    holder = Holder(who, uid, process=who)
    return Elector(kube, namespace="sys", name="op", holder=holder, pace=PACE, clock=clock)


async def within(work: asyncio.Future[int] | asyncio.Task[int]) -> int:
    return await asyncio.wait_for(work, 10)


async def test_a_clean_end_lets_the_next_operator_lead_at_once() -> None:
    kube, clock = MemoryApi(), Clock()
    first, second = elector(kube, "a", clock), elector(kube, "b", clock)
    assert not first.is_leading
    assert await first.acquire() == 1
    assert first.is_leading
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await first.release()
    assert await within(waiting) == 2
    assert kube.objects[PATH]["spec"]["holderIdentity"] == "b_b"


async def test_a_dead_leader_is_replaced_after_its_lease_by_our_clock() -> None:
    kube, clock = MemoryApi(), Clock()
    await elector(kube, "a", clock).acquire()
    second = elector(kube, "b", clock)
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    clock.now += 16
    assert await within(waiting) == 2


async def test_a_container_that_is_started_again_leads_at_once() -> None:
    kube, clock = MemoryApi(), Clock()
    for term, process in enumerate(("killed", "started again"), 1):
        holder = Holder("op-1", "uid-1", process)
        again = Elector(kube, namespace="sys", name="op", holder=holder, pace=PACE, clock=clock)
        assert await again.acquire() == term
    assert kube.objects[PATH]["spec"]["holderIdentity"] == "op-1_uid-1_started again"


@pytest.mark.parametrize(
    ("holder", "found", "expected"),
    [
        (Holder("op-1", "uid-1"), "op-1_uid-1_0a1b2c3d", True),
        (Holder("op-1", "uid-1"), "op-1_uid-2_0a1b2c3d", False),  # another pod of that name
        (Holder("op-1", "uid-1"), "op-2_uid-1_0a1b2c3d", False),
        (Holder("op-1", "uid-1"), "op-1_uid-11_0a1b2c3d", False),
        (Holder("op-1", "uid-1"), "op-1_0a1b2c3d", False),
        (Holder("op-1", ""), "op-1_0a1b2c3d", False),  # no kubelet starts it
        (Holder("op-1", "uid-1"), "me", False),
    ],
)
def test_only_a_process_of_the_same_pod_has_ended(
    holder: Holder, found: str, expected: bool
) -> None:
    assert holder.has_replaced(found) is expected


async def test_a_second_process_beside_the_first_ends_before_it_looks_for_the_lease() -> None:
    """As ADR 41 counts on."""
    with socket.create_server(("127.0.0.1", 0)) as first:
        given = config.from_env({"POD_IP": "127.0.0.1", "POD_UID": "uid-1"})
        free = replace(given, health_port=first.getsockname()[1], metrics_port=0)
        kube = MemoryApi()
        with pytest.raises(OSError, match="in use"):
            await App(free, kube, LoopHearing()).run()
        assert not kube.objects


async def test_a_leader_that_renews_keeps_the_lease() -> None:
    kube, clock = MemoryApi(), Clock()
    first, second = elector(kube, "a", clock), elector(kube, "b", clock)
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    waiting = asyncio.create_task(second.acquire())
    for _ in range(20):
        clock.now += 4
        await asyncio.sleep(0.005)
    assert not waiting.done()
    assert not holding.done()
    assert first.is_leading
    assert first.term == 1
    holding.cancel()
    waiting.cancel()


async def test_a_leader_that_cannot_renew_stops_before_others_may_begin() -> None:
    kube, clock = MemoryApi(), Clock()
    first = elector(kube, "a", clock)
    await first.acquire()

    def fail(verb: str, path: str) -> None:
        clock.now += 2
        raise ApiError(503, "Unavailable", "away")

    kube.fail = fail
    with pytest.raises(LeaseLostError, match="could not be renewed"):
        await asyncio.wait_for(first.hold(), 10)
    assert clock.now < 15


async def test_a_leader_whose_lease_was_taken_stops() -> None:
    kube, clock = MemoryApi(), Clock()
    first = elector(kube, "a", clock)
    await first.acquire()
    spec = kube.objects[PATH]["spec"] | {"holderIdentity": "b_b"}
    kube.put(PATH, kube.objects[PATH] | {"spec": spec})
    with pytest.raises(LeaseLostError, match="another operator"):
        await asyncio.wait_for(first.hold(), 10)


async def test_a_renewal_whose_answer_was_lost_counts() -> None:
    kube, clock = MemoryApi(), Clock()
    first = elector(kube, "a", clock)
    await first.acquire()
    kube.put(PATH, kube.objects[PATH])
    holding = asyncio.create_task(first.hold())
    await asyncio.sleep(0.02)
    assert not holding.done()
    holding.cancel()


async def test_a_process_that_was_frozen_no_longer_leads() -> None:
    kube, clock = MemoryApi(), Clock()
    first = elector(kube, "a", clock)
    await first.acquire()
    clock.now += 11
    assert not first.is_leading


async def test_an_unreachable_api_server_is_waited_for() -> None:
    kube, clock = MemoryApi(), Clock()
    tries = 0

    def fail(verb: str, path: str) -> None:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise ApiError(0, "Unreachable", "away")

    kube.fail = fail
    assert await asyncio.wait_for(elector(kube, "a", clock).acquire(), 10) == 1
