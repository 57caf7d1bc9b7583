"""Bounds on what agents and strangers can make the operator hold: streams, and bytes per second.

One process serves all jobs, so no agent may take so much that the others notice.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

MOST_WAITING = 2048
"""Streams that have not been authenticated yet."""
MOST_OF_AN_ADDRESS = 256
"""Of them, from one address."""
STREAMS_OF_A_POD = 2
"""The newest, and the one that it replaces."""

BURST_BYTES = 16 << 20
RATE_BYTES_S = 2 << 20
LEAST_BYTES = 1 << 10
"""A short message costs as much as one of this size: it has to be handled, too."""


class FullError(Exception):
    """Too many streams wait. The text says so to the peer."""


class Waiting:
    """Streams between their first byte and the end of their authentication."""

    def __init__(self) -> None:
        self._of: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._of.total()

    @contextmanager
    def one(self, address: str) -> Iterator[None]:
        """Count a stream while it waits. FullError."""
        if self._of[address] >= MOST_OF_AN_ADDRESS or len(self) >= MOST_WAITING:
            raise FullError("too many streams wait to be authenticated; try again soon")
        self._of[address] += 1
        try:
            yield
        finally:
            self._of[address] -= 1
            if not self._of[address]:
                del self._of[address]


class Streams:
    """The authenticated streams of each pod. A newer one replaces the older ones."""

    def __init__(self) -> None:
        self._of: defaultdict[str, list[asyncio.Event]] = defaultdict(list)

    def count(self, pod_uid: str) -> int:
        """How many streams a pod has."""
        return len(self._of.get(pod_uid, ()))

    @asynccontextmanager
    async def one(self, pod_uid: str) -> AsyncIterator[asyncio.Event]:
        """Count a stream while it lasts. The event is set when the stream has to end."""
        must_end, mine = asyncio.Event(), self._of[pod_uid]
        mine.append(must_end)
        for old in mine[:-STREAMS_OF_A_POD]:
            old.set()
        try:
            yield must_end
        finally:
            mine.remove(must_end)
            if not mine:
                self._of.pop(pod_uid, None)


class Allowance:
    """What one stream may send: BURST_BYTES at once, RATE_BYTES_S in the long run.

    Who sends more is not refused but read more slowly, and gRPC's flow control stops the sender.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._at = clock, clock()
        self._left = float(BURST_BYTES)

    def take(self, size: int) -> float:
        """A message of ``size`` bytes has come: how long to wait before the next, in seconds."""
        now = self._clock()
        self._left = min(BURST_BYTES, self._left + (now - self._at) * RATE_BYTES_S)
        self._at = now
        self._left -= max(size, LEAST_BYTES)
        return max(0.0, -self._left / RATE_BYTES_S)
