"""Notices from cloud metadata servers, played by a local HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from bamboo_agent.supervisor.notices import Ec2Metadata, GoogleMetadata, NoticeSource, request
from bamboo_core.protocol.supervisor import Departing

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()


class Metadata:
    """Answers by path; ``asked`` holds (method, target, headers)."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.answers: dict[str, tuple[int, str]] = {}
        self.changed = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, target, _ = (await reader.readline()).decode().split()
        headers = {}
        while line := (await reader.readline()).decode().strip():
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        self.asked.append((method, target, headers))
        if "wait_for_change" in target:
            await self.changed.wait()
        status, body = self.answers.get(target.partition("?")[0], (404, "not found"))
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()


@pytest.fixture
async def metadata() -> AsyncIterator[Metadata]:
    found = Metadata()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield found
    found.changed.set()
    server.close()


async def first(source: NoticeSource) -> Departing:
    """The notice that the source announces."""
    heard: asyncio.Future[Departing] = asyncio.get_running_loop().create_future()
    await asyncio.wait_for(source.watch(heard.set_result), 10.0)
    return heard.result()


PREEMPTED = "/computeMetadata/v1/instance/preempted"


async def test_compute_engine_waits_at_the_server(metadata: Metadata) -> None:
    metadata.answers[PREEMPTED] = (200, "FALSE")
    watching = asyncio.create_task(first(GoogleMetadata(metadata.url)))
    while len(metadata.asked) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert not watching.done()
    metadata.answers[PREEMPTED] = (200, "TRUE")
    metadata.changed.set()
    notice = await watching
    assert notice == Departing(30, "Compute Engine preempts the VM", is_signal=False)
    assert all(headers["metadata-flavor"] == "Google" for _, _, headers in metadata.asked)


async def test_compute_engine_that_has_decided_already(metadata: Metadata) -> None:
    metadata.answers[PREEMPTED] = (200, "TRUE\n")
    assert (await first(GoogleMetadata(metadata.url))).lead_s == 30
    assert metadata.asked[0][1] == PREEMPTED


TOKEN, ACTION = "/latest/api/token", "/latest/meta-data/spot/instance-action"


async def test_ec2_asks_with_a_token_that_it_keeps(metadata: Metadata) -> None:
    metadata.answers[TOKEN] = (200, "secret")
    watching = asyncio.create_task(first(Ec2Metadata(metadata.url, now=lambda: NOW, pause_s=0.01)))
    while len(metadata.asked) < 4:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    metadata.answers[ACTION] = (200, '{"action": "terminate", "time": "2026-01-02T03:06:00Z"}')
    notice = await watching
    assert notice == Departing(115.0, "EC2 will terminate the instance", is_signal=False)
    assert [method for method, target, _ in metadata.asked if target == TOKEN] == ["PUT"]
    assert metadata.asked[1][2]["x-aws-ec2-metadata-token"] == "secret"


async def test_ec2_renews_a_token_that_has_expired(metadata: Metadata) -> None:
    metadata.answers = {TOKEN: (200, "old"), ACTION: (401, "")}
    source = Ec2Metadata(metadata.url, now=lambda: NOW)
    assert await source.ask() is None
    metadata.answers = {TOKEN: (200, "new"), ACTION: (404, "")}
    assert await source.ask() is None
    assert metadata.asked[-1][2]["x-aws-ec2-metadata-token"] == "new"


@pytest.mark.parametrize("body", ["gibberish", '{"action": "stop"}', '{"action": 1, "time": "x"}'])
async def test_ec2_notice_that_cannot_be_read_counts_as_now(
    metadata: Metadata, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    metadata.answers = {TOKEN: (200, "t"), ACTION: (200, body)}
    notice = await Ec2Metadata(metadata.url, now=lambda: NOW).ask()
    assert notice is not None
    assert notice.lead_s == 0.0
    assert "cannot read the interruption notice" in caplog.text


async def test_ec2_without_tokens(metadata: Metadata) -> None:
    metadata.answers = {TOKEN: (403, "")}
    with pytest.raises(OSError, match="returns no token"):
        await Ec2Metadata(metadata.url).ask()


async def test_a_server_that_does_not_answer_is_asked_again(metadata: Metadata) -> None:
    """No answer is no fault: the source goes on asking until there is one."""
    source = Ec2Metadata("http://127.0.0.1:1", now=lambda: NOW, pause_s=0.01)
    watching = asyncio.create_task(first(source))
    await asyncio.sleep(0.1)
    assert not watching.done()
    source._url = metadata.url
    metadata.answers = {TOKEN: (200, "t"), ACTION: (200, "{}")}
    assert (await watching).lead_s == 0.0


async def test_an_answer_that_is_not_http() -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail server\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    with pytest.raises(OSError, match=r"not an HTTP response|reset"):
        await request("GET", url, headers={}, timeout_s=5.0)
    server.close()
