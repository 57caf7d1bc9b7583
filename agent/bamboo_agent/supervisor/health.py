"""The agent's HTTP server: /healthz, /readyz and /metrics.

These metrics end with the pod. What must outlive it goes to the operator.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from bamboo_core.protocol.messages import AgentMessage, Heartbeat, Progress, Suspicion

log = logging.getLogger(__name__)

_MOVED = (
    "port %d of this pod is in use: health and metrics are at port %d, where no PodMonitor looks;"
    " give the program that listens there another port"
)
_READ_S = 5.0
_MOST = 64
"""Connections at a time. When there are more, the oldest ends, so that a probe gets through."""


class Metrics:
    """One agent's metrics. Every series has the labels job_namespace, training_job and agent."""

    def __init__(self, *, job: str, agent: str) -> None:
        self.registry = CollectorRegistry()
        namespace, _, name = job.partition("/")
        self._labels = {"job_namespace": namespace, "training_job": name, "agent": agent}
        self.connected = self._gauge("session_connected", "1 while the session is open")
        self.worker_ready = self._gauge("worker_ready", "1 once the worker is ready")
        self.peers = self._gauge("peers_connected", "peers with a liveness connection")
        self.epoch = self._gauge("epoch", "epoch of the newest adopted plan")
        self.step = self._gauge("step", "the worker's current optimizer step")
        self.instructions = self._gauge("instructions_finished", "since the worker's start")
        self.refused = self._gauge(
            "refused_connections", "connections of other agents or strangers that proved nothing"
        )
        self.step_s = self._gauge("step_seconds", "duration of the last committed step")
        self.compute = self._counter("compute_seconds", "computing time in committed steps")
        self.sent = self._counter("sent_bytes", "bytes sent to other agents in committed steps")
        self.suspicions = Counter(
            "bamboo_agent_suspicions_total",
            "evidence against other agents, by cause",
            [*self._labels, "cause"],
            registry=self.registry,
        )
        self._suspicions: set[Suspicion] = set()  # of the newest heartbeat

    def sent_to_operator(self, message: AgentMessage) -> None:
        """Count a message that the agent sends."""
        if isinstance(message, Progress):
            self.step_s.set(message.step_s)
            self.compute.inc(max(0.0, message.busy_s))
            self.sent.inc(message.sent_bytes)
        elif isinstance(message, Heartbeat):
            for suspicion in set(message.suspicions) - self._suspicions:
                self.suspicions.labels(**self._labels, cause=suspicion.cause.value).inc()
            self._suspicions = set(message.suspicions)

    def _gauge(self, name: str, text: str) -> Gauge:
        gauge = Gauge(f"bamboo_agent_{name}", text, list(self._labels), registry=self.registry)
        return gauge.labels(**self._labels)

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(
            f"bamboo_agent_{name}_total", text, list(self._labels), registry=self.registry
        )
        return counter.labels(**self._labels)


class HealthServer:
    """``is_ready``: whether the worker is ready."""

    def __init__(self, metrics: Metrics, *, is_ready: Callable[[], bool]) -> None:
        self._metrics = metrics
        self._is_ready = is_ready
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}  # oldest first

    async def start(self, host: str, port: int) -> int:
        """Listen and return the port: another one if a container of the pod has taken it, since
        training needs none. OSError if the host is not local."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            self._server = await asyncio.start_server(self._serve, host, 0)
        bound: int = self._server.sockets[0].getsockname()[1]
        if port not in (0, bound):
            log.warning(_MOVED, port, bound)
        return bound

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= _MOST:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        self._open[writer] = None
        try:
            await self._converse(reader, writer)
        finally:
            self._open.pop(writer, None)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request. ValueError: a line is too long."""
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
            async with asyncio.timeout(_READ_S):
                line = (await reader.readline()).decode("ascii", "replace").split()
                while (await reader.readline()).strip():
                    pass
                status, kind, body = self._answer(line)
                head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n"
                writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                await writer.drain()

    def _answer(self, line: list[str]) -> tuple[str, str, bytes]:
        text = "text/plain; charset=utf-8"
        if len(line) != 3 or line[0] != "GET":
            return "405 Method Not Allowed", text, b"only GET is supported\n"
        match line[1].partition("?")[0]:
            case "/healthz":
                return "200 OK", text, b"ok\n"
            case "/readyz" if self._is_ready():
                return "200 OK", text, b"ready\n"
            case "/readyz":
                return "503 Service Unavailable", text, b"the worker is not ready\n"
            case "/metrics":
                return "200 OK", text + "; version=0.0.4", generate_latest(self._metrics.registry)
        return "404 Not Found", text, b"there are /healthz, /readyz and /metrics\n"
