"""Which cloud it is, what is announced, and that a broken metadata server disturbs nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.agent.notices.metadata_server import Answer, Azure, Ec2, Gce, MetadataServer, event

from bamboo_agent.notices import watch
from bamboo_agent.notices.client import MetadataClient, NoAnswerError
from bamboo_agent.notices.sources import News, Source
from bamboo_core.api.spec import NoticeSource

AUTO = (NoticeSource.AUTO,)
NEWS = News("key", 5.0, "it ends")
QUICK = (0.01, 0.02)


class Heard:
    """What was announced, by source."""

    def __init__(self) -> None:
        self.said: list[tuple[NoticeSource, News]] = []
        self._changed = asyncio.Event()

    def __call__(self, source: NoticeSource, news: News) -> None:
        self.said.append((source, news))
        self._changed.set()

    async def next(self) -> tuple[NoticeSource, News]:
        async with asyncio.timeout(10):
            await self._changed.wait()
        self._changed.clear()
        return self.said[-1]


@asynccontextmanager
async def running(
    names: tuple[NoticeSource, ...], heard: Heard, server: MetadataServer
) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(
        watch.run(names, heard, address=server.address, detect_after_s=QUICK)
    )
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.stop()


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (Gce, [NoticeSource.GCE]),
        (Ec2, [NoticeSource.AWS_SPOT, NoticeSource.AWS_REBALANCE]),
        (Azure, [NoticeSource.AZURE]),
        (MetadataServer, []),
    ],
)
async def test_which_cloud(make: Callable[[], MetadataServer], found: list[NoticeSource]) -> None:
    server = make()
    await server.start()
    client = await MetadataClient.open(server.address)
    assert await watch.detect(client) == found
    await client.close()
    await server.stop()


@pytest.mark.parametrize("body", ["{}", "[", "<html>", '{"apiVersions": 7}', "[" * 5000])
async def test_a_web_server_is_no_cloud(body: str) -> None:
    """Even if it answers everything with 200."""
    server = MetadataServer()
    server.broken = Answer(200, f"{body} it works")
    await server.start()
    client = await MetadataClient.open(server.address)
    assert await watch.detect(client) == []
    await client.close()
    await server.stop()


async def test_auto_on_each_cloud() -> None:
    gce, ec2, azure = Gce(), Ec2(), Azure()
    await gce.change("preempted", "TRUE")
    ec2.documents["spot/instance-action"] = '{"action": "stop", "time": "2026-01-02T03:06:00Z"}'
    azure.publish(event("Preempt", azure.name))
    wanted = [
        (gce, NoticeSource.GCE),
        (ec2, NoticeSource.AWS_SPOT),
        (azure, NoticeSource.AZURE),
    ]
    for server, name in wanted:
        await server.start()
        heard = Heard()
        async with running(AUTO, heard, server):
            assert (await heard.next())[0] is name


async def test_auto_finds_a_server_that_comes_late(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    server, heard = Gce(), Heard()
    await server.change("preempted", "TRUE")
    await server.start()
    await server.stop()  # its address is kept
    async with running(AUTO, heard, server):
        while "no metadata server of a known cloud answers" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert heard.said == []
        await server.start()
        assert (await heard.next())[1].lead_s == 30.0


async def test_none_asks_nobody() -> None:
    server, heard = Gce(), Heard()
    await server.start()
    async with running((NoticeSource.NONE,), heard, server) as task:
        await asyncio.wait_for(task, 5)
    assert server.heads == []


class Script(Source):
    """Answers in turn; the last one for ever."""

    pause_s = 0.001

    def __init__(self, *answers: list[News] | Exception) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def ask(self) -> list[News]:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@asynccontextmanager
async def watching(script: Script, heard: Heard) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(watch.watch(NoticeSource.GCE, script, heard))
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_news_are_announced_once() -> None:
    script, heard = Script([NEWS], [], [NEWS], [NEWS, News("other", 1.0, "sooner")], []), Heard()
    async with watching(script, heard):
        await until(lambda: script.asked > 6)
    assert [news.key for _, news in heard.said] == ["key", "other"]


async def test_a_server_that_always_has_other_news_is_heard_at_most_so_often() -> None:
    class Flood(Script):
        async def ask(self) -> list[News]:
            self.asked += 1
            return [News(f"{self.asked} {i}", 1.0, "x") for i in range(50)]

    script, heard = Flood([]), Heard()
    async with watching(script, heard):
        await until(lambda: script.asked > 5)
    assert len(heard.said) == watch.MOST_NEWS


async def test_errors_are_logged_when_they_change_and_asking_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Even an error that nobody has thought of."""
    caplog.set_level(logging.INFO)
    down, odd = NoAnswerError("status 500"), KeyError("odd")
    script, heard = Script(down, down, odd, odd, [], [NEWS], []), Heard()
    async with watching(script, heard) as task:
        await heard.next()
        assert not task.done()
    messages = [r.getMessage() for r in caplog.records if r.levelno == logging.INFO]
    assert messages == [
        "notices: Gce: status 500",
        "notices: Gce: KeyError: 'odd'",
        "notices: Gce: there are answers again",
    ]


async def test_pauses_grow_while_there_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await real(0)

    script = Script(*[NoAnswerError("x")] * 4, [])
    script.pause_s = 2.0
    monkeypatch.setattr(asyncio, "sleep", sleep)
    task = asyncio.create_task(watch.watch(NoticeSource.AZURE, script, Heard()))
    while script.asked < 6:
        await real(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert pauses[:5] == [4.0, 8.0, 10.0, 10.0, 2.0]


async def test_a_client_that_cannot_be_made_ends_only_the_watch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(address: str) -> MetadataClient:
        raise ImportError("no aiohttp")

    monkeypatch.setattr(MetadataClient, "open", fail)
    await watch.run((NoticeSource.GCE,), Heard())
    assert "SIGTERM remains" in caplog.text


async def test_its_connections_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended while it still finds out which cloud this is: the node watcher asks afresh."""
    server, opened = MetadataServer(), list[MetadataClient]()
    await server.start()
    server.is_hanging = True
    init = MetadataClient.__init__

    def noted(self: MetadataClient, *arguments: Any) -> None:
        init(self, *arguments)
        opened.append(self)

    monkeypatch.setattr(MetadataClient, "__init__", noted)
    async with running(AUTO, Heard(), server), asyncio.timeout(10):
        while not server.heads:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
    assert [client._http.closed for client in opened] == [True]
