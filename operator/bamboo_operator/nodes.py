"""The cluster's nodes. One LIST serves many jobs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

from bamboo_core.api.spec import JobSpec
from bamboo_core.controller.view import NodeView
from bamboo_operator import api, observe
from bamboo_operator.api import Api, Object

MAX_AGE_S = 10.0


class Nodes:
    """A list of all nodes, fetched again after a change or when it is old."""

    def __init__(self, kube: Api, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube, self._clock = kube, clock
        self._nodes: list[Object] = []
        self._views: dict[str, tuple[NodeView, ...]] = {}
        self._fetched_at: float | None = None
        self._lock = asyncio.Lock()

    def changed(self) -> None:
        """A node has changed; the list may be wrong."""
        self._fetched_at = None

    async def list(self) -> list[Object]:
        async with self._lock:
            if self._fetched_at is None or self._clock() - self._fetched_at > MAX_AGE_S:
                began = self._clock()
                # Set first: a change during the LIST makes it stale again.
                self._fetched_at = began
                try:
                    self._nodes = await self._kube.list(api.nodes())
                    self._views.clear()
                except BaseException:
                    self._fetched_at = None
                    raise
            return self._nodes

    async def views(self, spec: JobSpec) -> tuple[NodeView, ...]:
        """All nodes as a job sees them. Jobs with the same requests share the views."""
        await self.list()
        key = json.dumps(spec.worker.asks, sort_keys=True)
        if key not in self._views:
            self._views[key] = observe.node_views(self._nodes, spec)
        return self._views[key]
