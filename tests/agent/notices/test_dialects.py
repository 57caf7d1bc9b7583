"""What is asked of each cloud's metadata server, byte for byte, and what its answers mean."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any

import pytest
from tests.agent.notices.metadata_server import Answer, Azure, Ec2, Gce, MetadataServer, event

from bamboo_agent.notices import sources
from bamboo_agent.notices.client import MOST_BYTES, MetadataClient, NoAnswerError
from bamboo_agent.notices.sources import (
    AzureScheduledEvents,
    Ec2Rebalance,
    Ec2Session,
    Ec2SpotAction,
    GceValue,
    News,
)
from bamboo_core.api.spec import NoticeSource

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()


def clock() -> float:
    return NOW


@asynccontextmanager
async def serving(server: MetadataServer) -> AsyncIterator[MetadataClient]:
    await server.start()
    client = await MetadataClient.open(server.address)
    try:
        yield client
    finally:
        await client.close()
        await server.stop()


def head(server: MetadataServer, line: str, *headers: str) -> bytes:
    """The bytes of a request."""
    lines = [f"{line} HTTP/1.1", f"Host: {server.address}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


# ---------------------------------------------------------------- Compute Engine

INSTANCE = "/computeMetadata/v1/instance"
FLAVOR = "Metadata-Flavor: Google"


async def test_gce_is_asked_once_and_then_waits_at_the_server() -> None:
    server = Gce()
    async with serving(server) as client:
        preempted, _ = sources.make(NoticeSource.GCE, client)
        assert await preempted.ask() == []
        waiting = asyncio.create_task(preempted.ask())
        while len(server.heads) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert not waiting.done()
        await server.change("preempted", "TRUE")
        assert await waiting == [News("preempted", 30.0, "Compute Engine preempts the VM")]
        query = "wait_for_change=true&last_etag=0000000000000001&timeout_sec=60"
        assert server.heads == [
            head(server, f"GET {INSTANCE}/preempted", FLAVOR),
            head(server, f"GET {INSTANCE}/preempted?{query}", FLAVOR),
        ]


async def test_gce_that_has_decided_already() -> None:
    server = Gce()
    await server.change("preempted", "TRUE\n")
    async with serving(server) as client:
        (news,) = await sources.make(NoticeSource.GCE, client)[0].ask()
        assert news.lead_s == 30.0


@pytest.mark.parametrize(
    ("value", "leads"),
    [
        ("NONE", []),
        ("MIGRATE_ON_HOST_MAINTENANCE", []),  # the VM goes on elsewhere
        ("TERMINATE_ON_HOST_MAINTENANCE", [60.0]),
    ],
)
async def test_gce_maintenance(value: str, leads: list[float]) -> None:
    server = Gce()
    await server.change("maintenance-event", value)
    async with serving(server) as client:
        _, maintenance = sources.make(NoticeSource.GCE, client)
        assert [news.lead_s for news in await maintenance.ask()] == leads
    assert server.heads == [head(server, f"GET {INSTANCE}/maintenance-event", FLAVOR)]


async def test_gce_after_a_wait_without_a_change() -> None:
    """The server answers with the same value, and is asked to wait again."""
    server = Gce()
    async with serving(server) as client:
        source = GceValue(client, "preempted", {"TRUE": News("x", 1, "x")}, wait_s=0)
        assert [await source.ask() for _ in range(3)] == [[], [], []]
        assert [b"wait_for_change" in x for x in server.heads] == [False, True, True]


async def test_gce_begins_again_after_an_error_and_takes_no_strange_etag() -> None:
    """After an error the value may have changed unseen: it is asked for without a wait."""
    server = Gce()
    async with serving(server) as client:
        source = sources.make(NoticeSource.GCE, client)[0]
        server.broken = Answer(200, "FALSE", {"ETag": "a&b=c"})
        assert await source.ask() == []
        server.broken = Answer(503)
        with pytest.raises(NoAnswerError, match="status 503"):
            await source.ask()
        server.broken = None
        assert await source.ask() == []
        targets = [x.split(b" ")[1].decode() for x in server.heads]
        assert targets == [
            f"{INSTANCE}/preempted",
            f"{INSTANCE}/preempted?wait_for_change=true&timeout_sec=60",
            f"{INSTANCE}/preempted",
        ]


# ---------------------------------------------------------------- EC2

ACTION, REBALANCE = "spot/instance-action", "events/recommendations/rebalance"


async def test_ec2_is_asked_with_a_token_that_is_kept() -> None:
    server = Ec2()
    async with serving(server) as client:
        source = Ec2SpotAction(Ec2Session(client), clock)
        assert [await source.ask(), await source.ask()] == [[], []]
        server.documents[ACTION] = '{"action": "terminate", "time": "2026-01-02T03:06:00Z"}'
        (news,) = await source.ask()
    assert (news.lead_s, news.reason) == (115.0, "EC2 will terminate the instance")
    assert not news.is_hint
    question = head(server, f"GET /latest/meta-data/{ACTION}", "X-aws-ec2-metadata-token: token-1")
    life = "X-aws-ec2-metadata-token-ttl-seconds: 21600"
    assert server.heads == [
        head(server, "PUT /latest/api/token", life, "Content-Length: 0"),
        question,
        question,
        question,
    ]


async def test_ec2_token_that_has_expired_is_renewed_at_once() -> None:
    server = Ec2(uses=1)
    async with serving(server) as client:
        source = Ec2SpotAction(Ec2Session(client), clock)
        assert await source.ask() == []
        server.documents[ACTION] = '{"action": "stop", "time": "2026-01-02T03:05:05Z"}'
        assert [news.lead_s for news in await source.ask()] == [60.0]
        assert server.tokens == 2


@pytest.mark.parametrize(
    ("document", "lead_s"),
    [
        ('{"action": "hibernate", "time": "2026-01-02T03:06:00Z"}', 0.0),  # begins at once
        ('{"action": "terminate", "time": "2026-01-02T03:00:00Z"}', 0.0),  # is past
        ('{"action": "terminate", "time": "soon"}', 0.0),
        ('{"action": "terminate"}', 0.0),
    ],
)
async def test_ec2_action_without_time_left(document: str, lead_s: float) -> None:
    server = Ec2()
    server.documents[ACTION] = document
    async with serving(server) as client:
        (news,) = await Ec2SpotAction(Ec2Session(client), clock).ask()
        assert news.lead_s == lead_s


def seconds_off(off_s: float) -> Callable[[], float]:
    return lambda: clock() + off_s


@pytest.mark.parametrize("off_s", [-300.0, -1.0, 0.0, 1.0, 300.0])
@pytest.mark.parametrize("left_s", [115, 20, 0, -5])
async def test_ec2_time_is_counted_by_the_servers_clock(off_s: float, left_s: int) -> None:
    """R22: with a slow clock the agent stayed for 420 s, until it was killed."""
    server = Ec2()
    server.said_at = clock()
    ends_at = datetime.fromtimestamp(clock() + left_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    server.documents[ACTION] = json.dumps({"action": "terminate", "time": ends_at})
    async with serving(server) as client:
        (news,) = await Ec2SpotAction(Ec2Session(client), seconds_off(off_s)).ask()
    assert news.lead_s == max(0, left_s)


@pytest.mark.parametrize(("off_s", "lead_s"), [(-300.0, 120.0), (0.0, 115.0), (300.0, 0.0)])
@pytest.mark.parametrize("date", [None, "today"])
async def test_ec2_never_gives_more_than_two_minutes(
    off_s: float, lead_s: float, date: str | None
) -> None:
    """A server that does not say its time leaves only our clock."""
    server = Ec2()
    server.date = date
    server.documents[ACTION] = '{"action": "stop", "time": "2026-01-02T03:06:00Z"}'
    async with serving(server) as client:
        (news,) = await Ec2SpotAction(Ec2Session(client), seconds_off(off_s)).ask()
    assert news.lead_s == lead_s


@pytest.mark.parametrize(
    "document",
    ["", "<html>", "[]", "7", '{"action": "dance"}', '{"action": []}', "{}", '{"a":' * 3000],
)
async def test_ec2_document_that_is_none(document: str) -> None:
    """Only a known action is a notice: garbage must not send agents away."""
    server = Ec2()
    server.documents = {ACTION: document, REBALANCE: document}
    async with serving(server) as client:
        for kind in (Ec2SpotAction, Ec2Rebalance):
            with pytest.raises(NoAnswerError):
                await kind(Ec2Session(client), clock).ask()


async def test_ec2_recommendation_is_a_hint() -> None:
    server = Ec2()
    async with serving(server) as client:
        (source,) = sources.make(NoticeSource.AWS_REBALANCE, client)
        assert await source.ask() == []
        server.documents[REBALANCE] = '{"noticeTime": "2026-01-02T03:04:00Z"}'
        (news,) = await source.ask()
    assert news.is_hint
    assert head(
        server, f"GET /latest/meta-data/{REBALANCE}", "X-aws-ec2-metadata-token: token-1"
    ) == server.heads[-1]  # fmt: skip


@pytest.mark.parametrize(
    "answer", [Answer(403), Answer(200, ""), Answer(200, "two words"), Answer(200, "x" * 2000)]
)
async def test_ec2_without_tokens(answer: Answer) -> None:
    server = Ec2()
    server.broken = answer
    async with serving(server) as client:
        with pytest.raises(NoAnswerError, match=r"status 403|no session token"):
            await Ec2SpotAction(Ec2Session(client)).ask()


# ---------------------------------------------------------------- Azure

METADATA = "Metadata: true"


async def test_azure_is_asked_for_the_name_once_and_never_acknowledges() -> None:
    server = Azure()
    async with serving(server) as client:
        source = AzureScheduledEvents(client, clock)
        assert await source.ask() == []
        server.publish(event("Preempt", "aks-gpu-1_0"))
        (news,) = await source.ask()
        assert (news.lead_s, news.reason) == (30.0, "Azure announces Preempt of the VM")
        assert await source.ask() == []  # the same document
    name = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
    events = head(server, "GET /metadata/scheduledevents?api-version=2020-07-01", METADATA)
    assert server.heads == [head(server, f"GET {name}", METADATA), events, events, events]


@pytest.mark.parametrize(
    ("found", "leads"),
    [
        (event("Preempt", "aks-gpu-1_1"), []),  # the eviction of a neighbour
        (event("Freeze", "aks-gpu-1_0"), []),  # the VM goes on after some seconds
        (event("Reboot", "aks-gpu-1_1", "AKS-GPU-1_0"), [30.0]),
        (event("Redeploy", "aks-gpu-1_0"), [30.0]),
        (event("Terminate", "aks-gpu-1_0", NotBefore="", EventStatus="Started"), [0.0]),
        (event("Terminate", "aks-gpu-1_0", NotBefore="soon"), [0.0]),
        (event("Preempt", "aks-gpu-1_0", NotBefore="Thu, 01 Jan 2026 00:00:00 GMT"), [0.0]),
        (event("Preempt", Resources="aks-gpu-1_0"), []),
        ({"EventType": ["Preempt"], "Resources": ["aks-gpu-1_0"]}, []),
        ("an event", []),
    ],
)
async def test_azure_events(found: Any, leads: list[float]) -> None:
    server = Azure()
    server.publish(found)
    async with serving(server) as client:
        assert [x.lead_s for x in await AzureScheduledEvents(client, clock).ask()] == leads


async def test_azure_says_that_an_event_comes_sooner() -> None:
    """By another time, or because it has begun. Its other changes are no news."""
    server = Azure()
    async with serving(server) as client:
        source = AzureScheduledEvents(client, clock)
        told: dict[str, float] = {}
        for changed in (
            {"NotBefore": "Fri, 02 Jan 2026 03:19:05 GMT"},
            {"NotBefore": "Fri, 02 Jan 2026 03:09:05 GMT"},
            {"NotBefore": "Fri, 02 Jan 2026 03:09:05 GMT", "Description": "x"},
            {"NotBefore": "", "EventStatus": "Started"},
        ):
            server.publish(event("Terminate", "aks-gpu-1_0", **changed))
            for news in await source.ask():
                told.setdefault(news.key, news.lead_s)
    assert list(told.values()) == [900.0, 300.0, 0.0]


@pytest.mark.parametrize("off_s", [-300.0, 0.0, 300.0])
@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize(
    ("kind", "most_s"),
    [("Preempt", 30.0), ("Terminate", 900.0), ("Reboot", 900.0), ("Redeploy", 600.0)],
)
async def test_azure_time_is_counted_by_the_servers_clock(
    kind: str, most_s: float, is_told: bool, off_s: float
) -> None:
    """And what Azure gives is the most, whatever the clocks say."""
    server = Azure()
    server.said_at = clock() if is_told else None
    ends_at = formatdate(clock() + most_s - 4, usegmt=True)
    server.publish(event(kind, "aks-gpu-1_0", NotBefore=ends_at))
    async with serving(server) as client:
        (news,) = await AzureScheduledEvents(client, seconds_off(off_s)).ask()
    wrong = 0.0 if is_told else off_s
    assert news.lead_s == min(max(0.0, most_s - 4 - wrong), most_s)


@pytest.mark.parametrize("document", [{}, {"DocumentIncarnation": 1}, {"Events": []}])
async def test_azure_document_that_is_none(document: dict[str, Any]) -> None:
    server = Azure()
    server.document = document
    async with serving(server) as client:
        with pytest.raises(NoAnswerError, match="not a document"):
            await AzureScheduledEvents(client).ask()


async def test_azure_vm_without_a_name_hears_nothing() -> None:
    """The document has the events of other VMs, too."""
    server = Azure(name="<html> error")
    server.publish(event("Preempt", "aks-gpu-1_0"))
    async with serving(server) as client:
        with pytest.raises(NoAnswerError, match="no name"):
            await AzureScheduledEvents(client).ask()


# ---------------------------------------------------------------- broken servers

ALL = [NoticeSource.GCE, NoticeSource.AWS_SPOT, NoticeSource.AWS_REBALANCE, NoticeSource.AZURE]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "answer",
    [
        Answer(500), Answer(302, "", {"Location": "http://127.0.0.1:1/"}),
        Answer(raw=b""), Answer(raw=b"220 mail server\r\n"), Answer(raw=b"\0" * 100),
        Answer(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nTR"),
        Answer(200, "x" * (MOST_BYTES + 1)),
        Answer(raw=b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n"),
    ],
)  # fmt: skip
async def test_a_broken_server_is_no_answer(name: NoticeSource, answer: Answer) -> None:
    server = MetadataServer()
    server.broken = answer
    async with serving(server) as client:
        for source in sources.make(name, client):
            with pytest.raises(NoAnswerError):
                await source.ask()


async def test_a_slow_server_is_no_answer() -> None:
    server = MetadataServer()
    server.is_hanging = True
    async with serving(server) as client:
        with pytest.raises(NoAnswerError, match=r"no answer within 0\.05 s"):
            await client.ask("GET", "/", {}, answer_s=0.05)


async def test_no_server_is_no_answer() -> None:
    client = await MetadataClient.open("127.0.0.1:1")
    with pytest.raises(NoAnswerError, match=r"127\.0\.0\.1"):
        await client.ask("GET", "/", {})
    await client.close()


async def test_proxies_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    server = Gce()
    async with serving(server) as client:
        assert await sources.make(NoticeSource.GCE, client)[0].ask() == []
