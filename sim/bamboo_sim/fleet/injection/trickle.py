"""A link that passes few bytes per second, whatever is behind them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from bamboo_sim.fleet.injection.effects import Count, Effect

MOST_WAIT_S = 0.5
"""After so long it is asked again whether more may leave: the fault may be over."""


class TricklingSocket:
    """A socket of the sending end. It refuses what is too much, as a full one does.

    rate: bytes per second that may leave now; 0: all. count: called when bytes have to wait.
    """

    def __init__(self, sock: Any, rate: Callable[[], float], count: Count) -> None:
        self._socket, self._rate, self._count = sock, rate, count
        self._may_at = 0.0  # when the next byte may leave, by time.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    @property
    def wait_s(self) -> float:
        """How long to wait before the next send; 0: not at all."""
        if not self._rate():
            return 0.0
        return min(MOST_WAIT_S, max(0.0, self._may_at - time.monotonic()))

    def send(self, data: Any) -> int:
        """Send as much as may leave. BlockingIOError."""
        rate = self._rate()
        if not rate:
            return int(self._socket.send(data))
        now = time.monotonic()
        if now < self._may_at:
            raise BlockingIOError
        most = max(1, round(rate * MOST_WAIT_S))
        sent = int(self._socket.send(memoryview(data)[:most]))
        self._may_at = now + sent / rate
        if sent < len(data):
            self._count(Effect.TRICKLED)
        return sent

    def sendmsg(self, pieces: Sequence[Any]) -> int:
        """As :meth:`send`."""
        return self.send(pieces[0]) if self._rate() else int(self._socket.sendmsg(pieces))
