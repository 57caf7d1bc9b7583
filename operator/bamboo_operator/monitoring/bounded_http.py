"""HTTP servers of threads that strangers cannot fill: for health and metrics.

No connection is refused: the one that has waited longest ends instead, so that a probe gets through
however many silent connections there are.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from http.server import ThreadingHTTPServer
from typing import Any

MOST = 128
"""Connections at a time, and threads. When there are more, the oldest of the busiest address ends.
"""
MOST_OF_ADDRESS = 32
REQUEST_S = 10.0
"""A connection ends after so long, whatever has come."""
SEND_BYTES = 256 << 10
"""That the kernel keeps of an answer for a peer who does not read. By default it may be 4 MB."""
_POLL_S = 0.1
"""How long an end may have to wait for the server's thread."""


class BoundedServer(ThreadingHTTPServer):
    """A thread for each connection, and a bound on both.

    A connection that ends takes its thread along as soon as that has what it waits for. Until then
    the thread counts, and when all are taken, new connections wait.
    """

    daemon_threads = True
    request_queue_size = MOST
    request_s = REQUEST_S

    def __init__(self, *args: Any) -> None:
        self._lock = threading.Lock()
        self._open: dict[socket.socket, tuple[str, float]] = {}  # address, since when; oldest first
        self._unused = threading.BoundedSemaphore(MOST)
        host = args[0][0]
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__(*args)

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open)

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES // 2)  # is doubled
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        address = client_address[0]
        with self._lock:
            self._open[request] = address, time.monotonic()
            count = Counter(other for other, _ in self._open.values())
            if count[address] > MOST_OF_ADDRESS:
                self._end_oldest_of(address)
            elif len(self._open) > MOST:
                self._end_oldest_of(max(count, key=lambda other: count[other]))
        self._unused.acquire()  # at most MOST are open, so if none is left, one is about to end
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread has been started
            self._unused.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._unused.release()

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def serve_forever(self, poll_interval: float = _POLL_S) -> None:
        super().serve_forever(poll_interval)

    def service_actions(self) -> None:
        """Also called at every poll while nothing comes."""
        super().service_actions()
        due = time.monotonic() - self.request_s
        with self._lock:
            for request in [r for r, (_, since) in self._open.items() if since <= due]:
                self._end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away. By default each one writes a traceback to the log."""

    def _end_oldest_of(self, address: str) -> None:
        self._end(next(r for r, (other, _) in self._open.items() if other == address))

    def _end(self, request: socket.socket) -> None:
        """Wake its thread, which closes it."""
        del self._open[request]
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)
