"""Whether the process lives and is ready, for probes over HTTP.

Served from threads, so that probes report a blocked loop.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

from bamboo_operator.monitoring.bounded_http import BoundedServer

MAX_LAG_S = 10.0
"""After the loop was blocked for so long, the process should be restarted."""
MAX_SILENCE_S = 60.0
"""A leader lists all jobs at least so often."""

_PERIOD_S = 0.5
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
