"""What whoever reaches the metrics port can make the operator do, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import logging
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bamboo_operator.monitoring import bounded_http
from bamboo_operator.monitoring.metrics_server import MetricsServer

from ..agent_client import until

_RECEIVE_BYTES = 64 << 10


class Slow(Collector):
    """Metrics that are not complete until ``go_on`` is set. Fails if ``is_broken``."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.is_broken = False
        self.now = self.most = self.made = 0

    def describe(self) -> list[Metric]:
        """So that nothing is collected at the registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Count who does so at a time."""
        self.now += 1
        self.made += 1
        self.most = max(self.most, self.now)
        self.go_on.wait(60)
        if self.is_broken:
            raise RuntimeError("a defect")
        yield GaugeMetricFamily("bamboo_made", "Times", self.made)
        self.now -= 1


@contextlib.contextmanager
def serving(slow: Slow) -> Iterator[MetricsServer]:
    """A server of these metrics."""
    registry = CollectorRegistry()
    registry.register(slow)
    server = MetricsServer(registry, host="127.0.0.1", port=0)
    try:
        yield server
    finally:
        slow.go_on.set()
        server.close()


def scrape(port: int, path: str = "/metrics", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    answer.body = answer.read()  # type: ignore[attr-defined]
    connection.close()
    return answer


def threads() -> int:
    """That serve a connection."""
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def ask_and_leave(port: int, address: str) -> None:
    """As one who wants the operator to work for nothing."""
    source = address, 0
    with socket.create_connection(("127.0.0.1", port), 60, source_address=source) as sock:
        sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")


@pytest.mark.parametrize("addresses", [1, 8])
async def test_a_flood_is_answered_once(addresses: int) -> None:
    """Threads are bounded, and whoever asks meanwhile gets the same text."""
    slow, before = Slow(), threads()
    with serving(slow) as server:
        for number in range(bounded_http.MOST + 60):
            ask_and_leave(server.port, f"127.0.1.{1 + number % addresses}")
        await until(lambda: threads() - before == bounded_http.MOST)
        honest = asyncio.create_task(asyncio.to_thread(scrape, server.port))
        assert threads() - before == bounded_http.MOST
        slow.go_on.set()
        answer = await honest
        assert (answer.status, slow.most) == (200, 1)
        # Far fewer than there were requests, however slow the machine is.
        assert slow.made < 10
        await until(lambda: threads() == before)


async def test_all_get_the_same_text_plain_or_compressed() -> None:
    slow = Slow()
    with serving(slow) as server:
        plain = asyncio.create_task(asyncio.to_thread(scrape, server.port))
        await until(lambda: slow.now == 1)
        zipped = asyncio.create_task(
            asyncio.to_thread(scrape, server.port, **{"Accept-Encoding": "gzip"})
        )
        slow.go_on.set()
        first, second = await plain, await zipped
    assert first.getheader("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
    assert second.getheader("Content-Encoding") == "gzip"
    text = first.body  # type: ignore[attr-defined]
    assert b"bamboo_made 1.0" in text
    assert gzip.decompress(second.body) == text  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("accepted", "is_zipped"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("gzip; q=0.001", True),
        ("gzip;q=0", False),
        ("identity, gzip; Q=0.000", False),
        ("notgzip", False),
        ("", False),
    ],
)
def test_who_refuses_gzip_gets_none(accepted: str, is_zipped: bool) -> None:
    slow = Slow()
    slow.go_on.set()
    with serving(slow) as server:
        answer = scrape(server.port, **{"Accept-Encoding": accepted})
    assert (answer.getheader("Content-Encoding") == "gzip") == is_zipped


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_metrics_that_cannot_be_made(encoding: str, caplog: pytest.LogCaptureFixture) -> None:
    slow = Slow()
    slow.is_broken = True
    slow.go_on.set()
    with serving(slow) as server, caplog.at_level(logging.ERROR):
        assert scrape(server.port, **{"Accept-Encoding": encoding}).status == 500
    assert [record.getMessage() for record in caplog.records] == ["a text cannot be made"]


def test_little_waits_in_the_kernel_for_who_does_not_read() -> None:
    """The answer has 8 MB."""
    registry = CollectorRegistry()
    Gauge("large", "x" * (8 << 20), registry=registry)
    server = MetricsServer(registry, host="127.0.0.1", port=0, idle_s=0.2)
    with contextlib.ExitStack() as stack:
        stack.callback(server.close)
        sock = stack.enter_context(socket.socket())
        sock.settimeout(60)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        sock.connect(("127.0.0.1", server.port))
        sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert sock.recv(15) == b"HTTP/1.0 200 OK"
        while server._server.connections:  # it gives up; nobody tells
            time.sleep(0.01)
        got = 0
        while more := sock.recv(1 << 20):
            got += len(more)
    assert got <= bounded_http.SEND_BYTES + 4 * _RECEIVE_BYTES


def test_there_is_nothing_else() -> None:
    slow = Slow()
    with serving(slow) as server:
        assert scrape(server.port, "/secrets").status == 404
    assert slow.made == 0
