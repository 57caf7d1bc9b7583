"""A queue of keys to process, now or later. No key is queued twice or given to two workers.

`Schedule` keeps the books without a clock; `WorkQueue` waits.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from typing import Generic, TypeVar

K = TypeVar("K")


class Schedule(Generic[K]):
    """Keys are ready (in order of arrival), in work, or due later (the earliest time wins)."""

    def __init__(self) -> None:
        self._ready: deque[K] = deque()
        self._dirty: set[K] = set()
        self._working: set[K] = set()
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._numbers = itertools.count()

    def add(self, key: K) -> None:
        """Make a key ready. While it is in work, it becomes ready once more afterwards."""
        self._due.pop(key, None)
        if key not in self._dirty:
            self._dirty.add(key)
            if key not in self._working:
                self._ready.append(key)

    def add_at(self, key: K, at: float) -> None:
        """Make a key ready at a time, unless it becomes ready earlier."""
        if key in self._dirty or self._due.get(key, at + 1) <= at:
            return
        self._due[key] = at
        heapq.heappush(self._heap, (at, next(self._numbers), key))

    def take(self, now: float) -> K | None:
        """The next key, which is then in work. None: no key is ready."""
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
        """The work on a key has ended."""
        self._working.discard(key)
        if key in self._dirty:
            self._ready.append(key)

    def next_at(self) -> float | None:
        """When the next delayed key becomes ready; None: there are no delayed keys."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def __len__(self) -> int:
        return len(self._ready)


class WorkQueue(Generic[K]):
    """A Schedule to wait for. Times are the event loop's."""

    def __init__(self) -> None:
        self._schedule: Schedule[K] = Schedule()
        self._changed = asyncio.Event()

    def add(self, key: K) -> None:
        self._schedule.add(key)
        self._changed.set()

    def add_after(self, key: K, delay_s: float) -> None:
        """Make a key ready after a delay, unless it becomes ready earlier."""
        self._schedule.add_at(key, asyncio.get_running_loop().time() + delay_s)
        self._changed.set()

    async def get(self) -> K:
        """Wait for a key. Call ``done`` after the work."""
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
        self._schedule.done(key)
        if len(self._schedule):
            self._changed.set()

    def __len__(self) -> int:
        return len(self._schedule)
