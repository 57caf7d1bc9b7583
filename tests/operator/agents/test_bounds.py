"""What peers can make the operator hold and do: nobody is heard too loudly."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import threading
from contextlib import ExitStack, suppress
from typing import Any

import grpc
import pytest
from tests.core.controller.builders import JOB

from bamboo_core.model.ids import Fence
from bamboo_core.model.items import Item
from bamboo_core.protocol.messages import AgentMessage, AgentReport, Heartbeat, Welcome
from bamboo_operator.agents import servicer, stream_limits, throttling
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_wire import decode, options
from bamboo_wire.options import AGENT_OPTIONS

from .. import harness as harness_of_tests
from ..agent_client import NAMES, refused, until
from ..harness import Harness


async def test_a_large_hello_is_refused_unread(served: Harness) -> None:
    served.lead()
    agent = served.agent(NAMES[0], token=served.add_pod(NAMES[0]))
    await agent.hello(node="x" * (9 << 10))
    code, text = await refused(agent)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text.startswith("hello: has 9")
    assert text.endswith("bytes; at most 8192 are allowed")


async def test_no_message_may_be_longer_than_the_longest_report(
    served: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator does not trust the agent to keep the limit."""
    kept = [option for option in AGENT_OPTIONS if "max_send" not in option[0]]
    monkeypatch.setattr(harness_of_tests, "AGENT_OPTIONS", kept)
    served.lead()
    agent = served.agent(NAMES[0], token=served.add_pod(NAMES[0]))
    big = pb.AgentMessage(hello=pb.Hello(node="x" * (5 << 20)))
    with suppress(grpc.aio.AioRpcError):
        await agent.call.write(big)
    assert (await refused(agent))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_there_is_room_for_so_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes memory before its peer has said who it is."""
    most = ("grpc.max_allowed_incoming_connections", options.MOST_CONNECTIONS)
    assert most in options.OPERATOR_OPTIONS
    for_one = [(most[0], 1) if option == most else option for option in options.OPERATOR_OPTIONS]
    monkeypatch.setattr(servicer, "OPERATOR_OPTIONS", for_one)
    harness = Harness()
    await harness.serve()
    harness.lead()
    first = await asyncio.open_connection("127.0.0.1", harness.port)
    second = await asyncio.open_connection("127.0.0.1", harness.port)
    async with asyncio.timeout(30):
        with suppress(ConnectionError):
            assert await second[0].read() == b""
    for _, writer in (first, second):
        writer.transport.abort()
    token, welcome = harness.add_pod(NAMES[0]), None
    async with asyncio.timeout(30):
        while welcome is None:  # the server has not noticed the end yet
            agent = harness.agent(NAMES[0], token=token)
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await agent.hello()
                welcome = await agent.hear()
            await agent.close()
    assert isinstance(welcome, Welcome)
    await harness.close()


async def test_a_pod_has_two_streams_at_most(served: Harness) -> None:
    """The newest wins, even if it has not said Hello yet."""
    served.lead()
    token = served.add_pod(NAMES[0])
    agents = []
    for _ in range(4):
        agents.append(served.agent(NAMES[0], token=token))
        async with asyncio.timeout(60):
            await agents[-1].call.initial_metadata()
    for old in agents[:2]:
        assert (await refused(old))[0] is grpc.StatusCode.ABORTED
    assert served.service._of_pods.count(f"uid-{NAMES[0]}") == stream_limits.STREAMS_OF_A_POD
    await agents[3].hello()
    assert isinstance(await agents[3].hear(), Welcome)
    for agent in agents[2:]:
        await agent.close()
    await until(lambda: served.service._of_pods.count(f"uid-{NAMES[0]}") == 0)


async def test_a_flood_of_messages_is_read_slowly(
    served: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttling, "MESSAGE_S", throttling.OF_POD.burst / 20)
    monkeypatch.setattr(throttling, "OF_POD", throttling.OF_POD._replace(rate=1e-9))
    actor = served.lead()
    heard: list[object] = []
    monkeypatch.setattr(actor, "receive", lambda session, message: heard.append(message))
    agent = served.agent(NAMES[0], token=served.add_pod(NAMES[0]))
    await agent.hello()
    await agent.hear()
    for number in range(40):
        await agent.send(Heartbeat(number, 0, 0))
    await until(lambda: served.pauses != [])
    assert 15 < len(heard) < 40
    await agent.close()


async def test_a_new_stream_pays_for_the_old_one(served: Harness) -> None:
    """Else a pod that connects again and again could keep the operator busy for ever."""
    served.lead()
    token = served.add_pod(NAMES[0])
    for is_first in (True, False):
        agent = served.agent(NAMES[0], token=token)
        if is_first:
            await agent.hello()
            assert isinstance(await agent.hear(), Welcome)
            assert served.pauses == []
            with served.service._throttling.stream(f"uid-{NAMES[0]}", JOB.uid) as payer:
                payer.take(100.0)
        else:
            await until(lambda: served.pauses != [])
            assert served.pauses[0] > 100.0
        await agent.close()


@pytest.mark.parametrize("size", [100, 100_000])
async def test_a_long_message_is_parsed_in_a_thread(
    served: Harness, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The longest take most of a second, in which nothing else would happen."""
    parsed_in: list[threading.Thread] = []
    counts: list[float] = []
    actor = served.lead()
    agent_bytes, heard_at = decode.agent_bytes, actor._heard_at

    def noting(data: bytes) -> AgentMessage:
        parsed_in.append(threading.current_thread())
        counts.append(heard_at(math.inf))
        return agent_bytes(data)

    agent = served.agent(NAMES[0], token=served.add_pod(NAMES[0]))
    await agent.hello()
    await agent.hear()
    monkeypatch.setattr(decode, "agent_bytes", noting)
    items = frozenset(Item.out(0, 1, n) for n in range(size // 10))
    await agent.send(AgentReport(Fence(), Fence(), {}, items))
    await until(lambda: heard_at(math.inf) == math.inf and parsed_in != [])
    assert (parsed_in[0] is threading.main_thread()) == (size == 100)
    assert counts[0] < math.inf  # meanwhile nobody's silence counts
    await agent.close()


def test_what_the_messages_of_a_pod_and_a_job_may_cost() -> None:
    now = [0.0]
    known = throttling.Throttling(lambda: now[0])
    pod, job = throttling.OF_POD, throttling.OF_JOB
    with known.stream("pod-1", "job") as one:
        one.take(pod.burst - throttling.STREAM_S)
        assert one.pause_s() == 0.0
        one.take(1.0)
        assert one.pause_s() == pytest.approx(1.0 / pod.rate)
    now[0] += 1.0
    with known.stream("pod-1", "job") as again:
        assert again.pause_s() == pytest.approx((1.0 + throttling.STREAM_S) / pod.rate - 1.0)
    now[0] += 1000.0
    with known.stream("pod-1", "job") as one, known.stream("pod-2", "job") as other:
        one.take(job.burst + 1.0)
        assert other.pause_s() > 0.0  # the job pays, too
        with known.stream("pod-3", "job-2") as stranger:
            assert stranger.pause_s() == 0.0


def test_a_job_may_cost_as_much_more_as_it_has_agents() -> None:
    """After a loss a thousand agents report at once."""
    known = throttling.Throttling(lambda: 0.0)
    with ExitStack() as streams:
        payers = [streams.enter_context(known.stream(f"pod-{n}", "job")) for n in range(1000)]
        for payer in payers:
            payer.take(0.01)
        assert payers[0].pause_s() == 0.0


def test_accounts_that_owe_nothing_are_forgotten() -> None:
    now = [0.0]
    known = throttling.Throttling(lambda: now[0])
    for number in range(1000):
        with known.stream(f"pod-{number}", f"job-{number}"):
            now[0] += 1.0
    assert len(known) < 100


def test_how_many_streams_of_an_address_may_wait() -> None:
    waiting = stream_limits.Waiting()
    with ExitStack() as flood:
        for _ in range(stream_limits.MOST_OF_AN_ADDRESS):
            flood.enter_context(waiting.one("ipv4:10.0.0.1"))
        with pytest.raises(stream_limits.FullError), waiting.one("ipv4:10.0.0.1"):
            pass
        with waiting.one("ipv4:10.0.0.2"):
            assert len(waiting) == stream_limits.MOST_OF_AN_ADDRESS + 1
    assert len(waiting) == 0


def test_a_flood_from_some_addresses_keeps_no_other_out() -> None:
    """Whoever wants to fill the room makes room himself."""
    waiting = stream_limits.Waiting()
    flooders = stream_limits.MOST_WAITING // stream_limits.MOST_OF_AN_ADDRESS
    with ExitStack() as flood:
        places = [
            flood.enter_context(waiting.one(f"ipv4:10.0.0.{number}"))
            for number in range(flooders)
            for _ in range(stream_limits.MOST_OF_AN_ADDRESS)
        ]
        assert len(waiting) == stream_limits.MOST_WAITING
        honest = [flood.enter_context(waiting.one("ipv4:10.0.1.1")) for _ in range(100)]
        assert len(waiting) == stream_limits.MOST_WAITING
        ended = [place for place in places if place.must_end.is_set()]
        assert len(ended) == 100
        assert not places[0].must_end.is_set()  # it is closest to its turn
        for _ in range(500):
            with suppress(stream_limits.FullError):
                flood.enter_context(waiting.one("ipv4:10.0.0.1"))
        assert len(waiting) == stream_limits.MOST_WAITING
        assert not any(place.must_end.is_set() for place in honest)
    assert len(waiting) == 0


async def test_an_address_has_its_own_turns_for_reviews() -> None:
    waiting = stream_limits.Waiting()
    with waiting.one("a") as first, waiting.one("a") as second, waiting.one("b") as other:
        for _ in range(stream_limits.REVIEWS_OF_AN_ADDRESS):
            await first.turns.acquire()
        assert second.turns.locked()
        assert not other.turns.locked()


async def test_a_stream_that_has_to_make_room_ends(
    served: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_limits, "MOST_WAITING", 2)
    served.lead()

    async def never(token: str) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(served.service, "_authenticate", never)
    token = served.add_pod(NAMES[0])
    waits = [served.agent(NAMES[0], token=token) for _ in range(2)]
    await until(lambda: len(served.service._waiting) == 2)
    with served.service._waiting.one("ipv4:10.0.0.2"):
        ends = [asyncio.create_task(refused(agent)) for agent in waits]
        (done,), _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED, timeout=30)
        code, text = done.result()
        assert (code, "too many streams" in text) == (grpc.StatusCode.UNAVAILABLE, True)
    for end in ends:
        end.cancel()
    await asyncio.gather(*ends, return_exceptions=True)
    for agent in waits:
        await agent.close()


@pytest.mark.parametrize(
    "token",
    [
        "x",
        "a.b.c",
        "a.!.c",
        f"a.{base64.urlsafe_b64encode(b'[]').decode()}.c",
        f"a.{base64.urlsafe_b64encode(b'[' * 3000).decode()}.c",
        f"a.{base64.urlsafe_b64encode(b'{}').decode()}.c",
        f"a.{base64.urlsafe_b64encode(json.dumps({'aud': 'other'}).encode()).decode()}.c",
    ],
    ids=["no dot", "no text", "no base64", "no object", "deep", "no audience", "another audience"],
)
async def test_a_token_that_is_not_meant_for_us_is_not_reviewed(
    served: Harness, token: str
) -> None:
    code, text = await refused(served.agent(NAMES[0], token=token))
    assert (code, text) == (
        grpc.StatusCode.UNAUTHENTICATED,
        "the token is not meant for bamboo-operator",
    )
    assert served.kube.requests == []


async def test_a_stream_that_waits_for_its_turn_is_refused_when_too_many_do(
    served: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_limits, "MOST_OF_AN_ADDRESS", 0)
    served.lead()
    code, text = await refused(served.agent(NAMES[0], token=served.add_pod(NAMES[0])))
    assert (code, "too many streams" in text) == (grpc.StatusCode.UNAVAILABLE, True)


async def test_a_slow_review_is_given_up(served: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servicer, "_IDENTIFY_S", 0.05)
    served.lead()
    token = served.add_pod(NAMES[0])

    async def never(token: str) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(served.service, "_authenticate", never)
    code, text = await refused(served.agent(NAMES[0], token=token))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "in time" in text
