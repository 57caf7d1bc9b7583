"""What one connection may take of the operator, and how long it may take to say something."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from bamboo_core.protocol.messages import Welcome
from bamboo_operator.agents import refused_tokens, servicer
from bamboo_operator.agents.refused_tokens import OF_POD, Sender
from bamboo_operator.kube import api
from bamboo_operator.trust.authentication import UnauthenticatedError
from bamboo_wire import options

from .. import http2
from ..agent_client import NAMES, refused, token_of, until
from ..harness import Harness

SOON_MS = 300
HERE = Sender("ipv4:127.0.0.1")


@contextlib.asynccontextmanager
async def serving(
    monkeypatch: pytest.MonkeyPatch, name: str, documented: int, shorter: int
) -> AsyncIterator[Harness]:
    """With an option of gRPC lowered, so that nobody waits."""
    assert (name, documented) in options.OPERATOR_OPTIONS
    lowered = [(key, shorter if key == name else n) for key, n in options.OPERATOR_OPTIONS]
    monkeypatch.setattr(servicer, "OPERATOR_OPTIONS", lowered)
    harness = Harness()
    harness.apply()
    await harness.serve()
    harness.lead()
    try:
        yield harness
    finally:
        await harness.close()


async def never(token: str) -> Any:
    """A token review that does not end."""
    await asyncio.Event().wait()


@pytest.mark.parametrize("said", ["nothing", "a part of the handshake", "TLS", "no settings"])
async def test_a_handshake_that_takes_too_long_ends(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    option = "grpc.server_handshake_timeout_ms"
    async with serving(monkeypatch, option, 10_000, SOON_MS) as harness:
        is_encrypted = said in ("TLS", "no settings")
        slow = await http2.connect(harness.port, encrypts=is_encrypted)
        if said == "a part of the handshake":
            slow.writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        elif said == "no settings":
            slow.writer.write(http2.PREFACE)
        assert is_encrypted == (b"before handshake timeout" in await slow.closed())


async def test_a_connection_without_a_stream_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(monkeypatch, "grpc.max_connection_idle_ms", 30_000, SOON_MS) as harness:
        idle = await http2.connect(harness.port)
        idle.begin()
        assert await idle.closed() == b"connection idle"


@pytest.mark.parametrize("obeys", [True, False])
async def test_a_connection_has_so_many_streams(
    monkeypatch: pytest.MonkeyPatch, *, obeys: bool
) -> None:
    """Also if the client has never said that it knows the server's settings."""
    async with serving(monkeypatch, "grpc.max_concurrent_streams", 8, 8) as harness:
        monkeypatch.setattr(harness.service, "_authenticate", never)
        greedy = await http2.connect(harness.port)
        greedy.begin()
        await greedy.hear_of(http2.SETTINGS)
        if obeys:
            greedy.writer.write(http2.frame(http2.SETTINGS, http2.ACK, 0))
        numbers = range(1, 2 * 10, 2)
        greedy.writer.write(b"".join(http2.headers(number) for number in numbers))
        ended = {(await greedy.hear_of(http2.RESET)).stream for _ in range(2)}
        assert ended == set(numbers[8:])
        await until(lambda: harness.service.streams == 8)
        greedy.writer.transport.abort()
        await until(lambda: harness.service.streams == 0)


async def test_a_stream_without_a_hello_ends(
    served: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "_HELLO_S", 0.05)
    served.lead()
    silent = served.agent(NAMES[0], token=served.add_pod(NAMES[0]))
    expected = (grpc.StatusCode.DEADLINE_EXCEEDED, "no Hello came in time")
    assert await refused(silent) == expected
    assert served.refused == ["DEADLINE_EXCEEDED"]


async def test_a_hello_that_comes_byte_by_byte_is_too_slow(
    served: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "_HELLO_S", 0.05)
    served.lead()
    slow = await http2.connect(served.port)
    slow.begin()
    slow.writer.write(http2.headers(1, served.add_pod(NAMES[0])))
    of_hundred_bytes = b"\x00\x00\x00\x00\x64" + b"\x0a"
    slow.writer.write(http2.frame(http2.DATA, 0, 1, of_hundred_bytes))
    await until(lambda: served.refused == ["DEADLINE_EXCEEDED"])
    slow.writer.transport.abort()
    await until(lambda: served.service.streams == 0)


def waiting(address: int, ended: list[grpc.StatusCode]) -> Any:
    """The context that gRPC gives for a stream with a token."""

    async def abort(code: grpc.StatusCode, text: str) -> None:
        ended.append(code)

    return SimpleNamespace(
        peer=lambda: f"ipv4:10.0.0.{address}:1",
        invocation_metadata=lambda: (("authorization", "Bearer token"),),
        abort=abort,
    )


@pytest.mark.parametrize(("addresses", "at_once"), [(1, 8), (6, 32)])
async def test_so_many_tokens_are_reviewed_at_a_time(
    harness: Harness, addresses: int, at_once: int
) -> None:
    """Each review is a request to the API server."""
    under_way, most, go_on = 0, 0, asyncio.Event()
    ended: list[grpc.StatusCode] = []

    async def review(token: str) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await go_on.wait()
        under_way -= 1
        raise UnauthenticatedError("no agent")

    service = servicer.AgentService(harness.jobs, review)
    streams = [
        asyncio.create_task(service.session(None, waiting(number % addresses, ended)))  # type: ignore[arg-type]
        for number in range(48)
    ]
    await until(lambda: len(service._waiting) == 48)
    assert under_way == at_once
    go_on.set()
    await asyncio.gather(*streams)
    assert most == at_once
    assert ended == [grpc.StatusCode.UNAUTHENTICATED] * 48


async def test_a_flood_of_tokens_is_no_flood_of_reviews(
    served: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused stream waits first; an agent behind the same address gets in all the same."""
    monkeypatch.setattr(refused_tokens, "PAUSE_S", 0.125)
    served.lead()
    more = 5
    for number in range(int(refused_tokens.OF_ADDRESS.burst)):
        served.service._tokens.note(HERE, f"token-{number}", "made up")
    served.kube.requests.clear()
    codes = [
        (await refused(served.agent("x", token=token_of(f"x-{number}"))))[0]
        for number in range(more)
    ]
    assert grpc.StatusCode.UNAVAILABLE in codes
    assert served.pauses == [0.125] * codes.count(grpc.StatusCode.UNAVAILABLE)
    reviews = served.kube.requests.count(("create", api.token_reviews()))
    assert reviews == codes.count(grpc.StatusCode.UNAUTHENTICATED)
    token = served.add_pod(NAMES[0])
    served.usage.put(served.kube.objects[api.pod("ns", NAMES[0])])
    agent = served.agent(NAMES[0], token=token)
    await agent.hello()
    assert isinstance(await agent.hear(), Welcome)
    await agent.close()


async def test_forged_tokens_from_elsewhere_do_not_lock_a_pod_out(served: Harness) -> None:
    """They name its UID, which is no secret. From its own address a few are reviewed."""
    served.lead()
    token = served.add_pod(NAMES[0])
    served.usage.put(served.kube.objects[api.pod("ns", NAMES[0])])
    uid = f"uid-{NAMES[0]}"
    for number in range(1000):
        served.service._tokens.note(Sender("ipv4:10.0.0.1", uid), f"forged-{number}", "made up")
    agent = served.agent(NAMES[0], token=token)
    await agent.hello()
    assert isinstance(await agent.hear(), Welcome)
    await agent.close()
    for number in range(2 * int(OF_POD.burst)):
        served.service._tokens.note(HERE._replace(pod=uid), f"forged-{number}", "made up")
    code, text = await refused(served.agent(NAMES[0], token=token_of(NAMES[0], 1.0)))
    assert (code, "too many tokens" in text) == (grpc.StatusCode.UNAVAILABLE, True)


async def test_a_refused_token_is_not_reviewed_again(served: Harness) -> None:
    served.lead()
    served.kube.requests.clear()
    for _ in range(3):
        code, text = await refused(served.agent("x", token=token_of("x")))
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert "the token is not valid" in text
    assert served.kube.requests.count(("create", api.token_reviews())) == 1


async def test_only_so_many_wait_to_be_refused(
    served: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused_tokens, "MOST_HELD_UP", 0)
    for number in range(2 * int(refused_tokens.OF_ADDRESS.burst)):
        served.service._tokens.note(HERE, f"token-{number}", "made up")
    code, text = await refused(served.agent("x", token=token_of("x")))
    assert (code, "too many tokens" in text) == (grpc.StatusCode.UNAVAILABLE, True)
    assert served.pauses == []
