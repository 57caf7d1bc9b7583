"""Workers take keys from the queue and reconcile.

An error of one job is logged, shown in its status and retried later. It stops nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import Any

from bamboo_operator.kube.api import ApiError, JobKey
from bamboo_operator.monitoring.registry import Metrics
from bamboo_operator.reconcile.reconciler import Reconciler
from bamboo_operator.reconcile.workqueue import WorkQueue

log = logging.getLogger(__name__)

_FIRST_S = 0.5
_LONGEST_S = 30.0
_ERRORS_SHOWN = 3
"""Consecutive API errors before the job's status shows them."""


class Workers:
    """Any number of ``work`` coroutines may run at once."""

    def __init__(self, queue: WorkQueue[JobKey], reconciler: Reconciler, metrics: Metrics) -> None:
        self._queue, self._reconciler, self._metrics = queue, reconciler, metrics
        self._failures: dict[JobKey, int] = {}
        self._is_closing = False
        self._busy = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def work(self) -> None:
        """Reconcile until cancelled."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        while True:
            key = await self._queue.get()
            if self._is_closing:
                await asyncio.Event().wait()
            self._busy += 1
            self._idle.clear()
            try:
                await self._one(key)
            finally:
                self._queue.done(key)
                self._busy -= 1
                if not self._busy:
                    self._idle.set()

    async def close(self, timeout_s: float) -> None:
        """Begin no reconcile; wait for running ones, for at most ``timeout_s``, then end them."""
        self._is_closing = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            log.warning("a reconcile did not end in time")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _one(self, key: JobKey) -> None:
        began = time.monotonic()
        try:
            after_s = await self._reconciler.reconcile(*key)
        except Exception as error:
            await self._failed(key, error)
        else:
            self._failures.pop(key, None)
            self._metrics.reconciles.labels("ok").inc()
            if after_s is not None:
                self._queue.add_after(key, after_s)
        self._metrics.reconcile_s.observe(time.monotonic() - began)

    async def _failed(self, key: JobKey, error: Exception) -> None:
        if isinstance(error, ApiError) and self._is_outrun(key, error):
            if error.is_absence:
                self._failures[key] = 1  # if the job exists after all, it is an error
            self._metrics.reconciles.labels("retry").inc()
            self._queue.add(key)
            return
        self._metrics.reconciles.labels("error").inc()
        count = self._failures[key] = self._failures.get(key, 0) + 1
        pause_s = min(_LONGEST_S, _FIRST_S * 2.0 ** min(count - 1, 10)) * random.uniform(0.75, 1.0)
        self._queue.add_after(key, pause_s)
        if isinstance(error, ApiError):
            log.warning("a reconcile failed", extra={"job": "/".join(key), "error": str(error)})
            if count >= _ERRORS_SHOWN:
                await self._reconciler.note_fault(*key, error)
            return
        log.error("a reconcile failed", exc_info=error, extra={"job": "/".join(key)})
        await self._reconciler.note_fault(*key, error)

    def _is_outrun(self, key: JobKey, error: ApiError) -> bool:
        """The job was changed or deleted during the reconcile; the next one will show."""
        return error.is_conflict or (error.is_absence and key not in self._failures)
