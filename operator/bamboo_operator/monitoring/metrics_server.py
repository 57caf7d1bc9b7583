"""Metrics over HTTP: one text for all who scrape within a while, from threads."""

from __future__ import annotations

import gzip
import re
import threading
from http.server import BaseHTTPRequestHandler

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from bamboo_operator.monitoring.bounded_http import REQUEST_S, BoundedServer
from bamboo_operator.monitoring.shared_text import SharedText

_LEVEL = 1  # of gzip: metrics repeat themselves, and a scrape must not wait
_IDLE_S = 5.0
"""A silent connection holds a thread no longer."""


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
