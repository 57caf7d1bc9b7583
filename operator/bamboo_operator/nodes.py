"""The cluster's nodes, listed at most once for many jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bamboo_operator import api
from bamboo_operator.api import Api, Object

MAX_AGE_S = 10.0


class Nodes:
    """A list that is fetched again when an event has said that it changed, or when it is old."""

    def __init__(self, kube: Api, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube, self._clock = kube, clock
        self._nodes: list[Object] = []
        self._fetched_at: float | None = None
        self._lock = asyncio.Lock()

    def changed(self) -> None:
        """What is known may be wrong."""
        self._fetched_at = None

    async def list(self) -> list[Object]:
        """All nodes."""
        async with self._lock:
            if self._fetched_at is None or self._clock() - self._fetched_at > MAX_AGE_S:
                began = self._clock()
                # Set first: a change during the LIST makes it stale again.
                self._fetched_at = began
                try:
                    self._nodes = await self._kube.list(api.nodes())
                except BaseException:
                    self._fetched_at = None
                    raise
            return self._nodes
