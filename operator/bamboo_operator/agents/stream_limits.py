"""Bounds on the streams that agents and strangers can make the operator hold.

One process serves all jobs, so no agent may take so much that the others notice.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

MOST_WAITING = 2048
"""Streams that have not been authenticated yet."""
MOST_OF_AN_ADDRESS = 256
"""Of them, from one address."""
REVIEWS_OF_AN_ADDRESS = 8
"""At a time."""
STREAMS_OF_A_POD = 2
"""The newest, and the one that it replaces."""


class FullError(Exception):
    """Too many streams wait. The text says so to the peer."""

    def __init__(self) -> None:
        super().__init__("too many streams wait to be authenticated; try again soon")


class Place(NamedTuple):
    """The place of one stream that waits."""

    must_end: asyncio.Event  # set when the stream has to make room
    turns: asyncio.Semaphore  # of its address: to be held during a review


class _Address(NamedTuple):
    waiting: list[asyncio.Event]  # oldest first
    turns: asyncio.Semaphore


class Waiting:
    """Streams between their first byte and the end of their authentication.

    When there are too many, the newest of the busiest address has to go: the others are closer to
    their turn. A flood from few addresses keeps nobody else out, nor does it take all reviews.
    """

    def __init__(self) -> None:
        self._of: dict[str, _Address] = {}

    def __len__(self) -> int:
        return sum(len(known.waiting) for known in self._of.values())

    @contextmanager
    def one(self, address: str) -> Iterator[Place]:
        """Count a stream while it waits. FullError."""
        known = self._of.get(address)
        count = len(known.waiting) if known is not None else 0
        if count >= MOST_OF_AN_ADDRESS:
            raise FullError
        if len(self) >= MOST_WAITING:
            busiest = max(self._of.values(), key=lambda other: len(other.waiting)).waiting
            if len(busiest) <= count:
                raise FullError
            busiest.pop().set()
        if known is None:
            turns = asyncio.Semaphore(REVIEWS_OF_AN_ADDRESS)
            known = self._of[address] = _Address([], turns)
        place = Place(asyncio.Event(), known.turns)
        known.waiting.append(place.must_end)
        try:
            yield place
        finally:
            if place.must_end in known.waiting:
                known.waiting.remove(place.must_end)
            if not known.waiting and self._of.get(address) is known:
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
