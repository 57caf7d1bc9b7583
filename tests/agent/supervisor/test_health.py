"""The agent's HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import NamedTuple

import aiohttp
import pytest
from tests.agent.supervisor.conftest import Start
from tests.agent.supervisor.fake_operator import FakeOperator, until

from bamboo_agent.supervisor import health
from bamboo_agent.supervisor.health import HealthServer, Metrics
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import (
    Cause,
    CommitRecord,
    Heartbeat,
    Progress,
    Ready,
    Release,
    Suspicion,
)


class Reply(NamedTuple):
    """An HTTP response."""

    status: int
    body: str


class Served:
    def __init__(self) -> None:
        self.metrics = Metrics(job="ns/job", agent="a-0")
        self.is_ready = False
        self.port = 0

    async def get(self, path: str, method: str = "GET") -> Reply:
        url = f"http://127.0.0.1:{self.port}{path}"
        async with aiohttp.ClientSession() as http, http.request(method, url) as response:
            return Reply(response.status, await response.text())


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    found = Served()
    server = HealthServer(found.metrics, is_ready=lambda: found.is_ready)
    found.port = await server.start("127.0.0.1", 0)
    yield found
    await server.close()


async def test_alive_and_ready(served: Served) -> None:
    assert await served.get("/healthz") == Reply(200, "ok\n")
    assert (await served.get("/readyz")).status == 503
    served.is_ready = True
    assert (await served.get("/readyz?verbose")).status == 200


async def test_a_port_that_another_container_has_taken(caplog: pytest.LogCaptureFixture) -> None:
    """R25: the agent ended with OSError, and so did the job."""
    with socket.create_server(("0.0.0.0", 0)) as other:
        taken = other.getsockname()[1]
        found = Served()
        server = HealthServer(found.metrics, is_ready=lambda: True)
        found.port = await server.start("127.0.0.1", taken)
        assert found.port not in (0, taken)
        assert (await found.get("/healthz")).status == 200
        await server.close()
    (line,) = caplog.messages
    assert line.startswith(f"port {taken} of this pod is in use: health and metrics are at port")


async def test_an_agent_works_beside_a_program_at_its_port(
    operator: FakeOperator, start: Start
) -> None:
    with socket.create_server(("0.0.0.0", 0)) as other:
        taken = other.getsockname()[1]
        agent = await start(BAMBOO_HEALTH_PORT=str(taken))
        stream = await operator.stream()
        await until(lambda: bool(stream.of(Ready)))
        stream.say(Release(0, "the job is complete"))
        assert await agent.exit_code() == 0
        assert f"port {taken} of this pod is in use" in agent.log


async def test_an_address_that_is_not_local_is_an_error() -> None:
    server = HealthServer(Metrics(job="ns/job", agent="a"), is_ready=lambda: True)
    with pytest.raises(OSError, match=r"192\.0\.2\.1"):
        await server.start("192.0.2.1", 0)


async def test_metrics(served: Served) -> None:
    served.metrics.step.set(12)
    served.metrics.sent_to_operator(Progress(CommitRecord(3), Fence(), 1.0, 0.75, 1000))
    suspicion = Suspicion(AgentId("b-0"), Cause.LIVENESS_CLOSED, Fence())
    for suspicions in ((), (suspicion,), (suspicion,), (), (suspicion,)):
        served.metrics.sent_to_operator(Heartbeat(1, 0, 0, suspicions=suspicions))
    body = (await served.get("/metrics")).body
    who = 'agent="a-0",job_namespace="ns",training_job="job"'
    assert f"bamboo_agent_step{{{who}}} 12.0" in body
    assert f"bamboo_agent_step_seconds{{{who}}} 1.0" in body
    assert f"bamboo_agent_compute_seconds_total{{{who}}} 0.75" in body
    assert f"bamboo_agent_sent_bytes_total{{{who}}} 1000.0" in body
    cause = 'agent="a-0",cause="LivenessClosed",job_namespace="ns",training_job="job"'
    assert f"bamboo_agent_suspicions_total{{{cause}}} 2.0" in body


async def test_what_is_not_there(served: Served) -> None:
    assert (await served.get("/secrets")).status == 404
    assert (await served.get("/healthz", method="POST")).status == 405


async def test_nonsense_and_silence_do_no_harm(served: Served) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"\xff\xff\r\n\r\n")
    writer.close()
    _, silent = await asyncio.open_connection("127.0.0.1", served.port)
    assert (await served.get("/healthz")).status == 200
    silent.close()


async def test_a_line_without_an_end_costs_its_connection_only(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"G" * (1 << 17))
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()
    assert (await served.get("/healthz")).status == 200


async def test_the_oldest_connection_ends_so_that_a_probe_gets_through(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_MOST", 2)
    monkeypatch.setattr(health, "_READ_S", 60.0)
    idle = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(2)]
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionResetError):
            assert await idle[0][0].read() == b""
        writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
    for _, other in [*idle, (reader, writer)]:
        other.close()
