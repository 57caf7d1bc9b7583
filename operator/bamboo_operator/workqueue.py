"""A queue of keys that are to be looked at: each at most once, never by two workers, or later.

`Schedule` is the bookkeeping, without clock; `WorkQueue` waits.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from typing import Generic, TypeVar

K = TypeVar("K")


class Schedule(Generic[K]):
    """Keys that are ready (in order of arrival), in work, or due later (earliest time wins)."""

    def __init__(self) -> None:
        self._ready: deque[K] = deque()
        self._dirty: set[K] = set()
        self._working: set[K] = set()
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._numbers = itertools.count()

    def add(self, key: K) -> None:
        """Now; while the key is in work: once more afterwards."""
        self._due.pop(key, None)
        if key not in self._dirty:
            self._dirty.add(key)
            if key not in self._working:
                self._ready.append(key)

    def add_at(self, key: K, at: float) -> None:
        """At a time, unless it comes up earlier."""
        if key in self._dirty or self._due.get(key, at + 1) <= at:
            return
        self._due[key] = at
        heapq.heappush(self._heap, (at, next(self._numbers), key))

    def take(self, now: float) -> K | None:
        """The next key, which is in work then; None if none is ready."""
        while self._heap and self._heap[0][0] <= now:
            at, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == at:
                self.add(key)
        if not self._ready:
            return None
        key = self._ready.popleft()
        self._dirty.discard(key)
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        """The work on it has ended."""
        self._working.discard(key)
        if key in self._dirty:
            self._ready.append(key)

    def next_at(self) -> float | None:
        """When a delayed key comes up."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def __len__(self) -> int:
        return len(self._ready)


class WorkQueue(Generic[K]):
    """The same, with waiting. Times are the event loop's."""

    def __init__(self) -> None:
        self._schedule: Schedule[K] = Schedule()
        self._changed = asyncio.Event()

    def add(self, key: K) -> None:
        """See Schedule."""
        self._schedule.add(key)
        self._changed.set()

    def add_after(self, key: K, delay_s: float) -> None:
        """In so many seconds, unless it comes up earlier."""
        self._schedule.add_at(key, asyncio.get_running_loop().time() + delay_s)
        self._changed.set()

    async def get(self) -> K:
        """Wait for a key; give it back with done."""
        loop = asyncio.get_running_loop()
        while True:
            key = self._schedule.take(loop.time())
            if key is not None:
                return key
            self._changed.clear()
            at = self._schedule.next_at()
            timeout = None if at is None else max(0.0, at - loop.time())
            try:
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: K) -> None:
        """See Schedule."""
        self._schedule.done(key)
        if len(self._schedule):
            self._changed.set()

    def __len__(self) -> int:
        return len(self._schedule)
