"""Bounds on the streams that agents and strangers can make the operator hold.

One process serves all jobs, so no agent may take so much that the others notice.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

MOST_WAITING = 2048
"""Streams that have not been authenticated yet."""
MOST_OF_AN_ADDRESS = 256
"""Of them, from one address."""
STREAMS_OF_A_POD = 2
"""The newest, and the one that it replaces."""


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
