"""Health and metrics over HTTP, and the event loop's lag.

Served from threads, so that probes report a blocked loop.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from bamboo_operator.bounded_http import REQUEST_S, BoundedServer
from bamboo_operator.shared_text import SharedText

MAX_LAG_S = 10.0
"""After the loop was blocked for so long, the process should be restarted."""
MAX_SILENCE_S = 60.0
"""A leader lists all jobs at least so often."""

_PERIOD_S = 0.5
_LEVEL = 1  # of gzip: metrics repeat themselves, and a scrape must not wait
_IDLE_S = 5.0
"""A silent connection holds a thread no longer."""


class Pulse:
    """Signs of life: the loop's and the reconciler's."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beat_at = self._worked_at = clock()
        self.is_leader = False
        self.is_ready = False
        self._is_standby = False
        self._refusal = ""

    def stand_by(self) -> None:
        """Another process of this release leads; this one takes over when it ends."""
        self._is_standby = True

    def refuse(self, reason: str) -> None:
        """This process must not lead; an empty reason: it may."""
        self._is_standby, self._refusal = False, reason

    def unready(self) -> list[str]:
        """Why it does nothing useful; empty: it leads, or stands by."""
        if self.is_ready or (self._is_standby and not self.is_leader):
            return []
        return [self._refusal or "not the leader, or not started yet"]

    def worked(self) -> None:
        """A resync is done."""
        self._worked_at = self._clock()

    def problems(self) -> list[str]:
        """Why the process should be restarted; empty: it should not."""
        now, found = self._clock(), []
        if now - self._beat_at > MAX_LAG_S:
            found.append(f"the event loop has been blocked for {now - self._beat_at:.0f} s")
        if self.is_leader and now - self._worked_at > MAX_SILENCE_S:
            found.append(f"no resync for {now - self._worked_at:.0f} s")
        return found

    async def beat(self, report: Callable[[float], None]) -> None:
        """Measure the loop's lag until cancelled."""
        while True:
            began = self._clock()
            await asyncio.sleep(_PERIOD_S)
            self._beat_at = self._clock()
            report(max(0.0, self._beat_at - began - _PERIOD_S))


class HealthServer:
    """GET /livez, /readyz."""

    def __init__(self, pulse: Pulse, *, host: str, port: int) -> None:
        self._server = BoundedServer((host, port), _handler(pulse))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class MetricsServer:
    """GET /metrics, in the text format of Prometheus. OSError if the port is in use."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        host: str,
        port: int,
        idle_s: float = _IDLE_S,
        request_s: float = REQUEST_S,
    ) -> None:
        plain = SharedText(lambda: generate_latest(registry))
        zipped = SharedText(lambda: (text := plain.get()) and gzip.compress(text, _LEVEL))
        self._server = BoundedServer((host, port), _scrape(plain, zipped, idle_s))
        self._server.request_s = request_s
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _scrape(plain: SharedText, zipped: SharedText, idle_s: float) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = idle_s

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
                return
            zips = _takes_gzip(",".join(self.headers.get_all("Accept-Encoding", [])))
            text = (zipped if zips else plain).get()
            if text is None:
                self.send_error(500)
                return
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)
            self.send_header("Content-Length", str(len(text)))
            if zips:
                self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are not logged."""

    return Handler


def _takes_gzip(accepted: str) -> bool:
    """By RFC 9110: a weight of 0 refuses it. prometheus_client's gzip_accepted reads no weights."""
    for coding in accepted.lower().split(","):
        name, *weights = (part.strip() for part in coding.split(";"))
        if name == "gzip":
            return not any(re.fullmatch(r"q\s*=\s*0(\.0*)?", weight) for weight in weights)
    return False


def _handler(pulse: Pulse) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _IDLE_S

        def do_GET(self) -> None:
            if self.path == "/livez":
                self._answer(pulse.problems())
            elif self.path == "/readyz":
                self._answer(pulse.unready())
            else:
                self.send_error(404)

        def _answer(self, problems: list[str]) -> None:
            body = json.dumps({"ok": not problems, "problems": problems}).encode()
            self.send_response(503 if problems else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Probes are not logged."""

    return Handler
